"""The router that is shipped: stands at its calibrated threshold, and is worth its tokens."""
from __future__ import annotations

import json
from typing import Any

import pytest

from tokenrouter.interface import StayRouter
from tokenrouter.paths import ROOT, resolve
from zoo.offline import Offline
from zoo.quality import measure
from zoo.setup import Setup


@pytest.fixture(scope="module")
def setup() -> Setup:
    return Setup.compose(["algo=r2r", "models=tiny"])


def curve_of(setup: Setup) -> dict[str, Any]:
    file = resolve(setup.config["algo"]["weights"]).with_suffix(".json")
    return json.loads(file.read_text())


@pytest.mark.parametrize("algo", ["r2r", "entropy"])
def test_thresholds_in_conf_are_the_calibrated_ones(algo: str) -> None:
    from zoo.calibrate import default_file

    config = Setup.compose([f"algo={algo}"]).config["algo"]
    curve = json.loads(default_file(config).read_text())
    assert config["threshold"] == curve["threshold"] == curve["chosen"]["threshold"]
    assert curve["algo"] == algo and curve["chosen"]["quality"] >= 0.98
    assert "calibration" in curve["data"]


def test_the_curve_goes_from_the_small_to_the_large_model(setup: Setup) -> None:
    curve = curve_of(setup)["curve"]
    assert curve[0]["threshold"] == "never" and curve[-1]["threshold"] == "always"
    fractions = [point["llm_token_fraction"] for point in curve]
    assert fractions[0] == 0 and fractions[-1] == 1 and fractions == sorted(fractions)


def test_the_published_figures_are_of_this_router(setup: Setup) -> None:
    published = json.loads((ROOT / "results/quality/tiny.json").read_text())
    rows = published["algorithms"]
    assert published["problems"] >= 1000 and "test" in published["data"]
    assert rows["r2r"]["threshold"] == setup.config["algo"]["threshold"]
    assert rows["r2r"]["quality"] >= 0.98
    assert rows["r2r"]["llm_token_fraction"] <= 2 * rows["oracle"]["llm_token_fraction"]
    assert rows["slm_only"]["quality"] < rows["random"]["quality"] < 0.9 < rows["r2r"]["quality"]


def test_answers_problems_that_the_small_model_alone_does_not(setup: Setup) -> None:
    workload, tasks = setup.problems("test", 24)
    engines = [setup.engine(role, 24, 700) for role in ("small", "large")]
    routed = Offline(setup.algorithm, engines)
    outcome, _ = measure(setup, workload, tasks, routed, 1)
    alone = Offline(setup.algorithm, engines)
    alone.routers[0] = StayRouter()
    assert outcome.accuracy >= 0.85 > measure(setup, workload, tasks, alone, 1)[0].accuracy
    assert 0 < outcome.llm_fraction < 0.12

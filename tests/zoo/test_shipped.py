"""The routers of CITER and Co-LLM that are shipped stand at calibrated thresholds."""
from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from tokenrouter.interface import StayRouter
from zoo.calibrate import default_file
from zoo.offline import Offline
from zoo.quality import measure
from zoo.setup import Setup


@pytest.fixture(scope="module", params=["citer", "collm"])
def setup(request: pytest.FixtureRequest) -> Setup:
    return Setup.compose([f"algo={request.param}", "models=tiny"])


@pytest.fixture(scope="module")
def curve(setup: Setup) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(default_file(setup.config["algo"]).read_text())
    return found


def test_the_threshold_in_conf_is_the_calibrated_one(setup: Setup, curve: dict[str, Any]) -> None:
    algo = setup.config["algo"]
    assert algo["threshold"] == curve["threshold"] == curve["chosen"]["threshold"]
    assert curve["algo"] == algo["name"] and "calibration" in curve["data"]
    assert curve["chosen"]["quality"] >= float(curve["target"].removeprefix("quality:")) >= 0.95
    assert curve["models"]["large"] == "large" and curve["chosen"]["llm_token_fraction"] < 0.5


def test_the_curve_goes_from_the_small_to_the_large_model(curve: dict[str, Any]) -> None:
    points = curve["curve"]
    assert points[0]["threshold"] == "never" and points[-1]["threshold"] == "always"
    fractions = [point["llm_token_fraction"] for point in points]
    assert fractions[0] == 0 and fractions[-1] == 1
    assert all(later > earlier - 0.01 for earlier, later in itertools.pairwise(fractions))


def test_answers_problems_that_the_entry_model_alone_does_not(setup: Setup) -> None:
    workload, tasks = setup.problems("test", 24)
    engines = [setup.engine(role, 24, 700) for role in setup.algorithm.roles]
    outcome, _ = measure(setup, workload, tasks, Offline(setup.algorithm, engines), 1)
    alone = Offline(setup.algorithm, engines)
    alone.routers[0] = StayRouter()
    assert outcome.accuracy >= 0.85 > measure(setup, workload, tasks, alone, 1)[0].accuracy
    assert 0 < outcome.llm_fraction < 0.5

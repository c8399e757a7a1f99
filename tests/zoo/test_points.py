"""Points of an interrupted measurement are not measured again; those of another one are."""
from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zoo.points
from zoo.points import Points, identity, outcome_of, plain
from zoo.quality import Outcome
from zoo.setup import Setup


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "results" / "runs"


def made(about: Any, *keys: Any, stopped: bool = False) -> list[Any]:
    """The keys that were measured."""
    measured = []

    def measure(key: Any) -> dict[str, Any]:
        measured.append(key)
        return {"of": key}

    try:
        with Points("test", about) as points:
            for key in keys:
                assert points.get(key, partial(measure, key)) == {"of": key}
            if stopped:
                raise KeyboardInterrupt
    except KeyboardInterrupt:
        pass
    return measured


def test_what_is_there_is_not_measured_again(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert made("a", 0.1, "never", 0.1, stopped=True) == [0.1, "never"]
    assert "finished points stay in results/runs/test-" in capsys.readouterr().err
    assert made("b", 0.1, stopped=True) == [0.1]
    assert made("a", 0.2, "never", 0.1, stopped=True) == [0.2]
    assert "2 points are there already" in capsys.readouterr().err
    assert len(list(folder.iterdir())) == 2
    assert made("a", 0.1, "never", 0.2) == []
    assert made("b", 0.1) == []
    assert not list(folder.iterdir())
    assert made("a", 0.1) == [0.1]


def test_a_line_that_was_cut_off_costs_its_own_point(folder: Path) -> None:
    made("a", 1, 2, stopped=True)
    (file,) = folder.iterdir()
    file.write_text(file.read_text().rstrip()[:-3])
    assert made("a", 1, 2, stopped=True) == [2]
    assert made("a", 1, 2) == []


def test_other_code_has_other_points(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "zoo"
    package.mkdir()
    monkeypatch.setattr(zoo.points, "ROOT", tmp_path)
    for content, measured in (("1", [1]), ("1", []), ("2", [1])):
        (package / "a.py").write_text(content)
        zoo.points._code.cache_clear()  # as in another process
        assert made("a", 1, stopped=True) == measured
    zoo.points._code.cache_clear()


def test_outcomes_come_back_as_they_were() -> None:
    outcome = Outcome(np.array([True, False, True]), 0.25, 1 / 3, 100.5)
    again = outcome_of(plain(outcome))
    assert again.correct.dtype == bool and again.relative(outcome) == outcome.relative(outcome)
    assert plain(again) == plain(outcome)


def test_the_identity_follows_thresholds_weights_and_seeds(tmp_path: Path) -> None:
    weights = tmp_path / "router.safetensors"
    weights.write_bytes(b"1")

    def of(*overrides: str, seed: int = 0) -> dict[str, Any]:
        return identity(Setup.compose(["algo=r2r", f"algo.weights={weights}", *overrides], seed))

    first = of()
    assert of() == first
    others = [of("algo.threshold=0.9"), of("workload.max_tokens=9"), of("models.roles.small.path=zoo/models/medium"),
              of(seed=1)]
    assert all(other != first for other in others)
    weights.write_bytes(b"2")
    assert of() != first

"""Targets, and the search for the threshold that meets one, on a curve that needs no models."""
from __future__ import annotations

from typing import Any

import pytest

from tokenrouter.core import InputError
from zoo.calibrate import LEVELS, default_file, parse_target, search
from zoo.cli import convert, split_arguments
from zoo.setup import Setup


class MadeUp:
    """Fraction and handoff are the level itself; quality rises linearly to 1 at a level of 0.1."""

    def __init__(self) -> None:
        self.points: dict[float, dict[str, Any]] = {}
        self.measure(1.0)

    def measure(self, level: float) -> dict[str, Any]:
        self.points[level] = {
            "llm_token_fraction": level, "handoff": level / (1 + level), "quality": min(1.0, 0.5 + 5 * level)
        }
        return self.points[level]


def found(metric: str, value: float, refine: int) -> tuple[float, int]:
    curve = MadeUp()
    return search(curve, metric, value, refine), len(curve.points)  # type: ignore[arg-type]


def test_quality_takes_the_least_level_that_reaches_it() -> None:
    level, points = found("quality", 0.98, 0)
    assert (level, points) == (0.12, len(LEVELS) + 2)
    refined, points = found("quality", 0.98, 4)
    assert 0.096 <= refined < 0.1 and points == len(LEVELS) + 6


def test_fractions_take_the_closest_level() -> None:
    assert found("llm_fraction", 0.1, 0)[0] in (0.08, 0.12)
    assert found("llm_fraction", 0.1, 5)[0] == pytest.approx(0.1, rel=0.05)
    level, _ = found("handoff", 0.35, 5)
    assert level / (1 + level) == pytest.approx(0.35, rel=0.05)


def test_a_lucky_point_below_worse_ones_is_not_taken() -> None:
    curve = MadeUp()
    curve.measure(0.015)["quality"] = 0.99
    assert search(curve, "quality", 0.98, 0) == 0.12  # type: ignore[arg-type]


def test_ends_of_the_curve() -> None:
    assert found("quality", 0.3, 3)[0] == 0.0
    assert found("quality", 1.0, 0)[0] == 0.12
    assert found("llm_fraction", 1.0, 0)[0] == 1.0


@pytest.mark.parametrize("target", ["quality", "speed:0.5", "quality:0", "quality:1.2", "handoff:x"])
def test_targets_that_make_no_sense(target: str) -> None:
    with pytest.raises(InputError, match=f"target={target}: allowed is one of llm_fraction, handoff, quality"):
        parse_target(target)
    assert parse_target("quality:0.98") == ("quality", 0.98)


def test_command_lines() -> None:
    from zoo.calibrate import Options
    overrides, own = split_arguments(["algo=r2r", "models.roles.small.path=a/b", "target=quality:0.9", "problems=7"])
    assert overrides == ["algo=r2r", "models.roles.small.path=a/b"]
    options = convert(own, Options)
    assert (options.target, options.problems) == ("quality:0.9", 7)
    for arguments, message in (
        (["algo"], "algo: allowed is key=value"), (["size=3"], "size=3: unknown; allowed are algo, models, workload, "),
        (["target=a", "problems=many"], "problems=many: Expected `int`"), ([], "missing required field `target`"),
    ):
        with pytest.raises(InputError, match=message):
            convert(split_arguments(arguments)[1], Options)


def test_a_setup_is_composed_from_conf() -> None:
    setup = Setup.compose(["algo=r2r", "algo.threshold=0.25"])
    algorithm = setup.algorithm
    assert algorithm.roles == ("small", "large") and algorithm.entry == "small"
    assert algorithm.routers["small"]["threshold"] == 0.25
    assert default_file(setup.config["algo"]).name == "small_large.json"
    workload, tasks = setup.problems("calibration", 3)
    assert len(tasks) == 3 and "calibration" in workload.data_source
    with pytest.raises(InputError, match="algo/nothing"):
        Setup.compose(["algo=nothing"])
    natural = Setup.compose(["models.embedded=false"])
    with pytest.raises(InputError, match=r"workload\.path=null: allowed is a file of problems"):
        natural.problems("router", 3)

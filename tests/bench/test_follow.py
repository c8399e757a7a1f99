"""When thresholds count as having followed a change."""
from __future__ import annotations

import time

import pytest

import bench.follow
import tokenrouter.waiting
from bench.follow import STEADY, best, judge, main

SMALL = {"start_s": [float(i) for i in range(200)]}


def large(thresholds: list[int]) -> dict[str, list[float]]:
    return {"start_s": [4.0 * i for i in range(len(thresholds))], "thresholds": [float(B) for B in thresholds]}


def test_a_threshold_that_only_passes_by_does_not_count():
    # It changes at 40; the new value is passed once, and reached for good at 60.
    steps, share, before = judge(40.0, [SMALL, large([5] * 10 + [2, 5, 5, 5, 5] + [2] * 30)], 2)
    assert (steps, share, before) == (20, 1.0, 5)


def test_one_that_is_left_again_later_lowers_the_share():
    steps, share, _ = judge(0.5, [SMALL, large([5] + [3] * STEADY + [9] * 5)], 2)
    assert steps == 3 and share == STEADY / (STEADY + 5)


def test_never_is_told_as_that():
    assert judge(40.0, [SMALL, large([5] * 50)], 2) == (None, 0.0, 5)


def test_it_says_which_repeat_is_under_way(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def follow(*_: object) -> tuple[float, list[object]]:
        time.sleep(0.5)
        return 0.5, [SMALL, large([5] + [2] * 30)]

    monkeypatch.setattr(tokenrouter.waiting, "FIRST_S", 0.0)
    monkeypatch.setattr(bench.follow, "follow", follow)
    assert main(["repeats=2", "seconds=12"]) == 0
    said = capsys.readouterr().err
    assert "waiting for repeat 1 of 2, 24 s each: 0 s" in said and "waiting for repeat 2 of 2, 24 s each" in said


def test_the_best_thresholds_are_the_models():
    assert best(8, 0.35) == (1, 5) and best(8, 0.1) == (1, 2)

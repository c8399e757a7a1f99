"""The thresholds that a controller gets, and the process that works them out."""
from __future__ import annotations

import time

import pytest

from tokenrouter.core import InputError
from tokenrouter.subserver.messages import Figures
from tokenrouter.subserver.planner import PlannerProcess, Question, best


def r2r(slopes: tuple[float, float] = (0.0, 0.0), p: float = 0.35) -> list[Figures]:
    """The paper's section D.4, with step times that may grow with the batch."""
    return [Figures(100, [1 - p, p], [1, 0], 6.0, slopes[0]), Figures(100, [1.0, 0.0], [1, 0], 27.9, slopes[1])]


@pytest.mark.parametrize(("policy", "active", "B"), [
    ("optimal", 1, (1, 1)), ("optimal", 4, (1, 3)), ("optimal", 8, (1, 5)), ("optimal", 16, (2, 10)),
    ("slo", 8, (1, 5)), ("hold", 8, (1, 5)), ("hold", 16, (1, 10)), ("model_sync", 4, (4, 3)),
    ("model_sync", 8, (8, 6)),
])  # fmt: skip
def test_known_answers(policy: str, active: int, B: tuple[int, ...]):
    assert best(policy, Question(active, r2r(), None)) == B


def test_a_model_that_nobody_goes_to_needs_none():
    """A third algorithm's, say, of which no request has come."""
    idle = [Figures(figures.steps, [*figures.P, 0.0], [*figures.C, 0.0], figures.base_ms, 0.0) for figures in r2r()]
    assert best("optimal", Question(8, [*idle, None], (1, 3, 2))) == (1, 5, 1)


def test_thresholds_of_many_requests_are_scaled():
    found = best("optimal", Question(64, r2r(), None))
    assert found[0] in range(4, 8) and found[1] in range(36, 43)


def test_growing_step_times_move_the_thresholds():
    """Where wide batches are slow, waiting for more pays less."""
    assert best("optimal", Question(16, r2r((0.2, 1.0)), (2, 10)))[1] < 9


def test_a_few_per_mille_are_no_growth():
    assert best("optimal", Question(8, r2r((0.001, 0.01)), None)) == (1, 5)


def test_what_cannot_be_planned_is_said():
    stuck = [Figures(9, [1.0, 0.0], [1, 0], 6.0, 0.0), Figures(9, [0.5, 0.4], [1, 0], 27.9, 0.0)]
    with pytest.raises(InputError, match=r"P\[1\]"):
        best("optimal", Question(4, stuck, None))


def test_the_process_answers_once_and_never_holds_up():
    planner = PlannerProcess("optimal")
    try:
        assert planner.free and planner.answer() is None
        for active, B in ((4, (1, 3)), (8, (1, 5))):
            planner.ask(active, r2r(), None)
            began = time.monotonic()
            while (answer := planner.answer()) is None:
                assert not planner.free and time.monotonic() < began + 120
                time.sleep(0.01)
            assert answer == B and planner.free and planner.answer() is None
    finally:
        planner.close()

"""What evaluation counts: right answers, slips in a result, Wilson's interval."""

from __future__ import annotations

import pytest

from zoo.models.evaluate import Score, answer_of, is_slip
from zoo.tasks.arithmetic import problems


def test_answer_is_the_last_boxed_integer() -> None:
    assert answer_of("\\boxed{7} no, \\boxed{508}.") == 508
    assert answer_of("The answer is 508.") is None
    assert answer_of("\\boxed{}") is None


def test_slip_is_a_wrong_result_after_a_right_left_side() -> None:
    problem = problems("test", 1)[0]
    left, result = problem.equations[0].split(" = ")
    assert is_slip(problem, problem.solution.replace(f"= {result}", f"= {int(result) + 10}", 1))
    assert not is_slip(problem, problem.solution.replace(f"{left} =", f"1{left} =", 1))
    assert not is_slip(problem, problem.solution)


def test_wilson_interval_known_values() -> None:
    """Wilson (1927): for 10 of 10 the lower end is n / (n + z^2)."""
    low, high = Score(10, 10, 0, 0).interval()
    assert (low, high) == (pytest.approx(10 / (10 + 1.959964**2), abs=1e-5), 1.0)
    low, high = Score(1000, 500, 0, 0).interval()
    assert low + high == pytest.approx(1.0) and low == pytest.approx(0.46907, abs=1e-4)

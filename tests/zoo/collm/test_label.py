"""What Co-LLM learns from, on two models whose tokens are scripted."""
from __future__ import annotations

from pathlib import Path

import pytest

from tests.zoo.pairs import EOS, scripted_pair
from zoo.collm.label import Labeller


@pytest.mark.parametrize(("small", "large", "weak"), [
    ({}, {}, 0), ({3: 7}, {}, 1), ({3: 7}, {3: 20}, 0), ({}, {3: 7}, 0),
])
def test_weak_labels(tmp_path: Path, small: dict[int, int], large: dict[int, int], weak: int) -> None:
    rows = Labeller(scripted_pair(tmp_path, small, large)).label(slice(0, 1))
    assert rows.token_ids.tolist() == [2, 3, 4, 5, EOS]
    assert rows.weak.tolist() == [weak if t == 2 else 0 for t in range(5)]


def test_log_probabilities_are_of_the_right_token(tmp_path: Path) -> None:
    pair = scripted_pair(tmp_path, {3: 7}, problems=2)
    pair.tasks[0].solution = "2 " * 12  # too long
    rows = Labeller(pair).label(slice(0, 2))
    assert rows.problems.tolist() == [1] * 5
    right, wrong = pytest.approx(0.0, abs=1e-3), pytest.approx(-20.0, rel=1e-2)
    assert rows.small.tolist() == [right, right, wrong, right, right]
    assert rows.large.tolist() == [right] * 5
    assert rows.hidden.shape == (5, 64)

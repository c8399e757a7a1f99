from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tokenrouter.cluster.spec import BatchingSpec
from tokenrouter.subserver.policy import feasible, make_policy


def test_known_answers():
    assert feasible((1, 3), 4) == (1, 3)
    assert feasible((1, 3), 3) == (1, 3)
    assert feasible((1, 3), 2) == (1, 2)
    assert feasible((1, 3), 1) == (1, 1)
    assert feasible((4, 4, 4), 5) == (3, 2, 2)
    assert feasible((2, 2), 0) == (1, 1)


@given(st.lists(st.integers(1, 20), min_size=1, max_size=5), st.integers(0, 40))
def test_somebody_can_always_launch(thresholds: list[int], active: int):
    """Equation 22: with N requests spread over the models, one of them has enough; and no threshold grew."""
    B = feasible(tuple(thresholds), active)
    assert sum(b - 1 for b in B) < max(active, 1)
    assert all(1 <= b <= t for b, t in zip(B, thresholds, strict=True))


def test_policies():
    assert make_policy(BatchingSpec(policy="eager"), 1).threshold(9) == 1
    fixed = make_policy(BatchingSpec(policy="fixed", B=[1, 3]), 1)
    assert [fixed.threshold(n) for n in (0, 1, 2, 3, 16)] == [1, 1, 2, 3, 3]

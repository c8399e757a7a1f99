from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tokenrouter.cluster.spec import BatchingSpec
from tokenrouter.subserver.policies import make_policy
from tokenrouter.subserver.policy import feasible, scaled, shrunk


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


def test_eager_and_fixed():
    assert make_policy(BatchingSpec(policy="eager"), 1).threshold({0: 9}) == 1
    fixed = make_policy(BatchingSpec(policy="fixed", B=[1, 3]), 1)
    fixed.models = [[0, 1]]
    assert [fixed.threshold({0: n}) for n in (0, 1, 2, 3, 16)] == [1, 1, 2, 3, 3]


def test_each_algorithm_alone_can_always_launch():
    """Requests of algorithm 1 never come to model 0, so that those of algorithm 0 must not wait there for them."""
    models = [[0, 1], [1, 2]]
    assert [shrunk(lambda count: (3, 3, 1), i, models, {0: 6, 1: 6}) for i in range(3)] == [3, 3, 1]
    assert [shrunk(lambda count: (3, 3, 1), i, models, {0: 2, 1: 6}) for i in range(3)] == [2, 1, 1]
    assert shrunk(lambda count: (3, 3, 1), 0, models, {}) == 1


def test_thresholds_follow_the_count_at_once():
    assert scaled((1, 5), 8, 8) == (1, 5)
    assert scaled((1, 5), 8, 4) == (1, 3)
    assert scaled((2, 10), 16, 64) == (5, 39)
    assert scaled((1, 5), 8, 1) == scaled((1, 5), 8, 0) == scaled((1, 1), 1, 9)[:2] == (1, 1)

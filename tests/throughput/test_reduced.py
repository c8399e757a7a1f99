"""The reduced chain is the paper's chain, only smaller."""
from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.throughput.systems import r2r
from tokenrouter.core import InputError
from tokenrouter.throughput.chain import solve
from tokenrouter.throughput.reduced import Reduced, applies
from tokenrouter.throughput.search import feasible
from tokenrouter.throughput.spec import Spec

HOLDS = st.sampled_from([[], [0], [1], [0, 1]])


@settings(max_examples=60, derandomize=True, deadline=None)
@given(N=st.integers(1, 5), p=st.floats(0.02, 0.98), ticks=st.tuples(st.integers(1, 9), st.integers(1, 9)), hold=HOLDS)
def test_equals_the_chain_for_every_feasible_b(N: int, p: float, ticks: tuple[int, int], hold: list[int]) -> None:
    spec = Spec.parse({
        "N": N, "P": [[1 - p, p], [1, 0]], "C": [[1, 0.5], [0.25, 0]], "L_ms": ticks, "delta_ms": 1, "hold": hold})
    small = Reduced(spec)
    for B in feasible(spec):
        assert small.throughput(B) == pytest.approx(solve(spec, B).throughput, rel=1e-9)


@pytest.mark.parametrize("B", [(1, 1), (1, 7), (4, 3)])
def test_equals_the_chain_at_the_papers_latencies(B: tuple[int, int]) -> None:
    spec = r2r(8)
    assert Reduced(spec).throughput(B) == pytest.approx(solve(spec, B).throughput, rel=1e-9)


@pytest.mark.parametrize("change", [
    {"P": [[0.65, 0.35], [0.9, 0.1]]},
    {"P": [[1, 0], [1, 0]]},
    {"P": [[0, 1], [1, 0]]},
    {"L_ms": [6.0, [27.9, 30.0]]},
    {"contention": 1.5},
    {"run_lengths": [[1], None]},
])
def test_refuses_other_systems(change: dict) -> None:
    spec = r2r(4, **change)
    assert not applies(spec)
    with pytest.raises(InputError, match="reduced chain needs"):
        Reduced(spec)

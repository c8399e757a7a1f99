"""The simulation against the chain where both apply, and against arithmetic where only the simulation does."""
from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from tests.throughput.systems import r2r, systems
from tokenrouter.throughput.chain import solve
from tokenrouter.throughput.simulate import draw_itineraries, simulate
from tokenrouter.throughput.spec import Spec


@settings(max_examples=25, derandomize=True, deadline=None)
@given(systems())
def test_interval_holds_the_exact_throughput(spec: Spec) -> None:
    assert spec.B is not None
    [found] = simulate(spec, [spec.B], events=1000, replicas=48)
    exact = solve(spec, spec.B).throughput
    # 1e-6: a system that repeats itself exactly leaves an interval of no width.
    assert abs(found.throughput - exact) <= found.half_width(0.9999) + 1e-6 * exact


def test_interval_narrows_with_the_runs() -> None:
    short, long = (simulate(r2r(4), [(1, 3)], events=800, replicas=n)[0] for n in (16, 256))
    assert long.half_width() < short.half_width() / 2


def test_hold_in_the_simulation() -> None:
    plain, held = (simulate(r2r(8, hold=hold), [(1, 5)], events=2000)[0] for hold in ([], [0]))
    assert held.throughput - plain.throughput == pytest.approx(403.71 - 399.05, abs=1.5)


def test_candidates_see_the_same_requests() -> None:
    alone = [simulate(r2r(4), [B], events=200)[0] for B in [(1, 1), (1, 3)]]
    assert simulate(r2r(4), [(1, 1), (1, 3)], events=200) == alone
    # B = 1 and B = 2 differ little in truth: so must their estimates, although each is off by more.
    eager, two = simulate(r2r(16), [(1, 1), (1, 2)], events=500)
    assert abs(eager.throughput - two.throughput) < eager.standard_error


def test_itineraries_follow_p() -> None:
    spec = r2r(8)
    path = draw_itineraries(spec, replicas=50, steps=400, seed=3)
    assert path.shape == (50, 8, 401)
    assert not path[:, :, 0].any()
    source, target = path[:, :, :-1], path[:, :, 1:]
    assert (target[source == 1] == 0).all()
    assert target[source == 0].mean() == pytest.approx(0.35, abs=0.005)


def test_itineraries_follow_run_lengths() -> None:
    spec = r2r(2, run_lengths=[[0.5, 0, 0.5], None])
    path = draw_itineraries(spec, replicas=100, steps=200, seed=0).reshape(-1, 201)
    runs = [len(run) for row in path for run in "".join(map(str, row.tolist())).split("1")[:-1]]
    assert set(runs) == {1, 3}
    assert np.mean(np.array(runs) == 1) == pytest.approx(0.5, abs=0.03)


def test_fixed_run_lengths_give_a_fixed_cycle() -> None:
    # One request: two steps of 6 ms on model 0, then one of 27.9 ms on model 1, which commits nothing.
    spec = r2r(1, run_lengths=[[0, 1], None], C=[[1, 1], [0, 0]])
    [found] = simulate(spec, [(1, 1)], events=15)
    assert found.throughput == pytest.approx(2 / 0.0399, rel=1e-12)
    assert found.standard_error == pytest.approx(0, abs=1e-9)


def test_geometric_run_lengths_are_the_markov_model() -> None:
    spec = r2r(4, run_lengths=[[0.35 * 0.65**n for n in range(60)], None])
    [found] = simulate(spec, [(1, 3)])
    assert abs(found.throughput - solve(r2r(4), (1, 3)).throughput) <= found.half_width(0.9999)


def test_contention_slows_only_what_runs_together() -> None:
    # Equal latencies keep both models in step: a round takes 10 ms when both requests are on one model, else 15 ms.
    shared = {"N": 2, "P": [[0.7, 0.3], [0.6, 0.4]], "C": [[1, 1], [1, 1]], "L_ms": [10, 10], "delta_ms": 10}
    spec = Spec.parse(shared | {"contention": 1.5})
    [found] = simulate(spec, [(1, 1)])
    on_one = 0.6 / 0.9
    together = on_one**2 + (1 - on_one) ** 2
    expected = 2 / (0.010 * together + 0.015 * (1 - together))
    assert abs(found.throughput - expected) <= found.half_width(0.9999)
    apart = Spec.parse(shared | {"contention": {"factor": 1.5, "devices": [[0], [1]]}})
    assert simulate(apart, [(1, 1)]) == simulate(Spec.parse(shared), [(1, 1)])


def test_contention_accounts_for_the_papers_eager_rows() -> None:
    # 161.3 and 296.9 tok/s in the paper, against 187 and 369 without contention.
    for N, paper in ((4, 161.3), (8, 296.9)):
        spec = r2r(N, P=[[0.724, 0.276], [1, 0]], contention=1.5)
        assert simulate(spec, [(1, 1)])[0].throughput == pytest.approx(paper, rel=0.02)

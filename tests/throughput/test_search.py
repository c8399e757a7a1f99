"""B*, the tie rule, and the ways of searching."""
from __future__ import annotations

from itertools import product

import pytest

from tests.throughput.systems import r2r
from tokenrouter.core import InputError
from tokenrouter.throughput import search as module
from tokenrouter.throughput.search import (
    EXACT_CHAIN,
    EXACT_REDUCED,
    SIMULATION,
    Effort,
    evaluate,
    feasible,
    feasible_count,
    search,
    states,
)
from tokenrouter.throughput.sensitivity import sensitivity
from tokenrouter.throughput.spec import Spec

THREE = {"N": 4, "P": [[0.5, 0.3, 0.2]] * 3, "C": [[1] * 3] * 3, "L_ms": [6, 12, 28], "delta_ms": 2}


@pytest.mark.parametrize(("N", "B1", "eager", "best"), [
    (1, 1, 63.43, 63.43), (2, 2, 98.96, 110.32), (4, 3, 187.19, 207.95), (8, 5, 369.21, 399.05)])
def test_the_papers_setting(N: int, B1: int, eager: float, best: float) -> None:
    found = search(r2r(N))
    assert found.B == (1, B1)
    assert found.best.throughput == pytest.approx(best, abs=0.005)
    assert found.eager.throughput == pytest.approx(eager, abs=0.005)
    assert found.gain == pytest.approx(best / eager, abs=0.0005)
    assert (found.method, found.exhaustive, len(found.table)) == (EXACT_REDUCED, True, N * (N + 1) // 2)


@pytest.mark.parametrize(("N", "models"), [(1, 2), (4, 2), (3, 3)])
def test_feasible_set_is_that_of_equation_22(N: int, models: int) -> None:
    spec = Spec.parse({
        "N": N, "P": [[1 / models] * models] * models, "C": [[1] * models] * models, "L_ms": [1] * models,
        "delta_ms": 1})
    expected = [B for B in product(range(1, N + 1), repeat=models) if sum(b - 1 for b in B) < N]
    assert list(feasible(spec)) == expected
    assert feasible_count(N, models) == len(expected)
    assert list(feasible(spec, {1: 1})) == [B for B in expected if B[1] == 1]


def test_of_equal_ones_the_lexicographically_smallest() -> None:
    # Nobody ever leaves model 0: all B are the same.
    assert search(r2r(4, P=[[1, 0], [1, 0]])).B == (1, 1)
    # Everybody moves together: again.
    assert search(r2r(4, P=[[0, 1], [1, 0]])).B == (1, 1)


def test_fixed_thresholds_are_kept() -> None:
    found = search(r2r(8), fixed={0: 2})
    assert found.B == (2, 5)
    assert {B[0] for B in found.table} == {2}
    with pytest.raises(InputError, match=r"fixed\[0\]: 9"):
        search(r2r(8), fixed={0: 9})
    with pytest.raises(InputError, match="no model 2"):
        search(r2r(8), fixed={2: 1})


def test_coordinate_descent_finds_what_the_full_search_does(monkeypatch: pytest.MonkeyPatch) -> None:
    full = search(r2r(18))
    monkeypatch.setattr(module, "_ALL_REDUCED", 0)
    descent = search(r2r(18))
    assert full.exhaustive and not descent.exhaustive
    assert len(descent.table) < len(full.table) / 2
    assert descent.B == full.B
    resumed = search(r2r(18), start=full.B)
    assert resumed.B == full.B
    assert len(resumed.table) <= len(descent.table)


def test_simulation_chooses_nearly_as_well_as_the_chain() -> None:
    spec = Spec.parse(THREE)
    exact, simulated = search(spec), search(spec, effort=Effort(events=600, replicas=16, states=0))
    assert (exact.method, simulated.method) == (EXACT_CHAIN, SIMULATION)
    assert exact.table[simulated.B] >= 0.995 * exact.best.throughput
    assert abs(simulated.best.throughput - exact.table[simulated.B]) <= 4 * simulated.best.standard_error


def test_hold_is_searched_with_and_compared_with_eager_without() -> None:
    plain, held = search(r2r(8)), search(r2r(8, hold=[0]))
    assert held.best.throughput == pytest.approx(403.71, abs=0.005)
    assert held.eager == plain.eager


def test_evaluate_takes_the_most_exact_method_that_applies() -> None:
    assert evaluate(r2r(4), (1, 3)).method == EXACT_REDUCED
    assert evaluate(r2r(4, L_ms=[6.0, [27.9, 28.9]]), (1, 3)).method == EXACT_CHAIN
    quick = Effort(report_events=300)
    assert evaluate(r2r(4, contention=1.2), (1, 3), quick).method == SIMULATION
    assert states(r2r(4), (1, 1)) == 715
    assert states(r2r(4, contention=1.2), (1, 1)) is None


def test_figures_off_by_a_fifth_cost_little_but_the_count_must_be_right() -> None:
    effects = {effect.change: effect for effect in sensitivity(r2r(8), (1, 5))}
    assert list(effects) == [
        "p = 0.28", "p = 0.42", "L_0 = 4.8 ms", "L_0 = 7.2 ms", "L_1 = 22.3 ms", "L_1 = 33.5 ms", "N = 6", "N = 10"]
    losses = [effect.loss for change, effect in effects.items() if not change.startswith("N")]
    assert all(loss is not None and 0 <= loss <= 0.013 for loss in losses)
    assert effects["L_1 = 33.5 ms"].B == (1, 6)
    # Four requests can never fill a batch of five.
    [halved] = [effect for effect in sensitivity(r2r(8), (1, 5), share=0.5) if effect.change == "N = 4"]
    assert halved.loss is None
    # Nor, where that is fixed, is there any B for them.
    assert "N = 4" not in {effect.change for effect in sensitivity(r2r(8), (1, 5), {1: 5}, share=0.5)}

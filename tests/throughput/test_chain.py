"""The paper's chain against figures of an independent solver."""
from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.throughput.systems import r2r
from tokenrouter.core import InputError
from tokenrouter.throughput.chain import TooManyStates, solve
from tokenrouter.throughput.spec import Spec

HERE = Path(__file__).parent
CASES = json.loads((HERE / "cases.json").read_text())
PAPER = json.loads((HERE / "r2r.json").read_text())


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"N{case['N']}-B{case['B']}")
def test_agrees_on_small_systems(case: dict) -> None:
    fields = {"N": case["N"], "P": case["P"], "C": case["C"], "L_ms": case["L_ticks"], "delta_ms": 1}
    found = solve(Spec.parse(fields), tuple(case["B"]))
    assert found.throughput / 1000 == pytest.approx(case["T_per_tick"], rel=1e-9)
    assert (found.states, found.recurrent) == (case["states"], case["recurrent"])
    assert found.busy == pytest.approx(case["util"], rel=1e-9)


@pytest.mark.parametrize("row", PAPER["rows"], ids=lambda row: f"N{row['N']}-B{row['B1']}")
def test_agrees_on_the_papers_setting(row: dict) -> None:
    fields = {name: PAPER[name] for name in ("P", "C", "L_ms", "delta_ms")}
    found = solve(Spec.parse(fields | {"N": row["N"]}), (row["B0"], row["B1"]))
    assert found.throughput == pytest.approx(row["T"], rel=1e-9)
    assert found.states == row["states"]
    assert found.mean_batch == pytest.approx(row["mean_batch"], rel=1e-9)
    assert found.mean_wait_ms == pytest.approx(row["mean_wait_ms"], rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(("N", "B", "plain", "held"), [(4, (1, 3), 207.95, 208.56), (8, (1, 5), 399.05, 403.71)])
def test_hold_reaches_the_optimal_policy(N: int, B: tuple[int, int], plain: float, held: float) -> None:
    assert solve(r2r(N), B).throughput == pytest.approx(plain, abs=0.005)
    assert solve(r2r(N, hold=[0]), B).throughput == pytest.approx(held, abs=0.005)


def test_does_not_depend_on_the_quantum() -> None:
    coarse, fine = solve(r2r(4), (1, 1)), solve(r2r(4, delta_ms=0.05), (1, 1))
    assert fine == coarse


def test_a_table_of_latencies_counts_by_batch_size() -> None:
    constant = solve(r2r(4), (1, 3)).throughput
    assert solve(r2r(4, L_ms=[[6.0] * 4, [27.9]]), (1, 3)).throughput == constant
    # With B = N every step of model 1 has all four requests: only the last entry can matter.
    full = solve(r2r(4, L_ms=[6.0, [1.0, 2.0, 3.0, 27.9]]), (1, 4)).throughput
    assert full == pytest.approx(solve(r2r(4), (1, 4)).throughput, rel=1e-12)


def test_one_model_serves_all_in_every_step() -> None:
    alone = Spec.parse({"N": 3, "P": [[1.0]], "C": [[1]], "L_ms": [20], "delta_ms": 1})
    assert solve(alone, (1,)).throughput == pytest.approx(150)


def test_several_closed_classes_are_an_error() -> None:
    split = Spec.parse({
        "N": 1, "P": [[0, 0.5, 0.5], [0, 1, 0], [0, 0, 1]], "C": [[1] * 3] * 3, "L_ms": [1, 2, 3], "delta_ms": 1})
    with pytest.raises(InputError, match="2 closed classes"):
        solve(split, (1, 1, 1))


def test_refuses_what_it_cannot_hold() -> None:
    with pytest.raises(TooManyStates, match="more than 100 states"):
        solve(r2r(8), (1, 1), max_states=100)
    with pytest.raises(InputError, match="simulate"):
        solve(r2r(8, contention=1.5), (1, 1))

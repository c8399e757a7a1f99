"""The paper's tables as cells, and the words that choose among them."""
from __future__ import annotations

import pytest

from bench.config import composed
from bench.paper import chosen, main, parse
from bench.reproduce.description import Cell, cells, load, names
from bench.reproduce.running import Outcome, predicted
from bench.reproduce.tabulate import judged
from tests.bench.conftest import ROOT
from tokenrouter.core import InputError

NUMBERS = {
    "figure1a", "figure1b", "figure5", "figure6", "figure7", "figure8", "figure9", "figure10",
    "table2", "table3", "table5", "table6", "table7", "table8", "table9", "table10"}


def cell(name: str, **labels: str) -> Cell:
    """The one cell of a table with these labels."""
    [found] = [one for one in cells(load(name), "cpu") if labels.items() <= dict(one.labels).items()]
    return found


def predict(name: str, **labels: str) -> float:
    found = predicted(composed([f"experiment={name}", *cell(name, **labels).overrides]))
    assert found is not None
    return found


def test_every_table_and_figure_with_numbers_is_described_and_has_an_experiment() -> None:
    assert set(names()) == NUMBERS and names()[:3] == ["figure1a", "figure1b", "figure5"] and names()[-1] == "table10"
    files = {file.stem for file in (ROOT / "conf" / "experiment").glob("*.yaml")}
    assert files >= NUMBERS


@pytest.mark.parametrize("name", sorted(NUMBERS - {"figure6", "figure8", "figure9", "table5", "figure1a"}))
def test_every_kind_of_cell_composes(name: str) -> None:
    """Every label in words, here and on GPUs."""
    description = load(name)
    for on, more in (("cpu", []), ("gpu", ["engine=sglang"])):
        seen: set[tuple[str, str]] = set()
        for one in cells(description, on):  # type: ignore[arg-type]
            words = {(axis, label) for axis, label in one.labels if not label.isdecimal()}
            if not one.because and not words <= seen:
                seen |= words
                composed([f"experiment={description.experiment}", *one.overrides, *more])


def test_figure_10_goes_over_all_B1() -> None:
    found = [dict(one.labels) for one in cells(load("figure10"), "cpu")]
    assert [one["B1"] for one in found if one["account"] == "as stated" and one["N"] == "4"] == ["1", "2", "3", "4"]
    assert len(found) == 2 * (1 + 4 + 8 + 16)
    assert predict("figure10", account="as stated", N="4", B1="1") == pytest.approx(187.19, abs=0.01)
    assert predict("figure10", account="as stated", N="4", B1="3") == pytest.approx(207.95, abs=0.01)


def test_table_6_takes_its_step_times_from_the_column_of_one_request() -> None:
    paper_row = {record["row"]: record["tok/s"] for record in load("table6").paper if record["N"] == "1"}
    for account in ("as stated", "contention"):  # both models never run at once, so contention plays no part
        first = predict("table6", account=account, row="TokenRouter", N="1")
        for row in ("- router CUDA graph", "- LLM CUDA graph", "- SLM CUDA graph"):
            ratio = predict("table6", account=account, row=row, N="1") / first
            assert ratio == pytest.approx(paper_row[row] / paper_row["TokenRouter"], rel=0.01)
    assert predict("table6", account="as stated", row="- async execution", N="4") == pytest.approx(139.06, abs=0.01)
    assert predict("table6", account="as stated", row="TokenRouter", N="4") == pytest.approx(207.95, abs=0.01)


def test_table_7_takes_its_step_times_from_the_column_of_one_request() -> None:
    for record in load("table7").paper:
        if record["N"] == "1":
            found = predict("table7", account="as stated", strategy=record["strategy"], N="1")
            assert found == pytest.approx(record["tok/s"], rel=0.01)


def test_tables_that_share_runs_share_them() -> None:
    for one, other in (("figure5", "figure6"), ("figure8", "figure9")):
        assert load(one).experiment == load(other).experiment == "figure5"
        assert cells(load(one), "cpu") == cells(load(other), "cpu")
    ablation = {found.overrides for found in cells(load("table6"), "cpu")}
    assert {found.overrides for found in cells(load("figure1a"), "cpu")} < ablation


def test_what_has_no_code_is_not_run_and_says_so() -> None:
    absent = cell("table2", algo="R-Stitch", system="Official Code")
    assert absent.because == "the algorithm's code is not released"
    assert "not run: the algorithm's code" in judged(Outcome(absent, {}, None), [])


@pytest.mark.parametrize(("words", "said"), [
    (["figure=4"], "figure4: allowed is one of figure1a, figure1b, "),
    (["figure=10", "table=6"], "allowed is one of figure=, table=, all, list, write"),
    ([], "no words: allowed is one of"), (["all", "table=6"], "allowed is one of"),
    (["table=6", "N=[0]"], "N.*allowed is"), (["figure=10", "repeats=0"], "repeats=0: allowed is"),
])
def test_bad_words(words: list[str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        parse(words)


def test_labels_and_counts_narrow_a_table() -> None:
    options, [name], overrides, _ = parse(["figure=5", "only=[R2R,ME,TokenRouter]", "load.seed=3"])
    found = [dict(one.labels) for one in chosen(load(name), options, overrides)]
    assert {(one["algo"], one["system"]) for one in found} == {("R2R", "TokenRouter"), ("ME", "TokenRouter")}
    assert len(found) == 8 and overrides == ["load.seed=3"]
    options, _, _, _ = parse(["table=6", "N=8"])
    assert {dict(one.labels)["N"] for one in chosen(load("table6"), options, [])} == {"8"}
    with pytest.raises(InputError, match=r"only=\['nobody'\]: allowed are labels of these tables: .*TokenRouter"):
        main(["table=2", "only=nobody"])


def test_an_engine_for_gpus_chooses_their_cells() -> None:
    options, _, overrides, _ = parse(["table=3", "engine=sglang"])
    assert {dict(one.labels)["pair"] for one in chosen(load("table3"), options, overrides)} == {
        "0.6B + 8B", "0.6B + 32B", "1.7B + 8B", "4B + 8B"}

"""The paper's tables as cells, runs, rows and words. Runs are stood in for: nothing is started."""
from __future__ import annotations

import json
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from bench import paper, series
from bench.paper import chosen, main, parse
from bench.reproduce import document
from bench.reproduce.description import Cell, Claim, Description, cells, load, names
from bench.reproduce.plot import draw
from bench.reproduce.running import Options, Outcome, Series, composed, groups, predicted
from bench.reproduce.tabulate import claims, completed, dominated_area, judged, tabulate, value
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


def run_summary(command: list[str], throughput: float = 100.0, tokens: int = 200, minute: int = 0) -> dict[str, Any]:
    """Of a run of bench/run.py with these overrides, each of whose answers has so many tokens; made in that minute."""
    given = dict(word.split("=", 1) for word in command)
    requests = int(given["load.num_requests"])
    models = ["large"] if given.get("system") == "llm_only" else ["small", "large"]
    return {
        "algo": given.get("algo"), "threshold": 0.5, "duration_s": 20.0, "quality": None,
        "workload": "aime", "engine": "torch", "sampling": {}, "hardware": {"cores": 2},
        "models": {role: {"id": role, "params": 1_000_000} for role in models}, "completed": requests,
        "load": {"num_requests": requests, "concurrency": 4, "seed": 0},
        "total_output_tokens": tokens * requests, "output_throughput": throughput,
        "steady": {"output_throughput": 1.1 * throughput}, "mean_ttft_ms": 5.0, "mean_e2el_ms": 2000.0,
        "routing": {"predicted_throughput": None, "llm_token_fraction": 0.1},
        "validity": {"valid": True, "reasons": []},
        "provenance": {"command": " ".join(["python bench/run.py", *command]), "models_hash": "m",
                       "data_source": "embedded:x", "data_version": "1", "evidence": "measured", "cpu": "c",
                       "gpu": None, "git_sha": "abcdefgh", "dirty": False,
                       "date": f"2026-01-01T{minute // 60:02}:{minute % 60:02}:00"}}


class Runs:
    """Stands for bench/run.py: `speed` says the tokens/s of a system; one that it lacks fails. `tokens`: of an answer,
    where it is not 200."""

    def __init__(self, speed: dict[str, float]) -> None:
        self.speed, self.made, self.stop_at = speed, [], -1
        self.tokens: dict[str, int] = {}

    def __call__(self, command: list[str]) -> int:
        *overrides, folder = command[2:]
        self.made.append(overrides)
        system = next(word for word in overrides if word.startswith("system=")).removeprefix("system=")
        if len(self.made) == self.stop_at:
            raise series.Interrupted(signal.SIGTERM)
        if system not in self.speed:
            return 1
        file = Path(folder.removeprefix("hydra.run.dir="), "summary.json")
        file.parent.mkdir(parents=True)
        tokens = self.tokens.get(system, 200)
        summary = run_summary(overrides, self.speed[system], tokens, len(self.made))
        file.write_text(json.dumps(summary))
        file.with_name("requests.jsonl").write_text("".join(json.dumps({
            "id": f"p{i}", "sample": 0, "output_tokens": tokens, "ttft_ms": 5.0, "e2el_ms": 2000.0, "grade": None,
            "error": None}) + "\n" for i in range(summary["completed"])))
        return 0

    def measured(self) -> list[tuple[str, int]]:
        """System and number of requests of each run, without trials."""
        given = [dict(word.split("=", 1) for word in words) for words in self.made]
        return [(one["system"], int(one["load.num_requests"])) for one in given if int(one["load.num_requests"]) != 8]


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    stand_in = Runs({"llm_only": 100.0, "official": 10.0, "tokenrouter": 400.0})
    monkeypatch.setattr(series, "_execute", stand_in)
    return stand_in


def execute(
    tmp_path: Path, systems: Sequence[str] = ("LLM-only", "Official Code", "TokenRouter"), **options: Any,
) -> tuple[Description, list[Outcome]]:  # fmt: skip
    """Table 2's R2R."""
    table = load("table2")
    made = Series(table, Options(out=str(tmp_path), **options), [])
    outcomes = made.prepare([one for one in cells(table, "cpu")
                             if dict(one.labels)["algo"] == "R2R" and dict(one.labels)["system"] in systems])
    made.execute(outcomes)
    return table, outcomes


def test_compared_systems_take_turns_on_the_same_requests(runs: Runs, tmp_path: Path) -> None:
    execute(tmp_path, repeats=2, minutes=1.0, longest=4.0)
    fastest = round(60 * 440 / 200)  # the trial's steady tokens/s
    slowest = round(4 * 60 * 11 / 200)  # fewer than 10 a client
    turn = [("llm_only", fastest), ("official", slowest), ("tokenrouter", fastest)]
    assert runs.measured() == turn * 2
    assert len(runs.made) == 9  # a trial each


def test_what_is_there_is_not_run_again(runs: Runs, tmp_path: Path) -> None:
    runs.stop_at = 3
    with pytest.raises(series.Interrupted):
        execute(tmp_path, repeats=2, requests=4)
    _, outcomes = execute(tmp_path, repeats=2, requests=4)
    assert len(runs.made) == 7 and [len(outcome.summaries) for outcome in outcomes] == [2, 2, 2]
    execute(tmp_path, repeats=2, requests=5)  # cells of another size are others
    assert len(runs.made) == 13


def test_a_slow_cell_serves_a_request_a_client_at_least(runs: Runs, tmp_path: Path) -> None:
    runs.speed["official"] = 0.1
    execute(tmp_path, repeats=1, minutes=1.0, longest=2.0)
    assert dict(runs.measured())["official"] == 4


def test_the_same_cell_with_more_requests_is_another_run(runs: Runs, tmp_path: Path) -> None:
    """A faster system that is selected later gives all of them more to serve."""
    execute(tmp_path, ["LLM-only", "Official Code"], repeats=2, minutes=1.0, longest=60.0)
    assert dict(runs.measured())["llm_only"] == 40
    made = len(runs.made)
    _, outcomes = execute(tmp_path, repeats=2, minutes=1.0, longest=60.0)
    assert [system for system, _ in runs.measured()[4:]] == ["llm_only", "official", "tokenrouter"] * 2
    assert len(runs.made) == made + 7 and [outcome.requests for outcome in outcomes] == [132] * 3
    again = Series(load("table2"), Options(out=str(tmp_path), minutes=1.0, longest=60.0), [])
    found = again.prepare([outcome.cell for outcome in outcomes])
    again.collect(found)
    assert [one.summaries for one in found] == [outcome.summaries for outcome in outcomes]  # those made last
    assert [one.folders for one in found] == [outcome.folders for outcome in outcomes]


def test_runs_without_an_answer_are_not_collected(runs: Runs, tmp_path: Path) -> None:
    table, outcomes = execute(tmp_path, repeats=2, requests=4)
    file = outcomes[0].folders[1] / "summary.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"completed": 0}))
    again = Series(table, Options(out=str(tmp_path), requests=4), [])
    found = again.prepare([outcome.cell for outcome in outcomes])
    again.collect(found)
    assert [len(one.summaries) for one in found] == [1, 2, 2]


def test_a_cell_that_fails_leaves_the_others(runs: Runs, tmp_path: Path) -> None:
    del runs.speed["official"]
    table, outcomes = execute(tmp_path, repeats=3, requests=4)
    frame = tabulate(table, outcomes).set_index("system")
    assert frame.loc["Official Code", "valid"].tolist()[0] == "the run failed"
    assert frame.loc["TokenRouter", "valid"].tolist()[0] == "yes" and len(runs.made) == 7


def test_rows_and_claims(runs: Runs, tmp_path: Path) -> None:
    table, outcomes = execute(tmp_path, repeats=3, requests=4)
    frame = tabulate(table, outcomes)
    own = frame[(frame["system"] == "TokenRouter") & (frame["algo"] == "R2R")].set_index("measure")
    assert own.loc["tok/s", "paper"] == 244.56 and own.loc["tok/s", "measured"] == 400.0
    assert own.loc["e2el s", "measured"] == 2.0 and own.loc["e2el s", "paper"] == 270.19
    absent = frame[(frame["algo"] == "CITER") & (frame["measure"] == "tok/s")]
    assert absent["valid"].tolist() == ["not measured"] * 3 and absent["paper"].tolist() == [123.72, 17.16, 149.31]
    found = {claim["claim"]: claim for claim in claims(table, frame)}
    over = found["TokenRouter's throughput over Official Code's, original settings, N = 4"]
    assert over["measured"] == [40.0, 40.0] and over["paper"] == [2.73, 21.97] and over["predicted"] == []


def test_cells_that_are_compared_take_turns_wherever_their_axis_stands(tmp_path: Path) -> None:
    """Table 6 compares its rows, and has N behind them."""
    table = load("table6")
    found = [one for one in cells(table, "cpu") if not one.because]
    taking_turns = groups(Series(table, Options(out=str(tmp_path)), []).prepare(found))
    compared = [group for group in taking_turns if group[0].cell.compare]
    assert compared and all(len(group) > 1 for group in compared)
    assert all(len({outcome.values["load"]["concurrency"] for outcome in group}) == 1 for group in compared)


def test_runs_that_took_no_turns_are_not_valid(runs: Runs, tmp_path: Path) -> None:
    table, outcomes = execute(tmp_path, repeats=3, requests=4)
    for number, outcome in enumerate(outcomes):
        for repeat, summary in enumerate(outcome.summaries):
            summary["provenance"]["date"] = f"2026-01-01T00:0{number}:0{repeat}"
    valid = tabulate(table, outcomes)["valid"].dropna().iloc[0]
    assert valid == "no: compared runs differ in when they were made: not in turns"
    outcomes[1].summaries[2]["provenance"]["git_sha"] = "another"
    assert "differ in git_sha" in tabulate(table, outcomes)["valid"].dropna().iloc[0]


def test_compared_runs_of_other_data_are_not_valid(runs: Runs, tmp_path: Path) -> None:
    table, outcomes = execute(tmp_path, repeats=3, requests=4)
    outcomes[0].summaries[0]["provenance"]["data_source"] = "embedded:y"
    assert set(tabulate(table, outcomes)["valid"].dropna().iloc[:3]) == {"no: compared runs differ in data_source"}
    assert judged(Outcome(outcomes[0].cell, {}, None, summaries=outcomes[0].summaries[:1]), []) == (
        "no: 1 repeats, comparisons need 3")


def test_systems_that_answer_alike_must_write_as_much(runs: Runs, tmp_path: Path) -> None:
    runs.tokens = {"llm_only": 100, "official": 195}  # the large model alone answers otherwise
    table, outcomes = execute(tmp_path / "alike", repeats=3, requests=4)
    assert set(tabulate(table, outcomes)["valid"].iloc[:9]) == {"yes"}
    runs.tokens["official"] = 150
    table, outcomes = execute(tmp_path / "unlike", repeats=3, requests=4)
    assert set(tabulate(table, outcomes)["valid"].iloc[:9]) == {"no: compared runs differ in output tokens"}


def test_lengths_are_compared_on_the_requests_that_all_answered(runs: Runs, tmp_path: Path) -> None:
    table, outcomes = execute(tmp_path, repeats=3, requests=4)
    file = outcomes[1].folders[0] / "requests.jsonl"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:1]))
    assert set(tabulate(table, outcomes)["valid"].iloc[:9]) == {"yes"}


def test_uncommitted_code_is_not_valid(runs: Runs, tmp_path: Path) -> None:
    table, outcomes = execute(tmp_path, repeats=3, requests=4)
    outcomes[1].summaries[1]["provenance"]["dirty"] = True
    frame = tabulate(table, outcomes).set_index("system")
    assert set(frame.loc["Official Code", "valid"].iloc[:3]) == {"no: code that is not committed"}
    assert set(frame.loc["Official Code", "commit"].iloc[:3]) == {"abcdefg, abcdefg with changes"}
    assert frame.loc["TokenRouter", ["valid", "commit"]].iloc[0].tolist() == ["yes", "abcdefg"]


def of_figure_10(minutes: Sequence[int]) -> tuple[Description, list[Outcome]]:
    """Its first two cells, which take turns without being compared, in three repeats made in these minutes: A B A .."""
    table = load("figure10")
    found = [one for one in cells(table, "cpu") if dict(one.labels)["N"] == "4"][:2]
    return table, [Outcome(one, {}, None, summaries=[
        run_summary([f"load.num_requests={40 + number}"], minute=minute) for minute in minutes[number::2]])
        for number, one in enumerate(found)]


def test_cells_that_are_not_compared_take_turns_too() -> None:
    table, outcomes = of_figure_10(range(6))
    assert outcomes[0].cell.compare is None and tabulate(table, outcomes)["valid"].iloc[:2].tolist() == ["yes", "yes"]
    outcomes[1].summaries[0]["provenance"]["git_sha"] = "another"
    assert set(tabulate(table, outcomes)["valid"].iloc[:2]) == {"no: compared runs differ in git_sha"}
    table, outcomes = of_figure_10([0, 3, 1, 4, 2, 5])
    assert set(tabulate(table, outcomes)["valid"].iloc[:2]) == {
        "no: compared runs differ in when they were made: not in turns"}


def test_what_was_kept_is_not_valid_beside_what_took_its_turns_without_it() -> None:
    table, outcomes = of_figure_10(range(6))
    earlier = tabulate(table, outcomes)
    every = [outcome.cell for outcome in outcomes]
    found = completed(table, tabulate(table, outcomes), earlier, every, every[:1])["valid"].iloc[:2].tolist()
    assert found == ["yes", "no: not in turns with what was measured since"]
    found = completed(table, tabulate(table, outcomes), earlier, every, [])["valid"].iloc[:2].tolist()
    assert found == ["yes", "yes"]


def test_cells_are_not_judged_by_those_of_an_earlier_command_that_they_are_not_compared_with() -> None:
    table, outcomes = of_figure_10(range(6))
    outcomes[0].collected = True
    for summary in outcomes[0].summaries:
        summary["provenance"] |= {"git_sha": "another", "date": "2025-01-01T00:00:00"}
    assert tabulate(table, outcomes)["valid"].iloc[:2].tolist() == [
        "no: compared runs differ in when they were made: not in turns with what was measured since", "yes"]


def test_fields_of_summaries() -> None:
    summary = {"mean_tpot_ms": 4.0, "quality": None, "routing": {"breakdown_ms": {"small": {"page allocation": 0.5}}}}
    assert value(summary, "1000/mean_tpot_ms") == 250 and value(summary, "mean_tpot_ms/1000") == 0.004
    assert value(summary, "routing.breakdown_ms.small.page allocation") == 0.5
    assert value(summary, "quality.value") is None and value(summary, "routing.nothing.at.all") is None


def frame_of(table: Description, rows: list[dict[str, Any]]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=[*table.axes, *document.COLUMNS])


def test_ratios_are_to_the_strongest_and_over_all_places() -> None:
    table = load("figure5")
    rows = [{"algo": algo, "workload": "agentic", "N": "4", "system": system, "measure": "tok/s", "measured": speed}
            for algo, speeds in (("R2R", (10.0, 20.0, 60.0)), ("ME", (10.0, None, 50.0)))
            for system, speed in zip(("Std. Serving", "Official Code", "TokenRouter"), speeds, strict=True)]
    assert claims(table, frame_of(table, rows))[0]["measured"] == [3.0, 5.0]


def test_the_best_threshold_is_judged_by_what_is_measured_there() -> None:
    table = load("figure10")
    rows = [{"account": account, "N": "4", "B1": str(b), "measure": "tok/s", "predicted": p, "measured": m}
            for account, measured in (("as stated", (90.0, 100.0)), ("contention", (100.0, 80.0)))
            for b, p, m in zip((1, 2), (1.0, 2.0), measured, strict=True)]
    assert claims(table, frame_of(table, rows))[0]["measured"] == [0.8, 1.0]


def all_valid(table: Description, **columns: Any) -> pd.DataFrame:
    """The rows of a table all of whose cells are measured on a CPU and valid."""
    return frame_of(table, [dict(one.labels) | {"measure": measure, "measured": 1.0, "valid": "yes"} | columns
                            for one in cells(table, "cpu") if not one.because for measure in table.measures])


def validity(table: Description, frame: pd.DataFrame) -> list[bool]:
    return [claim["valid"] for claim in claims(table, frame)]


def test_a_claim_is_valid_if_all_that_it_speaks_of_is() -> None:
    table = load("table2")
    frame = all_valid(table)
    assert validity(table, frame) == [True, True, True]  # R-Stitch's official code cannot be run and is not missed
    place = (frame["algo"] == "CITER") & (frame["system"] == "Official Code")
    for changes in ({"measured": float("nan"), "valid": "the run failed"}, {"valid": "no: 1 repeats"}):
        broken = frame.copy()
        broken.loc[place, list(changes)] = list(changes.values())
        assert validity(table, broken) == [False, False, True]
    assert validity(table, frame[~place]) == [False, False, True]
    assert validity(table, frame[frame["system"] == "Official Code"]) == [False, False, False]


def test_claims_across_cells_that_took_no_turns_are_not_valid() -> None:
    assert validity(load("figure1b"), all_valid(load("figure1b"))) == [False] * 6  # N = 16 over N = 1
    assert validity(load("figure5"), all_valid(load("figure5"))) == [True, True, False, False]
    assert validity(load("figure7"), all_valid(load("figure7"))) == [True, False]  # query-level is a block of its own
    for name in ("figure10", "table7"):
        assert all(validity(load(name), all_valid(load(name))))


def test_claims_of_an_ablation_are_of_one_account() -> None:
    for name in ("figure1a", "table6"):
        assert all("account" in claim.where for claim in load(name).claims)
        words = [claim.claim for claim in load(name).claims]
        assert len(set(words)) == len(words)


def test_the_steady_window_stands_beside_the_prediction(runs: Runs, tmp_path: Path) -> None:
    table, outcomes = execute(tmp_path, repeats=3, requests=4)
    for summary in outcomes[2].summaries:
        summary["routing"]["predicted_throughput"] = 450.0
    frame = tabulate(table, outcomes)
    text = document.section(table, frame)
    assert "| 400 (paper 244.6, steady 440, predicted 450) |" in text and "| 10 (paper 89.62) " in text
    own = document.readable(table, frame).set_index(["system", "measure"]).loc[("TokenRouter", "tok/s")].iloc[0]
    assert own["steady"] == "440" and own["steady/predicted"] == "0.978" and own["measured/paper"] == "1.636"
    assert frame[frame["measure"] != "tok/s"]["steady"].isna().all()
    figure10, emulated = of_figure_10(range(6))
    made = tabulate(figure10, emulated).iloc[0]
    assert made["measured"] == pytest.approx(110.0) and pd.isna(made["steady"])  # it is the steady window itself


def test_claims_that_are_predicted_show_the_steady_window() -> None:
    table = load("figure1b")
    frame = all_valid(table)
    speed = frame["measure"] == "tok/s"
    frame.loc[speed & (frame["N"] == "16"), ["measured", "steady", "predicted"]] = [6.0, 6.5, 7.0]
    frame.loc[speed & (frame["N"] == "1"), ["steady", "predicted"]] = [1.0, 1.0]
    lines = document.section(table, frame).splitlines()
    [line] = [line for line in lines if "TokenRouter's throughput at N = 16 over N" in line]
    assert [word.strip() for word in line.split("|")[2:5]] == ["8.61", "7", "6* (steady 6.5)"]


def test_a_kept_table_without_the_steady_window_is_read(tmp_path: Path) -> None:
    table = load("table2")
    all_valid(table, steady=1.0).drop(columns="steady").to_csv(tmp_path / "table2.csv", index=False)
    found = document.read(table, tmp_path)
    assert found is not None and found["steady"].isna().all() and (found["measured"] == 1.0).all()


def test_dominated_area() -> None:
    assert dominated_area([(2.0, 1.0), (1.0, 2.0), (0.5, 0.5)]) == 3.0 and dominated_area([]) == 0.0
    table = load("figure7")
    rows = [{"N": "16", "threshold": "0.5", "system": system, "measure": measure, "measured": number}
            for system, numbers in (("TokenRouter", (4.0, 0.5)), ("Official Code", (2.0, 0.5)))
            for measure, number in zip(("tok/s", "quality"), numbers, strict=True)]
    assert claims(table, frame_of(table, rows))[0]["measured"] == [2.0, 2.0]
    assert Claim(claim="x", kind="area").to == []


@pytest.mark.parametrize("name", ["figure1b", "figure5", "figure10", "table9", "table10"])
def test_a_picture_is_drawn(name: str, tmp_path: Path) -> None:
    table = load(name)
    rows = [dict(one.labels) | {
        "measure": measure, "measured": 10.0 + i, "least": 9.0, "greatest": 200.0, "predicted": 9.5, "steady": 10.5}
            for i, one in enumerate(cells(table, "cpu")) for measure in table.measures]
    draw(table, frame_of(table, rows), tmp_path / "picture.png")
    assert (tmp_path / "picture.png").is_file()


def test_files_of_a_command(runs: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["table=2", "only=[R2R]", "requests=4", "repeats=3", f"out={tmp_path}"])
    out = capsys.readouterr().out
    assert "table2 1/9: R2R, N=4, LLM-only: repeat 1 of 3, 4 requests" in out
    page = (tmp_path / "table2.md").read_text()
    assert page.startswith("# Table 2: ") and "Analogue: the embedded pair" in page and "| 244.6" in page
    assert len(pd.read_csv(tmp_path / "table2.csv")) == 36 and (tmp_path / "table2.png").stat().st_size > 1000
    main(["table=2", "only=[R2R]", "requests=4", "repeats=3", f"out={tmp_path}", "dry"])
    assert len(runs.made) == 9 and (tmp_path / "table2.md").read_text() == page  # what is there is shown, nothing run


def test_a_stopped_command_says_what_is_kept(runs: Runs, tmp_path: Path) -> None:
    runs.stop_at = 2
    with pytest.raises(series.Interrupted) as stopped:
        main(["table=2", "only=[R2R]", "requests=4", f"out={tmp_path}"])
    assert stopped.value.kept == f"finished runs and a table of them stay in {tmp_path}; the same command goes on"
    frame = pd.read_csv(tmp_path / "table2.csv").set_index("system")
    assert frame.loc["LLM-only", "measured"].notna().any() and frame.loc["TokenRouter", "measured"].isna().all()


def test_nothing_to_run_is_said(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(paper, "MEASURED", tmp_path / "measured")
    main(["table=8", "engine=sglang", f"out={tmp_path}", "keep"])
    assert capsys.readouterr().err == f"table8: nothing to run on GPUs: {load('table8').left_out}\n"
    assert not runs.made and not list(tmp_path.iterdir())  # what was measured on a CPU stays


def test_the_document_is_what_its_command_makes_of_the_kept_tables() -> None:
    text = document.DOCUMENT.read_text()
    assert document.render(text, paper.MEASURED) == text


def test_a_document_without_a_block_is_refused() -> None:
    text = document.DOCUMENT.read_text().replace("<!-- table2 -->", "")
    with pytest.raises(InputError, match="has 0 blocks 'table2'"):
        document.render(text, paper.MEASURED)


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables are kept, and shown, in copies."""
    monkeypatch.setattr(paper, "MEASURED", tmp_path / "measured")
    monkeypatch.setattr(document, "DOCUMENT", tmp_path / "doc.md")
    document.DOCUMENT.write_text((ROOT / "docs" / "reproduction.md").read_text())


@pytest.mark.usefixtures("measured")
def test_what_was_kept_is_shown(runs: Runs, tmp_path: Path) -> None:
    main(["table=2", "only=[R2R]", "requests=4", "repeats=3", f"out={tmp_path}", "keep"])
    text = document.DOCUMENT.read_text()
    assert "| TokenRouter's throughput over Official Code's, original settings, N = 4" in text
    [row] = [line for line in text.splitlines() if line.startswith("| R2R ") and "400 (paper 244.6)" in line]
    assert "10 (paper 89.62)" in row
    assert document.render(text, tmp_path / "measured") == text


def kept(runs: Runs, folder: Path, *words: str) -> pd.DataFrame:
    main(["table=2", "requests=4", "repeats=1", f"out={folder}", "keep", *words])
    frame = pd.read_csv(paper.MEASURED / "table2.csv")
    return frame[frame["measure"] == "tok/s"].set_index(["algo", "system"])["measured"]


@pytest.mark.usefixtures("measured")
def test_what_was_kept_stays_but_beside_other_turns(runs: Runs, tmp_path: Path) -> None:
    kept(runs, tmp_path / "first", "only=[R2R,CITER]")
    runs.speed["tokenrouter"] = 500.0
    found = kept(runs, tmp_path / "second", "only=[R2R,LLM-only,TokenRouter]")
    assert found["R2R"].to_dict() == pytest.approx(
        {"LLM-only": 100.0, "Official Code": float("nan"), "TokenRouter": 500.0}, nan_ok=True)
    assert found["CITER"].to_dict() == {"LLM-only": 100.0, "Official Code": 10.0, "TokenRouter": 400.0}
    assert found["Co-LLM"].isna().all()
    text = document.DOCUMENT.read_text()
    assert document.render(text, paper.MEASURED) == text


@pytest.mark.usefixtures("measured")
def test_a_stopped_command_leaves_what_was_kept(runs: Runs, tmp_path: Path) -> None:
    kept(runs, tmp_path / "first", "only=[R2R]")
    table, text = (paper.MEASURED / "table2.csv").read_text(), document.DOCUMENT.read_text()
    runs.speed["llm_only"], runs.stop_at = 50.0, len(runs.made) + 2
    with pytest.raises(series.Interrupted):
        kept(runs, tmp_path / "second", "only=[R2R]")
    assert (paper.MEASURED / "table2.csv").read_text() == table and document.DOCUMENT.read_text() == text
    assert kept(runs, tmp_path / "second", "only=[R2R]")["R2R"]["LLM-only"] == 50.0


@pytest.mark.usefixtures("measured")
def test_tables_that_are_through_are_kept_and_shown_when_the_next_is_stopped(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(paper, "names", lambda: ["table2", "table5"])
    runs.stop_at = 5
    with pytest.raises(series.Interrupted):
        main(["all", "only=[R2R]", "requests=4", "repeats=1", f"out={tmp_path}", "keep"])
    assert [file.name for file in paper.MEASURED.glob("*.csv")] == ["table2.csv"]
    text = document.DOCUMENT.read_text()
    assert "400* (paper 244.6)" in text and document.render(text, paper.MEASURED) == text


@pytest.mark.usefixtures("measured")
def test_older_runs_replace_nothing_that_was_kept(runs: Runs, tmp_path: Path) -> None:
    main(["table=2", "only=[R2R]", "requests=4", "repeats=1", f"out={tmp_path / 'old'}"])
    runs.speed["tokenrouter"] = 500.0
    kept(runs, tmp_path / "new", "only=[R2R]")
    assert kept(runs, tmp_path / "old", "only=[CITER]")["R2R"]["TokenRouter"] == 500.0
    assert kept(runs, tmp_path / "old", "dry")["R2R"]["TokenRouter"] == 500.0
    assert kept(runs, tmp_path / "old", "only=[R2R]")["R2R"]["TokenRouter"] == 400.0  # asked for, and there already

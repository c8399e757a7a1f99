"""The paper's cells as rows, claims and pictures. Runs are stood in for."""
from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from bench.reproduce import document
from bench.reproduce.description import Claim, Description, cells, load
from bench.reproduce.plot import draw
from bench.reproduce.running import Options, Outcome, Series, groups
from bench.reproduce.tabulate import claims, completed, dominated_area, judged, tabulate, value
from tests.bench.paper_runs import Runs, execute, run_summary


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


def test_gains_are_of_one_system_over_each_other_one(runs: Runs, tmp_path: Path) -> None:
    table, outcomes = execute(tmp_path, repeats=3, requests=4)
    outcomes[1].summaries[0]["output_throughput"] = 8.0  # in one turn, slower than ever
    outcomes[1].summaries[1]["mean_e2el_ms"] = 2500.0
    frame = tabulate(table, outcomes).set_index(["algo", "measure", "system"]).sort_index()
    throughput = frame.loc[("R2R", "tok/s")]
    official = throughput.loc["Official Code"]
    assert official["gain"] == pytest.approx(40) and official["gain_low"] == pytest.approx(40)
    assert 40 < official["gain_high"] <= 50
    assert frame.loc[("R2R", "e2el s", "Official Code"), "gain"] == 1.0
    assert pd.isna(throughput.loc["TokenRouter", "gain"])
    assert frame.loc["CITER"]["gain"].isna().all()
    text = document.section(table, frame.reset_index())
    assert "gain 40.00 [40.00, " in text and "Gain: the factor by which TokenRouter is better" in text


def test_gains_are_of_the_turns_that_both_have(runs: Runs, tmp_path: Path) -> None:
    table, outcomes = execute(tmp_path, repeats=3, requests=4)
    del outcomes[1].summaries[1:], outcomes[1].folders[1:]
    frame = tabulate(table, outcomes).set_index(["algo", "measure", "system"]).sort_index()
    assert frame.loc[("R2R", "tok/s", "Official Code"), "gain"] == pytest.approx(40)
    outcomes[2].summaries.clear()
    frame = tabulate(table, outcomes).set_index(["algo", "measure", "system"]).sort_index()
    assert frame.loc["R2R"]["gain"].isna().all()


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
    assert validity(load("figure7"), all_valid(load("figure7"))) == [True] * 3  # of three blocks that take turns
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
    assert "| 400 (paper 244.6, steady 440, predicted 450) |" in text and "| 10 (paper 89.62, gain 40" in text
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
    found = claims(table, frame_of(table, rows))
    assert found[0]["measured"] == [2.0, 2.0] and found[0]["areas"] == [(2.0, 0.0, 0.0), (1.0, 0.0, 0.0)]
    assert [claim["measured"] for claim in found[1:]] == [[], []]
    assert Claim(claim="x", kind="area").to == []


def test_an_area_is_shown_with_what_its_points_intervals_make_of_it() -> None:
    table = load("figure7")
    rows = [{"N": "16", "threshold": threshold, "system": system, "measure": measure, "measured": number,
             "least": number / 2, "greatest": number * factor}
            for system, threshold, numbers in (("TokenRouter", "0.5", (4.0, 0.5)), ("SLM-only", "none", (2.0, 0.25)),
                                               ("LLM-only", "none", (1.0, 1.0)))
            for measure, number, factor in zip(("tok/s", "quality"), numbers, (1.5, 1.0), strict=True)]
    lines = document.section(table, frame_of(table, rows)).splitlines()
    [line] = [line for line in lines if "best model alone" in line]
    assert "2* (2 [0.5, 3] over 1 [0.25, 1.5])" in line


def test_query_level_routing_takes_turns_with_what_it_is_held_against(tmp_path: Path) -> None:
    table = load("figure7")
    taking_turns = groups(Series(table, Options(out=str(tmp_path)), []).prepare(cells(table, "cpu")))
    assert [len(group) for group in taking_turns] == [18]


@pytest.mark.parametrize("name", ["figure1b", "figure5", "figure10", "table9", "table10"])
def test_a_picture_is_drawn(name: str, tmp_path: Path) -> None:
    table = load(name)
    rows = [dict(one.labels) | {
        "measure": measure, "measured": 10.0 + i, "least": 9.0, "greatest": 200.0, "predicted": 9.5, "steady": 10.5}
            for i, one in enumerate(cells(table, "cpu")) for measure in table.measures]
    draw(table, frame_of(table, rows), tmp_path / "picture.png")
    assert (tmp_path / "picture.png").is_file()

"""The paper's cells as runs, and the files of a command. Runs are stood in for."""
from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from bench import paper, series
from bench.paper import main
from bench.reproduce.description import load
from bench.reproduce.running import Options, Series
from bench.reproduce.tabulate import tabulate
from tests.bench.paper_runs import Runs, execute


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

"""What is kept of the paper's tables, and the document that shows it. Runs are stood in for."""
from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from bench import paper, series
from bench.paper import main
from bench.reproduce import document
from tests.bench.conftest import ROOT
from tests.bench.paper_runs import Runs
from tokenrouter.core import InputError


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
    assert "10 (paper 89.62, gain 40.00 [40.00, 40.00])" in row
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

"""What becomes an entry, what is refused, and that the committed table is that of the committed entries."""
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench import submit as submitting
from bench.entries import ROOT, load_entries
from bench.leaderboard import html, markdown, readme, write
from bench.submit import submit
from tests.bench.test_report import summary as shown
from tokenrouter.core import InputError


def make_run(folder: Path, **changes: Any) -> Path:
    """A valid run's files; `a__b=c` sets summary["a"]["b"]."""
    summary = shown() | {
        "schema_version": 1, "threshold": 0.5, "sampling": {"temperature": 0.0},
        "quality": {"value": 0.9, "ci95": [0.8, 0.95], "n": 20, "metric": "accuracy", "pass_at_k": None},
        "validity": {"valid": True, "kind": "full", "reasons": []},
        "median_tpot_ms": 1.5, "p99_tpot_ms": 2.0,
    }
    summary["hardware"] = {"device": "cpu", "threads": 1, "cores": 2}
    summary["load"] = {"mode": "closed", "concurrency": 4, "num_requests": 80, "seed": 0}
    summary["routing"] |= {"P": [[0.9, 0.1], [1.0, 0.0]]}
    summary["provenance"] |= {
        "models_hash": "m", "git_sha": "0123456789", "dirty": False, "config_hash": f"{folder.name}abcdefgh",
        "command": f"python bench/run.py {folder.name}",
    }
    for key, value in changes.items():
        at, *path = key.split("__")
        inner: Any = summary
        for step in path:
            inner, at = inner[at], step
        inner[at] = value
    folder.mkdir(parents=True)
    (folder / "summary.json").write_text(json.dumps(summary))
    (folder / "config.yaml").write_text("models: {name: tiny}\n")
    return folder


def test_valid_run_becomes_an_entry_in_the_table(tmp_path: Path) -> None:
    root = tmp_path / "results" / "entries"
    [stored] = submit(make_run(tmp_path / "run"), root)
    assert stored.relative_to(root).parts == ("r2r", "tiny", "2x-a-cpu", "2026-01-01-0123456-runabcd")
    write(root)
    table = (root.parent / "LEADERBOARD.md").read_text()
    assert "90.0% [80.0%, 95.0%]" in table and "`python bench/run.py run`" in table and "Measured" in table
    page = (root.parent / "LEADERBOARD.html").read_text()
    assert "90.0% [80.0%, 95.0%]" in page and '<script src="http' not in page and "<link" not in page


@pytest.mark.parametrize(("changes", "reason"), [
    ({"validity__valid": False, "validity__reasons": ["too short"]}, "too short"),
    ({"provenance__dirty": True}, "dirty=True"),
    ({"provenance__git_sha": None}, "git_sha=None"),
    ({"schema_version": 2}, "schema_version=2"),
    ({"routing__P": [[0.8, 0.2], [1.0, 0.0]]}, "routes 0.200"),
])  # fmt: skip
def test_other_runs_are_refused_with_the_reason(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    profile = tmp_path / "profiles" / "r2r" / "tiny" / "aime.json"
    profile.parent.mkdir(parents=True)
    profile.write_text(json.dumps({"P": [[0.9, 0.1], [1.0, 0.0]], "threshold": 0.5}))
    run = make_run(tmp_path / "run", **changes)
    with pytest.raises(InputError, match=reason):
        submit(run, tmp_path / "entries", tmp_path / "profiles")
    assert not (tmp_path / "entries").exists()


def test_comparison_gives_each_system_its_paired_ratios_and_its_median_run(tmp_path: Path) -> None:
    for system, speeds in (("tokenrouter", (20.0, 30.0, 25.0)), ("llm_only", (10.0, 10.0, 20.0))):
        for repeat, speed in enumerate(speeds):
            make_run(tmp_path / "cmp" / f"{repeat}-{system}", system=system, output_throughput=speed)
    root = tmp_path / "entries"
    assert len(submit(tmp_path / "cmp", root)) == 2
    ours, theirs = load_entries(root)
    assert (ours.summary["system"], ours.summary["output_throughput"]) == ("tokenrouter", 25.0)
    assert ours.ratio("llm_only") == {"system": "llm_only", "ratio": 2.0, "low": 1.25, "high": 3.0, "repeats": 3}
    assert theirs.summary["output_throughput"] == 10.0
    assert "2.00 [1.25, 3.00]" in markdown([ours, theirs])


def test_comparison_of_too_few_repeats_is_refused(tmp_path: Path) -> None:
    for repeat in range(2):
        make_run(tmp_path / "cmp" / f"{repeat}-tokenrouter")
    with pytest.raises(InputError, match="repeats"):
        submit(tmp_path / "cmp", tmp_path / "entries")


@pytest.mark.parametrize("changes", [
    {"provenance__evidence": "emulated"}, {"provenance__data_source": "hub:a/b@c#d"}, {"load__concurrency": 8},
    {"sampling__temperature": 1.0}, {"hardware__threads": 2},
])  # fmt: skip
def test_what_cannot_be_compared_is_not_ranked_together(tmp_path: Path, changes: dict[str, Any]) -> None:
    root = tmp_path / "entries"
    submit(make_run(tmp_path / "a"), root)
    submit(make_run(tmp_path / "b", **changes), root)
    entries = load_entries(root)
    assert entries[0].rank_key != entries[1].rank_key
    table = markdown(entries)
    assert table.count("\n### ") == 2
    if any(name.startswith("provenance__") for name in changes):  # evidence or data: not even under one heading
        assert table.count("\n## ") == 2
        assert html(entries).count("<h2>") == 2


def test_committed_table_is_that_of_the_committed_entries() -> None:
    assert (ROOT.parent / "LEADERBOARD.md").read_text() == markdown(load_entries())
    page = (ROOT.parent / "LEADERBOARD.html").read_text()
    for entry in load_entries():
        assert f"{entry.summary['output_throughput']:,.0f}" in page


def test_the_readme_shows_the_committed_entries(tmp_path: Path) -> None:
    text = (ROOT.parents[1] / "README.md").read_text()
    assert readme(text, load_entries()) == text
    entry = load_entries()[0]
    assert f"| {entry.summary['output_throughput']:,.0f} |" in text
    assert readme(text, []) != text


def test_every_committed_entry_would_be_accepted_again() -> None:
    for entry in load_entries():
        submitting.check(entry.folder)

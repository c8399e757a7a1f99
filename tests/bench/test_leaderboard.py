"""What becomes an entry, what is refused, and that the committed table is that of the committed entries."""
from __future__ import annotations

import copy
import io
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from bench import leaderboard, provenance
from bench import submit as submitting
from bench.config import validate
from bench.entries import ROOT, hardware_name, load_entries
from bench.files import request_rows, write_config, write_requests
from bench.leaderboard import columns, command, frontier, group_title, html, markdown, readme, write
from bench.plan import prepare
from bench.records import Record, Trace
from bench.recount import recount
from bench.submit import submit
from bench.summary import summarise
from tests.bench.conftest import Compose
from tests.bench.fake import info, report, until_told
from tokenrouter.core import FinishReason, InputError
from zoo.tasks.grade import Grade

SHA = "0123456789" * 4
CLIENTS, TURNS, TOKENS = 4, 12, 8
Make = Callable[..., Path]


@pytest.fixture(scope="module")
def make(composed: Compose, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Make]:
    """Writes the files of a valid run: `CLIENTS` that take `TURNS` of 5.2 s, `scale` times as long, each. `a__b=c` sets
    summary["a"]["b"]; `of` is the system, `values` change the configuration."""
    problems = tmp_path_factory.mktemp("problems") / "problems.jsonl"
    problems.write_text("".join(json.dumps({"id": f"q{n}", "problem": f"{n} + 1?", "answer": n + 1}) + "\n"
                                for n in range(CLIENTS * TURNS)))
    words = (f"workload.path={problems}", f"load.num_requests={CLIENTS * TURNS}", f"load.concurrency={CLIENTS}",
             "algo.threshold=0.5")
    whole = replace(prepare(composed(*words)), checkout=(SHA, False))

    @cache
    def finished(system: str, scale: float) -> tuple[dict[str, Any], list[dict[str, Any]], dict[str, Any]]:
        values = composed(*words, f"system={system}")
        plan = replace(whole, values=values, config=validate(values))
        records, lasts, alone = [], 5.2 * scale, len(plan.roles) == 1
        for i, job in enumerate(plan.jobs):
            start = 50 + i // CLIENTS * lasts + i % CLIENTS * 0.01
            chunks = [(start + lasts * (n + 1) / (TOKENS + 0.01), 1) for n in range(TOKENS)]
            records.append(Record(job, start, chunks, [5] * TOKENS, [0 if alone else n % 2 for n in range(TOKENS)],
                                  start + 0.9999 * lasts, FinishReason.STOP, handoffs=0 if alone else TOKENS - 1))
        trace = Trace(records, 50.0, max(record.end for record in records), 0.1, 0.0)
        grades: list[Grade | None] = [Grade(i % 5 > 0, "1") for i in range(len(records))]
        counts = [report([9], [9], 0)] if alone else [report([9, 1], [9, 0], 0), report([1, 0], [1, 0], 1)]
        for role in counts:
            for kind in ("transitions", "commits"):
                role[kind] = {"entropy": role[kind]["r2r"]}
        models = [info(role, 100) for role in plan.roles]
        summary = summarise(plan, trace, models, counts, grades, "python bench/run.py a=b")
        return summary, request_rows(trace, [""] * len(records), grades), values

    def write_run(folder: Path, of: str = "tokenrouter", scale: float = 1.0, minute: int = 1,
                  values: dict[str, Any] | None = None, **changes: Any) -> Path:
        summary, rows, config = copy.deepcopy(finished(of, scale))
        summary["provenance"]["date"] = f"2026-01-01T00:{minute:02}:00+00:00"
        if values:
            config |= {name: config[name] | value for name, value in values.items()}
            summary["provenance"]["config_hash"] = provenance.config_hash(config)
        _change(summary, changes)
        write_config(folder, config)
        write_requests(folder, rows)
        (folder / "summary.json").write_text(json.dumps(summary))
        return folder

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(submitting, "in_history", lambda sha: sha != "e" * 40)
        yield write_run


def _change(summary: dict[str, Any], changes: dict[str, Any]) -> None:
    for key, value in changes.items():
        *path, at = key.split("__")
        inner: Any = summary
        for step in path:
            inner = inner[step]
        inner[at] = value


def test_valid_run_becomes_an_entry_in_the_table(
    make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, run = tmp_path / "results" / "entries", make(tmp_path / "run")
    [stored] = submit(run, root)
    summary = json.loads((run / "summary.json").read_text())
    assert stored.relative_to(root).parts == (
        "entropy", "tiny", hardware_name(summary), f"2026-01-01-0123456-{summary['provenance']['config_hash'][:7]}")
    assert "no committed profile of threshold=0.5" in capsys.readouterr().err
    assert write(root) == [root.parent / "LEADERBOARD.md", root.parent / "LEADERBOARD.html"]
    table = (root.parent / "LEADERBOARD.md").read_text()
    assert "79.2% [" in table and "`python bench/run.py a=b`" in table and "Measured" in table
    page = (root.parent / "LEADERBOARD.html").read_text()
    assert "79.2% [" in page and '<script src="http' not in page and "<link" not in page


@pytest.mark.parametrize(("known", "refused"), [
    ({}, False), ({"accuracy_ci95": [0.95, 0.99]}, True), ({"accuracy_ci95": [0.85, 0.99]}, False),
    ({"accuracy_ci95": [0.1, 0.2]}, True), ({"accuracy_ci95": [0.95, 0.99], "threshold": 0.4}, False),
])
def test_answers_must_be_as_right_as_they_were_measured_to_be(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    known: dict[str, Any], refused: bool,
) -> None:  # fmt: skip
    """79.2 % of 48 are right; only the same threshold, data and way of drawing can say something of it."""
    run = make(tmp_path / "run", values={"workload": {"max_tokens": None}})
    data = json.loads((run / "summary.json").read_text())["provenance"]["data_source"]
    monkeypatch.setattr(submitting, "QUALITY", tmp_path)
    algorithms = {"entropy": {"threshold": 0.5} | known} if known else {}
    (tmp_path / "tiny.json").write_text(json.dumps({"data": data, "algorithms": algorithms}))
    cut = make(tmp_path / "cut")  # answers of at most 16 tokens
    assert submit(cut, tmp_path / "cut-entries")
    assert "to compare its quality with" in capsys.readouterr().err
    if refused:
        with pytest.raises(InputError, match=r"quality 0\.792 \[.*allowed is an interval that meets"):
            submit(run, tmp_path / "entries")
        (tmp_path / "tiny.json").write_text(json.dumps({"data": "others", "algorithms": algorithms}))
    assert submit(run, tmp_path / "entries")
    assert ("to compare its quality with" in capsys.readouterr().err) is (known.get("accuracy_ci95") != [0.85, 0.99])


def test_an_entry_is_never_overwritten_by_another(make: Make, tmp_path: Path) -> None:
    root, run = tmp_path / "entries", make(tmp_path / "run")
    [stored] = submit(run, root)
    assert submit(run, root) == [stored] and list(root.iterdir()) == [root / "entropy"]
    (stored / "summary.json").write_text("another")
    with pytest.raises(InputError, match=stored.name):
        submit(run, root)
    assert (stored / "summary.json").read_text() == "another"


@pytest.mark.parametrize(("changes", "reason"), [
    ({"validity__valid": False, "validity__reasons": ["too short"]}, "too short"),
    ({"validity__kind": "smoke"}, "smoke"),
    ({"validity__valid": "yes"}, "validity.valid='yes'"),
    ({"provenance__dirty": True}, "dirty=True"),
    ({"provenance__git_sha": None}, "git_sha=None"),
    ({"provenance__git_sha": "HEAD"}, "git_sha='HEAD'"),
    ({"provenance__git_sha": "e" * 40}, "git_sha=eee"),
    ({"provenance__evidence": "paper"}, "evidence='paper'; config.yaml gives 'measured'"),
    ({"provenance__date": "2099-99-99"}, "date='2099-99-99'"),
    ({"provenance__config_hash": "0" * 12}, "config_hash='0+'; config.yaml gives"),
    ({"provenance__data_source": "web:a"}, "data_source='web:a'; allowed is what begins with one of embedded, file, "),
    ({"schema_version": 2}, "schema_version=2"),
    ({"system": "warp"}, "system='warp'; allowed is one of"),
    ({"system": "std"}, "system='std'; config.yaml gives 'tokenrouter'"),
    ({"algo": "../up"}, "algo='../up'"),
    ({"values": {"models": {"name": "../up"}}}, "models.name='../up'"),
    ({"load": {}}, "load.mode: missing"),
    ({"load__num_requests": 9}, "load.num_requests=9; config.yaml gives 48"),
    ({"routing__P": None}, "routing.P=None"),
    ({"routing__P": [[0.9, 0.1]]}, "routing.P="),
    ({"routing__P": [[0.8, 0.2], [1.0, 0.0]]}, "routes 0.200"),
    ({"routing__llm_token_fraction": 0.1}, "routing.llm_token_fraction=0.1; requests.jsonl gives 0.5"),
    ({"output_throughput": 999999}, "output_throughput=999999; requests.jsonl gives 6.1"),
    ({"output_throughput": float("nan")}, "output_throughput=nan"),
    ({"output_throughput": -5}, "output_throughput=-5"),
    ({"steady__output_throughput": 9.0}, "steady.output_throughput=9.0; requests.jsonl gives 6.1"),
    ({"completed": 1}, "completed=1; requests.jsonl gives 48"),
    ({"failed": 500}, "failed=500; requests.jsonl gives 0"),
    ({"duration_s": 1}, "duration_s=1; requests.jsonl gives 62"),
    ({"p99_tpot_ms": 0.1}, "p99_tpot_ms=0.1; requests.jsonl gives"),
    ({"mean_e2el_ms": None}, "mean_e2el_ms=None"),
    ({"quality__value": 1.5}, "quality.value=1.5"),
    ({"quality__value": 0.99}, "quality.value=0.99; requests.jsonl gives 0.79"),
    ({"quality": None}, "quality=None; requests.jsonl gives"),
    ({"load__client_busy": 0.9}, "the load client computed 90%"),
])  # fmt: skip
def test_other_runs_are_refused_with_the_reason(make: Make, tmp_path: Path, changes: dict[str, Any], reason: str
                                                ) -> None:
    profile = tmp_path / "profiles" / "entropy" / "tiny" / "aime.json"
    profile.parent.mkdir(parents=True)
    profile.write_text(json.dumps({"P": [[0.9, 0.1], [1.0, 0.0]], "threshold": 0.5}))
    run = make(tmp_path / "run", **changes)
    with pytest.raises(InputError, match=reason) as refused:
        submit(run, tmp_path / "entries", tmp_path / "profiles")
    assert "\n" not in str(refused.value) and not (tmp_path / "entries").exists()


@pytest.mark.parametrize(("file", "change", "reason"), [
    ("requests.jsonl", lambda text: None, "requests.jsonl"),
    ("requests.jsonl", lambda text: text[:-40], "line 48: "),
    ("requests.jsonl", lambda text: text.partition("\n")[2], "has 47 requests; allowed is 48"),
    ("requests.jsonl", lambda text: text.partition("\n")[2] + text.partition("\n")[0], "line 1: seed="),
    ("requests.jsonl", lambda text: text.replace("[5, ", "[5, 5, ", 1), "line 1: output_tokens=8: token_ids has 9"),
    ("requests.jsonl", lambda text: text.replace("[0, 1", "[0, 2", 1), "line 1: token_models="),
    ("requests.jsonl", lambda text: text.replace("true", '"yes"', 1), r"line 2: .*bool.*\$.grade"),
    ("summary.json", lambda text: "[1]", r"not \[1\]"),
    ("summary.json", lambda text: text[:-1], "summary.json"),
    ("config.yaml", lambda text: None, "config.yaml"),
    ("config.yaml", lambda text: "a: [", "config.yaml"),
    ("config.yaml", lambda text: "- 1", "mapping"),
    ("config.yaml", lambda text: "algo: 1", "algo=1"),
    ("config.yaml", lambda text: text.replace("stall_s: 120", "stall_s: 121"), "config_hash="),
])  # fmt: skip
def test_files_that_no_run_writes_are_refused_in_one_line(
    make: Make, tmp_path: Path, file: str, change: Callable[[str], str | None], reason: str
) -> None:
    run = make(tmp_path / "run")
    changed = change((run / file).read_text())
    (run / file).unlink()
    if changed is not None:
        (run / file).write_text(changed)
    with pytest.raises(InputError, match=reason) as refused:
        submit(run, tmp_path / "entries")
    assert "\n" not in str(refused.value) and not (tmp_path / "entries").exists()


SLOWER = {"tokenrouter": (1.0, 1.25, 1.001), "llm_only": (2.0, 2.002, 1.251)}


@pytest.fixture
def comparison(make: Make, tmp_path: Path) -> Callable[..., Path]:
    """Three repeats of two systems; `changes` are of the run of that name."""

    def make_all(**changes: dict[str, Any]) -> Path:
        for minute, (repeat, system) in enumerate(((r, s) for r in range(3) for s in SLOWER), 1):
            name = f"{repeat}-{system}"
            given = {"of": system, "scale": SLOWER[system][repeat], "minute": minute} | changes.get(name, {})
            make(tmp_path / "cmp" / name, **given)
        return tmp_path / "cmp"

    return make_all


def test_comparison_gives_each_system_its_paired_ratios_and_its_median_run(
    comparison: Callable[..., Path], tmp_path: Path
) -> None:
    root = tmp_path / "entries"
    assert len(submit(comparison(), root)) == 2
    ours, theirs = load_entries(root)
    assert ours.summary["system"] == "tokenrouter" and ours.summary["duration_s"] == pytest.approx(62.4, rel=0.01)
    assert ours.ratio("llm_only") == {"system": "llm_only", "repeats": 3, **{
        name: pytest.approx(value, rel=0.01) for name, value in (("ratio", 1.6), ("low", 1.25), ("high", 2.0))}}
    assert theirs.summary["duration_s"] == pytest.approx(124.8, rel=0.01)
    assert ours.repeats == pytest.approx([ours.summary["output_throughput"] * s for s in (1.001, 0.801, 1.0)], rel=0.01)
    assert columns(ours)["tok/s"] == "6 [5, 6]" and "1.60 [1.25, 2.00]" in markdown([ours, theirs])


def test_of_an_even_number_of_repeats_the_slower_of_the_middle_two_is_stored(make: Make, tmp_path: Path) -> None:
    for repeat, scale in enumerate((1.0, 1.3, 1.1, 1.2)):
        make(tmp_path / "cmp" / f"{repeat}-tokenrouter", scale=scale, minute=1 + 2 * repeat)
    submit(tmp_path / "cmp", tmp_path / "entries")
    [stored] = load_entries(tmp_path / "entries")
    assert stored.summary["duration_s"] == pytest.approx(62.4 * 1.2, rel=0.01) and len(stored.repeats) == 4


@pytest.mark.parametrize(("changes", "reason"), [
    ({"2-llm_only": {"output_throughput": 9.0}}, "2-llm_only/summary.json: output_throughput=9.0"),
    ({"1-llm_only": {"of": "slm_only"}}, "system='slm_only'; allowed is 'llm_only'"),
    ({"1-llm_only": {"provenance__git_sha": "f" * 40}}, "differ in git_sha"),
    ({"1-llm_only": {"provenance__models_hash": "other"}}, "differ in models"),
    ({"2-tokenrouter": {"minute": 1}}, "date=2026-01-01.*, as in .*0-tokenrouter"),
    ({"2-tokenrouter": {"scale": 1.0}}, "all requests, as in .*0-tokenrouter"),
    ({"2-tokenrouter": {"minute": 8}, "1-llm_only": {"minute": 9}}, "not in turns; allowed are systems that"),
    ({"2-llm_only": {"minute": 50}}, "4[0-9] minutes between turns of a round, allowed are 30"),
])  # fmt: skip
def test_comparison_that_is_none_is_refused_as_a_whole(
    comparison: Callable[..., Path], tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(InputError, match=reason):
        submit(comparison(**changes), tmp_path / "entries")
    assert not (tmp_path / "entries").exists()


def test_comparison_of_too_few_repeats_is_refused(make: Make, tmp_path: Path) -> None:
    for repeat in range(2):
        make(tmp_path / "cmp" / f"{repeat}-tokenrouter", minute=repeat + 1)
    with pytest.raises(InputError, match="repeats"):
        submit(tmp_path / "cmp", tmp_path / "entries")


def test_it_says_what_takes_long(make: Make, comparison: Callable[..., Path], tmp_path: Path,
                                 monkeypatch: pytest.MonkeyPatch) -> None:
    err, root, run, runs = io.StringIO(), tmp_path / "results" / "entries", make(tmp_path / "run"), comparison()
    page = leaderboard.html
    counted, alone, tables = (until_told(err, line, monkeypatch) for line in (
        f"recounting {runs}: 2/6", f"waiting for the recount of {run}: ", "waiting for the tables: "))
    slow = iter([lambda: None, lambda: None, counted, *[lambda: None] * 3, alone])
    monkeypatch.setattr(sys, "stderr", err)
    monkeypatch.setattr(submitting, "recount", lambda *given: (next(slow)(), recount(*given))[1])
    monkeypatch.setattr(leaderboard, "html", lambda entries: (tables(), page(entries))[1])
    assert len(submit(runs, root)) == 2 and len(submit(run, tmp_path / "other")) == 1 and len(write(root)) == 2


@pytest.mark.parametrize("changes", [
    {"provenance__evidence": "emulated"}, {"provenance__data_source": "hub:a/b@c#d"},
    {"provenance__data_source": "embedded:a@b"}, {"provenance__data_source": "random@b"}, {"load__concurrency": 8},
    {"sampling__temperature": 1.0}, {"hardware__threads": 2}, {"engine": "sglang"},
])  # fmt: skip
def test_what_cannot_be_compared_is_not_ranked_together(make: Make, tmp_path: Path, changes: dict[str, Any]) -> None:
    root = tmp_path / "entries"
    make(root / "entropy" / "tiny" / "cpu" / "a")
    make(root / "entropy" / "tiny" / "cpu" / "b", **changes)
    entries = load_entries(root)
    assert entries[0].rank_key != entries[1].rank_key
    table = markdown(entries)
    assert table.count("\n### ") == 2 and "\n## Measured, data of a file\n" in table
    if any(name.startswith("provenance__") for name in changes):  # evidence or data: not even under one heading
        assert table.count("\n## ") == 2
        assert html(entries).count("<h2>") == 2


@pytest.mark.parametrize(("file", "text"), [
    ("summary.json", "{}"), ("summary.json", '{"schema_version": 1}'), ("comparison.json", '[{"ratio": 0}]'),
    ("repeats.json", "[0]"), ("config.yaml", "a: ["), ("config.yaml", "batching: {policy: eager}"),
])  # fmt: skip
def test_a_broken_entry_is_named_and_the_tables_stay(make: Make, tmp_path: Path, file: str, text: str) -> None:
    root = tmp_path / "results" / "entries"
    entry = make(root / "entropy" / "tiny" / "cpu" / "broken")
    (entry / file).write_text(text)
    with pytest.raises(InputError, match=f"broken/{file}: "):
        write(root)
    assert [path.name for path in root.parent.iterdir()] == ["entries"]


@pytest.mark.parametrize("main", [submitting.main, leaderboard.main])
def test_help_is_what_the_module_says(main: Callable[[list[str]], int], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert "python bench/" in capsys.readouterr().out
    assert main(["nonsense"] if main is leaderboard.main else []) == 2
    assert "python bench/" in capsys.readouterr().err


def test_committed_table_is_that_of_the_committed_entries() -> None:
    assert (ROOT.parent / "LEADERBOARD.md").read_text() == markdown(load_entries())
    page = (ROOT.parent / "LEADERBOARD.html").read_text()
    tables = [json.loads(json.loads(data)) for data in re.findall(r'"data_json": ("(?:[^"\\]|\\.)*")', page)]
    expected = [(*columns(entry).values(), command(entry)) for entry in load_entries()]
    shown = [(*row[:len(expected[0]) - 1], row[-1]) for table in tables for row in table]
    assert sorted(shown) == sorted(expected)


def test_the_readme_shows_the_committed_entries(tmp_path: Path) -> None:
    text = (ROOT.parents[1] / "README.md").read_text()
    assert readme(text, load_entries()) == text
    entry = load_entries()[0]
    assert f"| {columns(entry)['tok/s']} |" in text
    assert readme(text, []) != text


@pytest.mark.parametrize(("place", "changes"), [
    ("tiny/2x-other", {}), ("others/2x-intel-r-xeon-r-processor", {}),
    (None, {"workload": "agentic"}), (None, {"provenance__evidence": "emulated"}), (None, {"load__mode": "batch"}),
    (None, {"provenance__data_source": "hub:a/b@c#d"}), (None, {"provenance__data_source": "file:a.json@b"}),
    (None, {"sampling__temperature": 1.0}),
])
def test_the_readme_shows_only_what_it_says_of_its_table(
    make: Make, tmp_path: Path, place: str | None, changes: dict[str, Any]
) -> None:
    marks, told = f"{leaderboard.README_BEGIN}\n{leaderboard.README_END}", "tiny/2x-intel-r-xeon-r-processor"
    embedded = {"provenance__data_source": "embedded:problems"}
    make(tmp_path / "entropy" / told / "a", **embedded)
    [shown] = load_entries(tmp_path)
    assert readme(marks, [shown]).count("| entropy |") == 1
    make(tmp_path / "entropy" / (place or told) / "b", **embedded | changes)
    assert len(load_entries(tmp_path)) == 2
    assert readme(marks, load_entries(tmp_path)) == readme(marks, [shown])


def test_what_a_row_was_set_to_is_shown(make: Make, tmp_path: Path) -> None:
    folder = tmp_path / "entropy" / "tiny" / "cpu"
    make(folder / "a", values={"batching": {"policy": "fixed", "B": [1, 3]}})
    make(folder / "b", values={"algo": {"weights": [0.5, 0.2]}}, scale=2.0)
    make(folder / "c", threshold=0.123456, scale=3.0)
    make(folder / "d", threshold="always", scale=4.0)
    shown = [(row["threshold"], row["batching"], row["evidence"], row["valid"])
             for row in map(columns, load_entries(tmp_path))]
    assert shown == [("0.5", "fixed [1, 3]", "measured", "yes"), ("weights [0.5, 0.2]", "eager", "measured", "yes"),
                     ("0.1235", "eager", "measured", "yes"), ("always", "eager", "measured", "yes")]


def test_a_title_names_the_models_of_all_its_rows(make: Make, tmp_path: Path) -> None:
    folder = tmp_path / "entropy" / "tiny" / "cpu"
    model = {"id": "m/medium", "params": 800_000}
    for name in "ab":
        make(folder / name, **({"models__medium": model} if name == "b" else {}))
    alone, both = load_entries(tmp_path)[:1], load_entries(tmp_path)
    assert "tiny (" in group_title(alone) and "m/medium" not in group_title(alone)
    assert "m/medium 0.80M" in group_title(both) and group_title(both) == group_title(both[::-1])


def test_both_pages_say_what_can_be_compared(make: Make, tmp_path: Path) -> None:
    make(tmp_path / "entropy" / "tiny" / "cpu" / "a")
    for text in (markdown(load_entries(tmp_path)), html(load_entries(tmp_path)).replace("&#39;", "'")):
        assert "can be 1.7 times as fast in some hours" in text and "Only what ran in turns can be compared" in text


def test_the_frontier_is_what_none_is_better_than() -> None:
    assert frontier([(1, 9), (2, 9), (2, 8), (3, 5), (2.5, 4), (4, 5), (0.5, 1)]) == [(2, 9), (4, 5)]
    assert frontier([(1, 1)]) == [(1, 1)]


def test_the_page_has_a_frontier_in_each_plot_and_each_rows_command(make: Make, tmp_path: Path) -> None:
    folder = tmp_path / "entropy" / "tiny" / "cpu"
    make(folder / "a")
    make(folder / "b", scale=2.0)
    page = html(load_entries(tmp_path))
    assert page.count('id="frontier"') == 2 and page.count("python bench/run.py a=b") >= 2


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_cells_are_sorted_by_their_first_number(make: Make, tmp_path: Path) -> None:
    """As the page's own function has it, on all columns but those of words."""
    make(tmp_path / "entropy" / "tiny" / "cpu" / "a")
    page = html(load_entries(tmp_path))
    text = r'("(?:[^"\\]|\\.)*")'
    [[targets], [function], [data]] = (re.findall(f'"{name}": {value}', page) for name, value in (
        ("targets", r"(\[[\d, ]+\])"), ("render", text), ("data_json", text)))
    [row] = json.loads(json.loads(data))
    keyed = [row[place] for place in json.loads(targets)]
    assert keyed[0] == "0.5" and keyed[-1] == "concurrency 4"
    assert not {"tokenrouter", "entropy", "measured", "yes", "eager"} & set(keyed)
    cells = ["concurrency 16", "4,552 [4,000, 5,001]", "31.80 / 44.00", "3.1%", "1e-05", "2.1 [1.6, 2]", "-", "always"]
    program = (f"const key = {json.loads(function)};"
               f"console.log(JSON.stringify({cells}.map(cell => [key(cell, 'sort'), key(cell, 'display')])))")
    said = json.loads(subprocess.run(["node", "-e", program], capture_output=True, text=True, check=True).stdout)
    assert [key for key, _ in said] == [16, 4552, 31.8, 3.1, 1e-5, 2.1, "", ""] and [text for _, text in said] == cells


def test_every_committed_entry_would_be_accepted_again() -> None:
    for entry in load_entries():
        submitting.check(entry.folder)

"""What a run leaves to be looked at: report.html and the timeline for Perfetto."""
from __future__ import annotations

import gzip
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from bench.curves import curves
from bench.records import Trace
from bench.report import write_report
from bench.timeline import steps, turns, write_perfetto
from tests.bench.fake import record, report
from zoo.models.tokenizer import build

ROLES = ["small", "large"]


def routed() -> Trace:
    """Two requests of which the second failed; the first's third and fourth token are the large model's."""
    first = record(10.0, [(10.1, 2), (10.3, 2), (10.4, 1)])
    first.roles = [0, 0, 1, 1, 0]
    return Trace([first, record(10.0, [], index=1, end=10.2, error="<lost>")], 10.0, 10.4, 0.1, 0.0)


def reports() -> list[dict[str, Any]]:
    made = [report([6, 2], [4, 0], role=0), report([3, 1], [3, 1], role=1)]
    for one in made:
        one["start_s"] = [10.0, 10.1, 10.2]
    return made


def test_turns_are_the_runs_of_one_model_and_leave_no_gap() -> None:
    spans = list(turns(routed().records[0], 10.0))
    assert [(s.role, s.tokens) for s in spans] == [(0, 2), (1, 2), (0, 1)]
    assert [s.start_s for s in spans] == pytest.approx([0.0, 0.1, 0.3])
    assert [s.end_s for s in spans] == pytest.approx([0.1, 0.3, 0.4])


def test_steps_are_on_the_clock_of_the_requests() -> None:
    small, large = steps(routed(), reports())
    assert [s.start_s for s in small] == pytest.approx([0.0, 0.1, 0.2])
    assert [s.end_s - s.start_s for s in small] == pytest.approx([1e-3, 2e-3, 3e-3])
    assert {s.role for s in large} == {1}


def test_perfetto_trace_holds_every_step_and_every_turn(tmp_path: Path) -> None:
    write_perfetto(tmp_path / "timeline.json.gz", routed(), reports(), ROLES)
    events = json.loads(gzip.decompress((tmp_path / "timeline.json.gz").read_bytes()))["traceEvents"]
    spans = [e for e in events if e["ph"] == "X"]
    assert len([e for e in spans if e["pid"] == 1]) == 6
    assert [(e["name"], e["args"]["tokens"]) for e in spans if e["pid"] == 2] == [
        ("small", 2), ("large", 2), ("small", 1)]
    assert all(e["dur"] >= 0 and e["ts"] >= 0 for e in spans)
    assert {e["args"]["name"] for e in events if e["ph"] == "M"} >= {"small", "large", "p0 #0", "p1 #0"}


def summary() -> dict[str, Any]:
    latency = {f"{stat}_{name}_ms": 1.0 for stat in ("median", "p99") for name in ("ttft", "tpot", "e2el")}
    return {
        "algo": "r2r", "workload": "aime", "system": "tokenrouter", "engine": "torch", "completed": 1, "failed": 1,
        "total_output_tokens": 5, "duration_s": 0.4, "output_throughput": 12.5, "steady": {"output_throughput": 12.5},
        "models": {role: {"id": role, "params": 1e6} for role in ROLES}, "hardware": {"cores": 2, "threads": 1},
        "load": {"mode": "closed", "concurrency": 2}, "quality": None, "validity": {
            "valid": False, "kind": "smoke", "reasons": ["<short>"]},
        "routing": {"threshold_B": {}, "llm_token_fraction": 0.4, "handoffs_per_100_tokens": 40.0,
                    "batch_size_histogram": {role: {"1": 1, "2": 2} for role in ROLES}},
        "provenance": {"evidence": "measured", "date": "2026-01-01", "cpu": "a CPU", "gpu": None, "data_source": "d",
                       "data_version": 1},
        **latency,
    }


class Page(HTMLParser):
    """The page's links to elsewhere, its visible text, and the texts of its marked tokens."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [v or "" for k, v in attrs if k in ("src", "href") and not (v or "").startswith("#")]

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize("reported", [True, False])
def test_report_shows_figures_timeline_and_texts_and_needs_nothing_else(tmp_path: Path, reported: bool) -> None:
    trace, tokenizer = routed(), build(50)
    ids = list(tokenizer("a<b 12")["input_ids"])[:5]
    rows = [
        {"id": "p0", "sample": 0, "token_ids": ids, "token_models": [0, 0, 1, 1, 0],
         "token_signals": [0.25, None, 0.875, None, 0.0], "output_tokens": 5, "handoffs": 2,
         "grade": False, "answer": "1", "expected": "2", "error": None, "start_s": 0.0},
        {"id": "p1", "sample": 0, "token_ids": [], "token_models": [], "token_signals": [], "output_tokens": 0,
         "handoffs": 0, "grade": None, "answer": None, "expected": "2", "error": "<lost>", "start_s": 0.0},
    ]
    given = summary()
    if not reported:
        given["routing"]["batch_size_histogram"] = {}
    write_report(tmp_path, given, rows, trace, reports() if reported else [], ROLES, tokenizer)
    html = (tmp_path / "report.html").read_text()
    page = Page(html)
    assert not page.links and not re.search(r"url\((?!#)|@import|<script", html)
    assert "wrong (1, expected 2)" in page.text and "failed: <lost>" in page.text and "<short>" in page.text
    marked = re.findall(r'<span class="r1" title="\d+: large[^"]*">(.*?)</span>', html)
    assert len(marked) == 2
    signals = re.findall(r'<span class="r(\d)" title="(\d+): \w+, router.*?s signal ([\d.]+)">', html)
    assert signals == [("0", "0", "0.25"), ("1", "2", "0.875"), ("0", "4", "0")]
    assert html.count("<rect class=") >= 3
    assert ("Admission delay" in html) is reported


def test_report_of_a_run_in_which_nothing_completed(tmp_path: Path) -> None:
    trace = Trace([record(10.0, [], end=10.2, error="lost")], 10.0, 10.2, 0.1, 0.0)
    given = summary()
    given["routing"]["batch_size_histogram"] = {}
    write_report(tmp_path, given, [], trace, [], ROLES, None)
    assert "Distributions" not in (tmp_path / "report.html").read_text()


def test_curves_follow_tokens_clients_and_thresholds_over_the_run() -> None:
    made = reports()
    made[1]["thresholds"], made[1]["batch_size"] = [1, 3, 3], [2, 4, 6]
    found = curves(routed(), made, ROLES)  # ten parts of 0.04 s
    assert list(found.index) == pytest.approx([0.04 * i for i in range(1, 11)])
    assert (found["tokens_per_s"] * 0.04).round(6).to_list() == [0, 0, 2, 0, 0, 0, 0, 2, 0, 1]
    assert found["active"].to_list() == [2] * 5 + [1] * 5
    assert found["threshold_B/large"].dropna().to_list() == [1, 3, 3]
    assert found["batch_size/large"].dropna().to_list() == [2, 4, 6]

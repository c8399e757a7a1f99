"""Who did what when: the subservers' steps, and for each request the models that wrote it, as spans on one clock."""
from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from bench.records import Record, Trace

STEPS, REQUESTS = 1, 2  # process ids in the trace: one track a subserver, one track a request


@dataclass(frozen=True, slots=True)
class Span:
    """Times in seconds from the first request. `role` indexes the algorithm's roles; `rows` of a step's batch or tokens
    of a request."""

    start_s: float
    end_s: float
    role: int
    rows: int
    tokens: int


def steps(trace: Trace, reports: Sequence[dict[str, Any]]) -> list[list[Span]]:
    """Each subserver's steps, from assembly to the last message sent. Needs subservers on this host's clock."""
    return [
        [
            Span(at := start - trace.began, at + ms / 1e3, role, rows, tokens)
            for start, ms, rows, tokens in zip(
                report["start_s"], report["step_ms"], report["batch_size"], report["tokens"], strict=True)
        ]
        for role, report in enumerate(reports)
    ]


def turns(record: Record, began: float) -> Iterator[Span]:
    """Runs of tokens by one model, each from the token before it (the first: from the request) to its last token."""
    arrivals = [at for at, count in record.chunks for _ in range(count)]
    since, position = record.start, 0
    for role, run in groupby(record.roles):
        count = sum(1 for _ in run)
        position += count
        until = arrivals[position - 1]
        yield Span(since - began, until - began, role, 1, count)
        since = until


def write_perfetto(file: Path, trace: Trace, reports: Sequence[dict[str, Any]], roles: Sequence[str]) -> None:
    """The Chrome trace format, gzipped, which ui.perfetto.dev opens as it is."""
    events: list[dict[str, Any]] = [
        _name("process_name", STEPS, 0, "subservers"), _name("process_name", REQUESTS, 0, "requests"),
        *(_name("thread_name", STEPS, i, roles[i]) for i in range(len(reports))),
    ]
    for spans in steps(trace, reports):
        events += (_span(STEPS, s.role, f"{s.rows} rows", s, {"rows": s.rows, "tokens": s.tokens}) for s in spans)
    for number, record in enumerate(trace.records):
        events.append(_name("thread_name", REQUESTS, number, f"{record.job.task.id} #{record.job.sample}"))
        events += (_span(REQUESTS, number, roles[s.role], s, {"tokens": s.tokens}) for s in turns(record, trace.began))
    part = file.with_name(file.name + ".part")
    with gzip.open(part, "wt", encoding="utf-8", compresslevel=5) as opened:
        json.dump({"displayTimeUnit": "ms", "traceEvents": events}, opened, separators=(",", ":"))
    part.replace(file)


def _name(kind: str, process: int, track: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": track, "args": {"name": name}}


def _span(process: int, track: int, name: str, span: Span, args: dict[str, int]) -> dict[str, Any]:
    return {
        "ph": "X", "pid": process, "tid": track, "name": name, "ts": round(span.start_s * 1e6, 1),
        "dur": round((span.end_s - span.start_s) * 1e6, 1), "args": args,
    }

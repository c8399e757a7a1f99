"""report.html: a run to look at. One file that needs no network, light or dark as the reader's system is."""
from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import jinja2
import pandas as pd
from matplotlib.axes import Axes
from transformers import PreTrainedTokenizerBase

from bench.charts import COLOURS, svg
from bench.curves import curves
from bench.files import write_text
from bench.metrics import e2el_ms, ttft_ms
from bench.records import Trace
from bench.table import result_rows
from bench.timeline import Span, steps, turns

_TEXTS, _LANES = 12, 24  # requests shown as text, and in the timeline
_WINDOW_STEPS = 60  # steps of the slowest subserver that the timeline spans


@dataclass(frozen=True, slots=True)
class Lane:
    name: str
    spans: list[Span]


def write_report(
    folder: Path, summary: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], trace: Trace,
    reports: Sequence[dict[str, Any]], roles: Sequence[str], tokenizer: PreTrainedTokenizerBase | None,
) -> None:
    """`rows`: what requests.jsonl holds, one a record of `trace`. `reports`: Service.stats(), may be empty."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("bench"), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True,
        lstrip_blocks=True)
    charts = {title: chart for title, chart in _charts(trace, summary, reports, roles) if chart}
    lanes, first, last = _timeline(trace, reports, roles)
    page = environment.get_template("report.html.jinja").render(
        title=f"{summary['algo']} · {summary['workload']} · {summary['system']}",
        figures=result_rows(summary), provenance=summary["provenance"], charts=charts, lanes=lanes,
        first=first, last=last, roles=list(roles), colours=COLOURS, texts=_texts(rows, tokenizer),
    )
    write_text(folder / "report.html", page)


def _charts(
    trace: Trace, summary: Mapping[str, Any], reports: Sequence[dict[str, Any]], roles: Sequence[str]
) -> Iterator[tuple[str, str]]:
    done = [record for record in trace.records if record.completed and record.chunks]
    tpot = [(e2el_ms(r) - ttft_ms(r)) / (len(r.token_ids) - 1) for r in done if len(r.chunks) > 1]
    for title, values in (
        ("Time to first token, ms", [ttft_ms(r) for r in done]), ("Time per output token, ms", tpot),
        ("End-to-end latency, ms", [e2el_ms(r) for r in done]),
    ):
        yield title, _distribution({"requests": values})
    over_time = curves(trace, reports, roles)
    yield "Output tokens per second, over seconds", _over_time(over_time[["tokens_per_s"]])
    yield "Requests in a step, over seconds", _over_time(_by_role(over_time, "batch_size"))
    yield "Launch threshold B, over seconds", _over_time(_by_role(over_time, "threshold_B"))
    delays = {role: report["admission_ms"] for role, report in zip(roles, reports, strict=False)}
    yield "Admission delay, ms", _distribution(delays)
    yield "Batch size, share of steps", _batches(summary["routing"]["batch_size_histogram"])


def _distribution(values: Mapping[str, Sequence[float]]) -> str:
    """Cumulative shares, a line each; the last percent, which may lie far out, is cut off."""
    if not any(values.values()):
        return ""

    def draw(axes: Axes) -> None:
        ends = []
        for (name, given), colour in zip(values.items(), COLOURS, strict=False):
            ordered = sorted(given)
            if not ordered:
                continue
            axes.step(ordered, [(i + 1) / len(ordered) for i in range(len(ordered))], color=colour, label=name)
            ends.append(ordered[math.ceil(0.99 * len(ordered)) - 1])
        axes.set_xlim(0, max(ends) * 1.02 or 1)
        axes.set_ylim(0, 1.02)
        if len(values) > 1:
            axes.legend(frameon=False)

    return svg(draw)


def _by_role(over_time: pd.DataFrame, name: str) -> pd.DataFrame:
    chosen = over_time.filter(like=f"{name}/")
    return chosen.set_axis([column.removeprefix(f"{name}/") for column in chosen], axis="columns")


def _over_time(values: pd.DataFrame) -> str:
    """A line a column."""
    if not values.fillna(0).to_numpy().any():
        return ""

    def draw(axes: Axes) -> None:
        for name, colour in zip(values, COLOURS, strict=False):
            axes.step(values.index, values[name], where="pre", color=colour, label=name)
        axes.set_ylim(bottom=0)
        if len(values.columns) > 1:
            axes.legend(frameon=False)

    return svg(draw)


def _batches(histograms: Mapping[str, Mapping[str, int]]) -> str:
    if not histograms:
        return ""

    def draw(axes: Axes) -> None:
        width = 0.8 / len(histograms)
        for i, (role, histogram) in enumerate(histograms.items()):
            total = sum(histogram.values())
            places = [int(size) + (i + 0.5) * width - 0.4 for size in histogram]
            shares = [count / total for count in histogram.values()]
            axes.bar(places, shares, width, color=COLOURS[i % len(COLOURS)], label=role)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.legend(frameon=False)

    return svg(draw)


def _timeline(
    trace: Trace, reports: Sequence[dict[str, Any]], roles: Sequence[str]
) -> tuple[list[Lane], float, float]:
    """What ran in the middle of the run: a lane a subserver, then a lane a request that was there; and from when on
    and until when, in seconds."""
    by_subserver = steps(trace, reports)
    middle = (trace.ended - trace.began) / 2
    means = [fmean(s.end_s - s.start_s for s in spans) for spans in by_subserver if spans]
    length = min(_WINDOW_STEPS * max(means, default=0.005), trace.ended - trace.began)
    first, last = middle - length / 2, middle + length / 2

    def inside(spans: Iterator[Span] | list[Span]) -> list[Span]:
        return [s for s in spans if s.end_s > first and s.start_s < last]

    lanes = [Lane(role, inside(spans)) for role, spans in zip(roles, by_subserver, strict=False)]
    for record in trace.records:
        if (spans := inside(turns(record, trace.began))) and len(lanes) < len(reports) + _LANES:
            lanes.append(Lane(f"{record.job.task.id} #{record.job.sample}", spans))
    return lanes, first, last


def _texts(
    rows: Sequence[Mapping[str, Any]], tokenizer: PreTrainedTokenizerBase | None
) -> list[tuple[Mapping[str, Any], list[tuple[str, int, float | None]]]]:
    """Requests with their tokens, who wrote each and what it was routed by: the wrong ones first, since those are
    looked at."""
    if tokenizer is None:
        return []
    chosen = sorted(rows, key=lambda row: (row["grade"] is not False, row["start_s"]))[:_TEXTS]
    return [
        (row, list(zip(map(str, tokenizer.batch_decode([[i] for i in row["token_ids"]])), row["token_models"],
                       row["token_signals"], strict=True)))
        for row in chosen
    ]

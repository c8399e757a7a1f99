"""Runs side by side: python bench/compare.py systems=[llm_only,llm_only_x2,tokenrouter] repeats=3 [override ...]

Every system serves the same requests, in turn (A B A B ...), each time started afresh by bench/run.py; the overrides
are its own (algo=r2r workload=aime load.concurrency=4 ...). An override with several values is compared too, as in
Hydra's sweeps: `load.via=inproc,http`, `batching=eager,optimal`; of several such, every combination. Ratios are to the
first, paired by repeat and by request: the median over the repeats, and a 95 % bootstrap interval over repeats and
requests. `valid` has what speaks against single runs, and against comparing them: fewer than three repeats, runs that
did not take turns, code that is not committed. `out=FOLDER` names where the runs and comparison.json go (default: below
results/runs); `markdown=FILE`, `csv=FILE` and `plot=FILE` write the table and a picture of it there. Ctrl-C and SIGTERM
let the run under way write what it has, and show a table of those that are finished; the same command with `out=` goes
on, repeating none of these. Exit codes as bench/run.py; 143 after SIGTERM.
"""
from __future__ import annotations

import datetime
import itertools
import re
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])  # not bench/, whose modules would hide others
    if {"-h", "--help"} & set(sys.argv[1:]):  # which need not wait for what is imported
        print(__doc__, end="")
        sys.exit()

import msgspec
import pandas as pd
from matplotlib.backend_bases import FigureCanvasBase
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from bench.charts import COLOURS
from bench.config import composed, validate
from bench.paired import MEASURES, Interval, Paired
from bench.plan import cluster_spec
from bench.series import (
    ROOT,
    Interrupted,
    RunFailed,
    Turn,
    check_writable,
    command,
    run_all,
    split,
    sweep,
    write_table,
)
from bench.systems import serve
from bench.validity import MAX_PAUSE_S, differences, shortcomings, unequal_lengths
from tokenrouter.config import Positive, Strict
from tokenrouter.core import InputError

Labels = dict[str, str]  # of each axis that is compared, the value


class Options(Strict, kw_only=True):
    systems: list[str] = msgspec.field(default_factory=lambda: ["tokenrouter"])
    repeats: Positive = 3
    out: str | None = None
    markdown: str | None = None
    csv: str | None = None
    plot: str | None = None


def parse(words: Sequence[str]) -> tuple[Options, dict[str, list[str]], list[str]]:
    """The command's own words, the values of each axis that is compared, and the overrides that all runs share."""
    options, overrides = split(words, Options)
    known = sorted(path.stem for path in (ROOT / "conf" / "system").glob("*.yaml"))
    systems = options.systems
    if not systems or not set(systems) <= set(known) or len(set(systems)) < len(systems):
        raise InputError(f"systems={systems}: allowed is a list of different ones of {known}")
    swept = {name: values for name, values in map(sweep, overrides) if len(values) > 1}
    check_writable(csv=options.csv, markdown=options.markdown, plot=options.plot)
    formats = FigureCanvasBase.get_supported_filetypes()
    if options.plot and Path(options.plot).suffix[1:] not in formats:
        raise InputError(f"plot={options.plot}: allowed are files that end in .{', .'.join(sorted(formats))}")
    if "system" in swept:
        raise InputError(f"system={','.join(swept['system'])}: allowed is systems=[{','.join(swept['system'])}]")
    return options, {"system": systems} | swept, [word for word in overrides if word.partition("=")[0] not in swept]


def main(words: Sequence[str]) -> None:
    options, axes, overrides = parse(words)
    stamp = datetime.datetime.now().strftime("%Y-%m-%d/%H-%M-%S-compare")
    out = Path(options.out or Path("results/runs", stamp))
    compared = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    turns = [turn(out, labels, repeat, overrides) for repeat in range(options.repeats) for labels in compared]
    for first in turns[:len(compared)]:
        check(first)
    title = f"{' '.join(overrides)} (ratios to the first: median [95 % interval])"
    summaries: list[dict[str, Any]] = []
    try:
        for summary in run_all(turns, len(compared)):
            summaries.append(summary)
    except Interrupted as stopped:
        stopped.kept = (f"{len(summaries)} of {len(turns)} runs are finished and stay in {out}; the same command with "
                        f"out={out} goes on, within {MAX_PAUSE_S / 60:g} minutes if the round is to be valid")
        if summaries and not unlike(summaries):
            show(tabulate(compared, turns, summaries), f"after {len(summaries)} of {len(turns)} runs: {title}")
        raise
    if differing := unlike(summaries):
        print(f"error: the runs cannot be compared: they differ in {', '.join(differing)}", file=sys.stderr)
        raise RunFailed(1)
    frame = tabulate(compared, turns, summaries)
    (out / "comparison.json").write_text(frame.to_json(orient="records", indent=2) + "\n")
    write_table(frame, options.csv, options.markdown)
    if options.plot:
        draw(frame, len(axes), Path(options.plot))
    show(frame, title)
    print(f"files: {out}")


def turn(out: Path, labels: Labels, repeat: int, overrides: Sequence[str]) -> Turn:
    chosen, name = [f"{axis}={value}" for axis, value in labels.items()], " ".join(labels.values())
    return Turn(name, f"{name} (repeat {repeat + 1})", out / f"{repeat}-{folder_name(labels)}",
                [*chosen, "logger=none", *overrides])


def check(turn: Turn) -> None:
    """InputError for a run that would be refused: not after those of other systems."""
    values = composed(turn.overrides)
    config = validate(values)
    serve(config, cluster_spec(config, values))


def unlike(summaries: Sequence[dict[str, Any]]) -> list[str]:
    """In what the runs differ that must not."""
    return differences(summaries) + unequal_lengths(summaries)


def tabulate(
    compared: Sequence[Labels], turns: Sequence[Turn], summaries: Sequence[dict[str, Any]],
) -> pd.DataFrame:
    """Of the repeats that all have made or, where there is none, of those that have made the first."""
    several = len(compared)
    end = several * max(1, len(summaries) // several)
    runs = [summaries[first:end:several] for first in range(min(several, len(summaries)))]
    paired = [Paired([made.folder for made in turns[first:end:several]], own) for first, own in enumerate(runs)]
    return compare(compared[:len(runs)], runs, paired)


def folder_name(labels: Labels) -> str:
    """The system, and the values of other axes as far as a file's name may hold them."""
    return "-".join(re.sub(r"[^\w.]+", "_", value) for value in labels.values())


def compare(
    compared: Sequence[Labels], runs: Sequence[Sequence[dict[str, Any]]], paired: Sequence[Paired],
) -> pd.DataFrame:
    """One row each: medians over the repeats, and ratios to the first, of quality the difference. `valid`: yes, or all
    that speaks against it."""
    rows, shared = [], shortcomings(runs)
    for labels, repeats, own in zip(compared, runs, paired, strict=True):
        row: dict[str, Any] = {**labels, "algo": repeats[0]["algo"], "repeats": len(repeats)}
        for label, field in MEASURES.items():
            known = [run[field] for run in repeats if run[field] is not None]  # no tpot of answers in one piece
            row[label] = round(statistics.median(known), 3) if known else None
        for label in MEASURES:
            found = own.ratio(paired[0], label)
            row[f"{label} ratio"] = found and told(*found)
        row |= predicted(repeats)
        fractions = [run["routing"]["llm_token_fraction"] for run in repeats]
        row["LLM tokens"] = round(statistics.median(fractions), 4)
        row |= quality(repeats, own, runs[0], paired[0])
        row["output tokens"] = repeats[0]["total_output_tokens"]
        own_reasons = {reason for run in repeats for reason in run["validity"]["reasons"]}
        row["valid"] = "; ".join([*sorted(own_reasons), *shared]) or "yes"
        rows.append(row)
    return pd.DataFrame(rows)


def told(value: float, interval: Interval) -> str:
    return f"{value:.3f} [{interval.low:.3f}, {interval.high:.3f}]"


def quality(
    repeats: Sequence[dict[str, Any]], own: Paired, first: Sequence[dict[str, Any]], base: Paired,
) -> dict[str, Any]:
    """Of the first repeat, as answers of others are the same but for near ties; the difference over all of them."""
    found = repeats[0]["quality"] or {"value": None, "ci95": None}
    interval = found["ci95"] and [round(end, 4) for end in found["ci95"]]
    row = {"quality": found["value"], "quality ci95": interval, "quality difference": None}
    if found["value"] is None or (first[0]["quality"] or {}).get("value") is None:
        return row
    means = [run["quality"]["value"] - other["quality"]["value"] for run, other in zip(repeats, first, strict=True)]
    return row | {"quality difference": told(statistics.median(means), own.difference(base))}


def predicted(repeats: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The steady window beside what the throughput model says, for the step times that were set and for those that
    were measured; empty where it says nothing."""
    steady = [run["steady"]["output_throughput"] for run in repeats]
    row: dict[str, Any] = {"steady tok/s": round(statistics.median(steady), 3)}
    for label, name in (("predicted", "prediction"), ("predicted in service", "prediction_in_service")):
        found = [run["routing"].get(name) or {} for run in repeats]
        if any(item.get("throughput") is None for item in found):
            return row | {label: "", f"steady/{label}": ""}
        ratios = [item["ratio"] for item in found]
        row[label] = round(statistics.median(item["throughput"] for item in found), 3)
        row[f"steady/{label}"] = f"{statistics.median(ratios):.3f} [{min(ratios):.3f}, {max(ratios):.3f}]"
    return row


def show(frame: pd.DataFrame, title: str) -> None:
    table = Table(title=title)
    for column in frame.columns:
        table.add_column(column, overflow="fold")
    for row in frame.itertuples(index=False):
        table.add_row(*[f"{value:.4g}" if isinstance(value, float) else str(value) for value in row])
    Console(width=200).print(table)


def draw(frame: pd.DataFrame, axes: int, file: Path) -> None:
    """All measures of each, and what is right of its answers where that is known, side by side with the ratios."""
    names = [" ".join(map(str, labels)) for labels in frame.iloc[:, :axes].itertuples(index=False)]
    beside = {measure: f"{measure} ratio" for measure in MEASURES} | {"quality": "quality difference"}
    known = [measure for measure in beside if frame[measure].notna().any()]
    figure = Figure(figsize=(1.5 + 3.5 * len(known), 1.2 + 0.4 * len(names)), layout="constrained")
    panels = figure.subplots(1, len(known), sharey=True, squeeze=False)[0]
    for panel, measure, colour in zip(panels, known, itertools.cycle(COLOURS), strict=False):
        bars = panel.barh(names, frame[measure].astype(float), color=colour)
        panel.bar_label(bars, labels=[text or "" for text in frame[beside[measure]]], fontsize=7, padding=3)
        panel.margins(x=0.45)
        panel.set_xlabel(measure)
        panel.spines[["top", "right"]].set_visible(False)
    figure.axes[0].invert_yaxis()
    figure.savefig(file, dpi=100, metadata={"Software": None})


if __name__ == "__main__":
    sys.exit(command(main))

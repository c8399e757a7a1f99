"""Systems side by side: python bench/compare.py systems=[llm_only,llm_only_x2,tokenrouter] repeats=3 [override ...]

Every system serves the same requests, in turn (A B A B ...), each time started afresh by bench/run.py; the overrides
are its own (algo=r2r workload=aime load.concurrency=4 ...). Ratios are to the first system, paired by repeat: median,
and the least and greatest of the repeats. `out=FOLDER` names where the runs and comparison.json go (default: below
results/runs), `markdown=FILE` and `csv=FILE` write the table there. Exit codes as bench/run.py.
"""
from __future__ import annotations

import datetime
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd
from rich.console import Console
from rich.table import Table

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])  # not bench/, whose modules would hide others

from bench.series import ROOT, RunFailed, command, run, split, write_table
from bench.validity import differences
from tokenrouter.config import Positive, Strict
from tokenrouter.core import InputError

MEASURES = {
    "tok/s": "output_throughput", "tpot ms": "mean_tpot_ms", "ttft ms": "mean_ttft_ms", "e2el ms": "mean_e2el_ms",
}


class Options(Strict, kw_only=True):
    systems: list[str] = msgspec.field(default_factory=lambda: ["tokenrouter"])
    repeats: Positive = 3
    out: str | None = None
    markdown: str | None = None
    csv: str | None = None


def parse(words: Sequence[str]) -> tuple[Options, list[str]]:
    """The command's own words, and the overrides for its runs."""
    options, overrides = split(words, Options)
    known = sorted(path.stem for path in (ROOT / "conf" / "system").glob("*.yaml"))
    systems = options.systems
    if not systems or not set(systems) <= set(known) or len(set(systems)) < len(systems):
        raise InputError(f"systems={systems}: allowed is a list of different ones of {known}")
    return options, overrides


def main(words: Sequence[str]) -> None:
    options, overrides = parse(words)
    stamp = datetime.datetime.now().strftime("%Y-%m-%d/%H-%M-%S-compare")
    out = Path(options.out or Path("results/runs", stamp))
    runs: dict[str, list[dict[str, Any]]] = {system: [] for system in options.systems}
    for repeat in range(options.repeats):
        for system in options.systems:
            runs[system].append(run(out / f"{repeat}-{system}", [f"system={system}", "logger=none", *overrides]))
    if differing := differences([one for repeats in runs.values() for one in repeats]):
        print(f"error: the runs cannot be compared: they differ in {', '.join(differing)}", file=sys.stderr)
        raise RunFailed(1)
    frame = compare(runs)
    (out / "comparison.json").write_text(frame.to_json(orient="records", indent=2) + "\n")
    write_table(frame, options.csv, options.markdown)
    show(frame, f"{' '.join(overrides)} (ratios to {options.systems[0]}: median [least, greatest])")
    print(f"files: {out}")


def compare(runs: dict[str, list[dict[str, Any]]]) -> pd.DataFrame:
    """One row a system: medians over the repeats, and ratios to the first system, paired by repeat."""
    first = next(iter(runs.values()))
    rows = []
    for system, repeats in runs.items():
        row: dict[str, Any] = {"system": system, "algo": repeats[0]["algo"], "repeats": len(repeats)}
        for label, field in MEASURES.items():
            row[label] = round(statistics.median(run[field] for run in repeats), 3)
        for label, field in MEASURES.items():
            ratios = [run[field] / base[field] for run, base in zip(repeats, first, strict=True)]
            row[f"{label} ratio"] = f"{statistics.median(ratios):.3f} [{min(ratios):.3f}, {max(ratios):.3f}]"
        row |= predicted(repeats)
        fractions = [run["routing"]["llm_token_fraction"] for run in repeats]
        row["LLM tokens"] = round(statistics.median(fractions), 4)
        quality = repeats[0]["quality"] or {"value": None, "ci95": None}
        row |= {"quality": quality["value"], "quality ci95": quality["ci95"]}
        row["output tokens"] = repeats[0]["total_output_tokens"]
        row["valid"] = "yes" if all(run["validity"]["valid"] for run in repeats) else (
            "; ".join(sorted({reason for run in repeats for reason in run["validity"]["reasons"]})))
        rows.append(row)
    return pd.DataFrame(rows)


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


if __name__ == "__main__":
    sys.exit(command(main))

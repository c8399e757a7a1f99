"""Systems side by side: python bench/compare.py systems=[llm_only,llm_only_x2,tokenrouter] repeats=3 [override ...]

Every system serves the same requests, in turn (A B A B ...), each time started afresh by bench/run.py; the overrides
are its own (algo=r2r workload=aime load.concurrency=4 ...). Ratios are to the first system, paired by repeat: median,
and the least and greatest of the repeats. `out=FOLDER` names where the runs and comparison.json go (default: below
results/runs), `markdown=FILE` and `csv=FILE` write the table there. Exit codes as bench/run.py.
"""
from __future__ import annotations

import datetime
import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
MEASURES = {
    "tok/s": "output_throughput", "tpot ms": "mean_tpot_ms", "ttft ms": "mean_ttft_ms", "e2el ms": "mean_e2el_ms",
}


class Arguments:
    """`systems=[a,b]`, `repeats=N`, `out=`, `markdown=`, `csv=`; everything else is passed on."""

    def __init__(self, words: Sequence[str]) -> None:
        own = {"systems": "[tokenrouter]", "repeats": "3", "out": "", "markdown": "", "csv": ""}
        self.overrides = []
        for word in words:
            name, _, value = word.partition("=")
            if name in own:
                own[name] = value
            else:
                self.overrides.append(word)
        self.systems = [name.strip() for name in own["systems"].strip("[]").split(",") if name.strip()]
        known = sorted(path.stem for path in (ROOT / "conf" / "system").glob("*.yaml"))
        if not self.systems or not set(self.systems) <= set(known) or len(set(self.systems)) < len(self.systems):
            raise ValueError(f"systems={own['systems']}: allowed is a list of different ones of {known}")
        if not own["repeats"].isdecimal() or int(own["repeats"]) < 1:
            raise ValueError(f"repeats={own['repeats']}: allowed is a whole number >= 1")
        self.repeats = int(own["repeats"])
        stamp = datetime.datetime.now().strftime("%Y-%m-%d/%H-%M-%S-compare")
        self.out = Path(own["out"] or Path("results/runs", stamp))
        self.markdown, self.csv = own["markdown"], own["csv"]


def main(words: Sequence[str]) -> int:
    try:
        arguments = Arguments(words)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    runs: dict[str, list[dict[str, Any]]] = {system: [] for system in arguments.systems}
    for repeat in range(arguments.repeats):
        for system in arguments.systems:
            folder = arguments.out / f"{repeat}-{system}"
            code = subprocess.run([
                sys.executable, str(ROOT / "bench" / "run.py"), f"system={system}", "logger=none",
                *arguments.overrides, f"hydra.run.dir={folder}"]).returncode
            if code:
                return code
            runs[system].append(json.loads((folder / "summary.json").read_text()))
    if differing := differences([run for repeats in runs.values() for run in repeats]):
        print(f"error: the runs cannot be compared: they differ in {', '.join(differing)}", file=sys.stderr)
        return 1
    frame = compare(runs)
    (arguments.out / "comparison.json").write_text(frame.to_json(orient="records", indent=2) + "\n")
    if arguments.csv:
        frame.to_csv(arguments.csv, index=False)
    if arguments.markdown:
        Path(arguments.markdown).write_text(frame.to_markdown(index=False) + "\n")
    show(frame, arguments)
    return 0


def differences(runs: Sequence[dict[str, Any]]) -> list[str]:
    """The fields that all runs of a comparison must share and do not."""
    from bench.validity import comparable_by  # only found once the path is set, below

    shared = [
        comparable_by(run) | {f"load.{name}": run["load"][name] for name in ("concurrency", "num_requests", "seed")}
        | {"git_sha": run["provenance"]["git_sha"]} for run in runs]
    return [field for field in shared[0] if any(fields[field] != shared[0][field] for fields in shared[1:])]


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


def show(frame: pd.DataFrame, arguments: Arguments) -> None:
    table = Table(title=f"{' '.join(arguments.overrides)} (ratios to {arguments.systems[0]}: median [least, greatest])")
    for column in frame.columns:
        table.add_column(column, overflow="fold")
    for row in frame.itertuples(index=False):
        table.add_row(*[f"{value:.4g}" if isinstance(value, float) else str(value) for value in row])
    Console(width=200).print(table)
    print(f"files: {arguments.out}")


if __name__ == "__main__":
    sys.path[0] = str(ROOT)  # not bench/, whose modules would hide others of the same names
    sys.exit(main(sys.argv[1:]))

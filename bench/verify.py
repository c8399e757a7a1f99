"""Check a finished run against the truth: python bench/verify.py results/runs/<date>/<run> [...]

Every request of requests.jsonl is checked by teacher-forced passes of the plain models (zoo/reference.py): each token,
each route, each discarded proposal, and why the request ended. Exit code 0 if nothing diverged beyond what is excused
(a margin below 1e-4, in at most 0.1 % of the requests), else 1; 2 for bad input.
"""
from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])  # not bench/, whose modules would hide others

from rich.console import Console
from rich.table import Table

from bench.progress import ProgressView, waiting
from bench.records import Progress

EXCUSED_SHARE = 0.001


def verify(folder: Path, console: Console) -> list[tuple[str, Any]]:
    """(problem id, Verdict) for each completed request of a run; `console` is told how far it is."""
    import yaml

    from tokenrouter.core import InputError

    try:
        values = yaml.safe_load((folder / "config.yaml").read_text())
        rows = [json.loads(line) for line in (folder / "requests.jsonl").read_text().splitlines()]
    except FileNotFoundError as error:
        raise InputError(f"run={str(folder)!r}: has no {Path(error.filename).name}; allowed is the folder of a run "
                         "that has measured something") from None
    except (OSError, ValueError) as error:
        raise InputError(f"run={str(folder)!r}: allowed is a run's folder ({error})") from None
    with waiting(console, f"the reference of {folder}"):
        from bench.plan import prepare
        from zoo.reference import Reference
        from zoo.walk import Record

        plan = prepare(values, here=False)
        models = plan.cluster.models
        reference = Reference.load(
            plan.cluster.algorithms[0].build(), [model.path for model in models], [model.revision for model in models])
    verdicts = []
    began, tokens = time.monotonic(), 0
    with ProgressView(console) as view:
        for done, (job, row) in enumerate(zip(plan.jobs, rows, strict=False)):
            view(Progress(str(folder), done, len(rows), 1, tokens, time.monotonic() - began))
            tokens += len(row["token_ids"])
            if row["error"] is None and row["finish_reason"] in ("stop", "length"):
                record = Record(job.prompt_ids, job.sampling, {}, row["token_ids"], row["token_models"],
                                row["finish_reason"], row["handoffs"])
                verdicts.append((row["id"], reference.verify(record)))
    return verdicts


def main(arguments: list[str]) -> int:
    from tokenrouter.core import InputError

    if not arguments:
        print(f"error: no run given\n{__doc__}", file=sys.stderr)
        return 2
    table = Table("run", "requests", "equal", "excused", "diverged", "first divergence")
    held = True
    for name in arguments:
        try:
            verdicts = verify(Path(name), Console(stderr=True))
        except InputError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        kinds = [verdict.kind for _, verdict in verdicts]
        excused, diverged = kinds.count("excused"), kinds.count("diverged")
        held &= bool(verdicts) and not diverged and excused <= max(1, EXCUSED_SHARE * len(kinds))
        first = next((f"{problem}: {verdict.detail} at {verdict.position}" for problem, verdict in verdicts
                      if verdict.kind != "equal"), "")
        counts = (len(kinds), kinds.count("equal"), excused, diverged)
        table.add_row(Path(name).name, *map(str, counts), first)
    Console().print(table)
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

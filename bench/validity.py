"""Which results count, and which may be compared."""
from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Any

from bench.metrics import FULL_SHARE

LOAD = ("mode", "request_rate", "concurrency", "num_requests", "seed")  # what compared runs have in common
MAX_FAILED_SHARE = 0.001
MIN_REPEATS = 3
MIN_DURATION_S = 60.0
MIN_REQUESTS_A_CLIENT = 10
OUTPUT_TOLERANCE = 0.05  # of the tokens that compared runs write: near ties, and models that answer equally well
MAX_CLIENT_BUSY = 0.5  # of one core: beyond, the load generator itself may be what is slow
MAX_PAUSE_S = 1800.0  # between measurements of two turns: beyond, it may have become another machine
MAX_OTHERS_BUSY = 0.1  # of all cores' time: beyond, what was measured is the machine's other work too


def judge(
    *, mode: str, completed: int, failed: int, duration_s: float, concurrency: int, steady_concurrency: float,
    client_busy: float, others_busy: float, stopped: BaseException | None,
) -> dict[str, Any]:
    """The `validity` of a summary. `unchecked`: demands that lack their counterpart."""
    reasons = []
    if isinstance(stopped, KeyboardInterrupt):
        reasons.append("interrupted")
    elif stopped is not None:
        reasons.append(f"failed: {str(stopped).splitlines()[0] if str(stopped) else type(stopped).__name__}")
    if failed > MAX_FAILED_SHARE * (completed + failed):
        reasons.append(f"{failed} of {completed + failed} requests failed, allowed is {MAX_FAILED_SHARE:.1%}")
    short = []
    if duration_s < MIN_DURATION_S:
        short.append(f"measured {duration_s:.1f} s, a full run takes at least {MIN_DURATION_S:g} s")
    # Of requests that come by themselves, the clients that would have sent them (Little); all at once, there are none.
    clients = {"closed": concurrency, "poisson": steady_concurrency}.get(mode, 0)
    if completed < (least := math.ceil(MIN_REQUESTS_A_CLIENT * clients)):
        short.append(f"{completed} requests, a full run has at least {least}")
    if mode == "closed" and steady_concurrency < FULL_SHARE * concurrency:
        reasons.append(f"mean concurrency {steady_concurrency:.2f} of {concurrency} in the steady window")
    if client_busy > MAX_CLIENT_BUSY:
        reasons.append(f"the load client computed {client_busy:.0%} of the time, allowed is {MAX_CLIENT_BUSY:.0%}")
    if others_busy > MAX_OTHERS_BUSY:
        reasons.append(f"other programs took {others_busy:.0%} of the machine's cores, allowed is "
                       f"{MAX_OTHERS_BUSY:.0%}")
    return {
        "valid": not reasons and not short,
        "kind": "smoke" if short else "full",
        "reasons": reasons + short,
        "unchecked": [
            "routed fraction: no routing profile to compare with",
            "quality: no reference run to compare with",
            f"spread: a single run, comparisons need at least {MIN_REPEATS} interleaved ones",
        ],
    }


def ended_early(summary: Mapping[str, Any]) -> bool:
    """Whether the run was interrupted, or failed, before all its requests were sent and answered."""
    return any(reason == "interrupted" or reason.startswith("failed: ") for reason in summary["validity"]["reasons"])


def comparable_by(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Results may be compared only where these fields of their summaries are the same."""
    origin = summary["provenance"]
    return {
        "models": origin["models_hash"],
        "workload": summary["workload"],
        "data_source": origin["data_source"],
        "data_version": origin["data_version"],
        "grader": (summary["quality"] or {}).get("metric"),
        "sampling": summary["sampling"],
        "hardware": {name: origin[name] for name in ("cpu", "gpu")} | summary["hardware"],
        "evidence": origin["evidence"],
    }


def out_of_turn(repeats: Sequence[Sequence[dict[str, Any]]]) -> str | None:
    """None if runs were made A B A B, of each of `repeats` the first, then of each the second, and so on, those of a
    round one after the other; else in what way they were not."""
    rounds = [sorted((datetime.fromisoformat(run["provenance"]["date"]), run["duration_s"]) for run in made)
              for made in zip(*repeats, strict=False)]
    if any(earlier[-1][0] > later[0][0] for earlier, later in pairwise(rounds)):
        return "not in turns"
    pause_s = max((((date - before).total_seconds() - duration_s)
                   for made in rounds for (before, _), (date, duration_s) in pairwise(made)), default=0.0)
    return None if pause_s <= MAX_PAUSE_S else (
        f"{pause_s / 60:.0f} minutes between turns of a round, allowed are {MAX_PAUSE_S / 60:g}")


def shortcomings(repeats: Sequence[Sequence[dict[str, Any]]]) -> list[str]:
    """What speaks against a comparison beyond its single runs; of each that is compared its repeats, in their order."""
    found, made = [], min(map(len, repeats))
    if made < MIN_REPEATS:
        found.append(f"{made} repeats, comparisons need {MIN_REPEATS}")
    if reason := out_of_turn(repeats):
        found.append(reason)
    if any(run["provenance"].get("dirty") for runs in repeats for run in runs):
        found.append("code that is not committed")
    return found


def differences(runs: Sequence[dict[str, Any]]) -> list[str]:
    """What all runs of a comparison must share and do not."""
    if not runs:
        return []
    shared = [
        comparable_by(run) | {f"load.{name}": run["load"].get(name) for name in LOAD} | {
            "git_sha": run["provenance"]["git_sha"]} for run in runs]
    return [field for field in shared[0] if any(fields[field] != shared[0][field] for fields in shared[1:])]


def unequal_lengths(runs: Sequence[dict[str, Any]]) -> list[str]:
    """Of runs of the same requests, whose speeds mean something beside each other if they write as much."""
    written = [run["total_output_tokens"] for run in runs]
    if max(written) <= (1 + OUTPUT_TOLERANCE) * min(written):
        return []
    return [f"output tokens ({min(written)} to {max(written)}; allowed is a difference of {OUTPUT_TOLERANCE:.0%})"]

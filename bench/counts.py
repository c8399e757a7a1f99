"""Are the subservers' counts of active requests exact at every rest, whatever happened before?

    python bench/counts.py [requests=10000] [policy=hold] [seed=0]

Bursts of requests through three emulated models with little room for KV, so that requests are evicted and preempted; a
tenth is aborted at any moment. After each burst, when nothing is open, the front end's check compares the counts of all
subservers and the owners of all pages. Exit code 1 if a check fails, if nothing was aborted or preempted, or if
batching.max_wait_s was ever needed.
"""
from __future__ import annotations

import random
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BURST = 50


def spec(policy: Any) -> Any:
    from tokenrouter.cluster.spec import AlgorithmSpec, BatchingSpec, ClusterSpec, EngineSpec, ModelSpec

    names = ["small", "medium", "large"]
    router = {"_target_": "zoo.replay.router.Replay", "P": [[0.5, 0.3, 0.2]] * 3, "C": [[1, 1, 1]] * 3}
    return ClusterSpec(
        models=[ModelSpec(name=name, path=name) for name in names],
        algorithms=[AlgorithmSpec(name="me", roles=names, routers=dict.fromkeys(names, router), entry="small",
                                  models=[0, 1, 2])],
        batching=BatchingSpec(policy=policy, B=[2, 3, 4]),
        engine=EngineSpec(kind="emulated", capacity_tokens=1024, options={
            "realtime": False, "models": {name: {"latency_ms": 0.1} for name in names}}))


def main(words: list[str]) -> int:
    from rich.console import Console

    from bench.progress import ProgressView
    from bench.records import Progress
    from tokenrouter.cluster.cluster import Cluster
    from tokenrouter.core import SamplingParams
    from tokenrouter.server.frontend import TokenEvent

    given = {"requests": "10000", "policy": "hold", "seed": "0"} | dict(word.split("=", 1) for word in words)
    total = int(given["requests"])
    rng, sent, aborts, rests, tokens = random.Random(int(given["seed"])), 0, 0, 0, 0
    with Cluster(spec(given["policy"])) as cluster, ProgressView(Console(stderr=True)) as view:
        frontend, began = cluster.frontend, time.monotonic()
        while sent < total:
            rids = [frontend.submit([rng.randrange(1, 32) for _ in range(rng.randint(1, 60))],
                                    SamplingParams(rng.randrange(2**40), rng.randint(1, 60)), "me")
                    for _ in range(BURST)]
            sent += len(rids)
            doomed = rng.sample(rids, BURST // 10)
            while frontend.num_open:
                events = frontend.poll(0.02)
                tokens += sum(len(event.token_ids) for event in events if isinstance(event, TokenEvent))
                view(Progress("counting", sent - frontend.num_open, max(total, sent), frontend.num_open, tokens,
                              time.monotonic() - began))
                if doomed and rng.random() < 0.3:
                    frontend.abort(doomed.pop())
                    aborts += 1
            frontend.check()
            rests += 1
        reports = frontend.stats()
    names = ("preemptions", "evictions", "timeouts", "holds")
    totals = {name: sum(report[name] for report in reports) for name in names}
    print(f"{sent} requests, {aborts} aborts asked for, counts and pages exact at all {rests} rests; "
          + ", ".join(f"{count} {name}" for name, count in totals.items()))
    return 0 if aborts and totals["preemptions"] and not totals["timeouts"] else 1


if __name__ == "__main__":
    sys.path[0] = str(ROOT)  # not bench/, whose modules would hide others of the same names
    sys.exit(main(sys.argv[1:]))

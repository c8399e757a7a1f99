"""How soon do thresholds follow when requests begin to behave differently?

    python bench/follow.py [N=8] [before=0.35] [after=0.1] [seconds=12] [policy=optimal] [repeats=3]

N requests are kept in a running emulated system (6.0 and 27.9 ms), each handing over with probability `before`. Then
all are aborted and N others take their place at once, which hand over with probability `after`. Prints the best
thresholds of either, and for each repeat how many steps the small model made from the change until the large model's
threshold was within one of the new best for 20 of its steps on end, and in what share of them it was from then on. Exit
code 1 if that took more than 200 steps.
"""
from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
L_MS = {"small": 6.0, "large": 27.9}


def spec(policy: Any, chances: dict[str, float]) -> Any:
    from tokenrouter.cluster.spec import AlgorithmSpec, BatchingSpec, ClusterSpec, EngineSpec, ModelSpec

    def replay(p: float) -> dict[str, Any]:
        return {"_target_": "zoo.replay.router.Replay", "P": [[1 - p, p], [1, 0]], "C": [[1, 0], [1, 0]]}

    names = list(L_MS)
    return ClusterSpec(
        models=[ModelSpec(name=name, path=name) for name in names],
        algorithms=[AlgorithmSpec(name=name, roles=names, routers=dict.fromkeys(names, replay(p)), entry="small",
                                  models=[0, 1]) for name, p in chances.items()],
        batching=BatchingSpec(policy=policy),
        engine=EngineSpec(kind="emulated", capacity_tokens=65536,
                          options={"models": {n: {"latency_ms": ms} for n, ms in L_MS.items()}}))


def best(N: int, p: float) -> tuple[int, ...]:
    from tokenrouter.throughput.search import search
    from tokenrouter.throughput.spec import Spec

    return search(Spec.parse({"N": N, "P": [[1 - p, p], [1, 0]], "C": [[1, 0], [1, 0]], "L_ms": list(L_MS.values()),
                              "delta_ms": 0.1})).B


def follow(N: int, chances: dict[str, float], seconds: float, policy: str, seed: int) -> tuple[float, list[Any]]:
    """The moment of the change, and the subservers' reports."""
    from tokenrouter.cluster.cluster import Cluster
    from tokenrouter.core import SamplingParams
    from tokenrouter.server.frontend import EndEvent

    changed, sent = 0.0, seed * 10_000
    with Cluster(spec(policy, chances)) as cluster:
        frontend, held = cluster.frontend, set[str]()
        for name in chances:
            changed = time.perf_counter()
            for rid in held:
                frontend.abort(rid)
            held = set()
            while time.perf_counter() < changed + seconds:
                while len(held) < N:
                    held.add(frontend.submit([1] * 8, SamplingParams(sent, 256, ignore_eos=True), name))
                    sent += 1
                held -= {event.rid for event in frontend.poll(0.02) if isinstance(event, EndEvent)}
        return changed, frontend.stats()


STEADY = 20  # steps of the large model: thresholds also pass the new value while requests are exchanged


def judge(changed: float, reports: list[Any], new: int) -> tuple[int | None, float, int]:
    """Steps of the small model from the change until the large one's threshold stayed within one of `new`, None if it
    never did; the share of the large one's steps from then on with such a threshold; the threshold at the change."""
    small, large = reports
    over_time = list(zip(large["start_s"], large["thresholds"], strict=True))
    before = [B for start, B in over_time if start < changed]
    near = [(start, abs(B - new) <= 1) for start, B in over_time if start >= changed]
    for i, (start, _) in enumerate(near[:-STEADY]):
        if all(good for _, good in near[i : i + STEADY]):
            steps = sum(changed <= moment < start for moment in small["start_s"])
            return steps, sum(good for _, good in near[i:]) / len(near[i:]), before[-1]
    return None, 0.0, before[-1]


def main(words: list[str]) -> int:
    from bench.progress import waiting

    given = {"N": "8", "before": "0.35", "after": "0.1", "seconds": "12", "policy": "optimal", "repeats": "3"}
    try:
        given |= dict(word.split("=", 1) for word in words)
        N, seconds, repeats = int(given["N"]), float(given["seconds"]), int(given["repeats"])
        chances = {name: float(given[name]) for name in ("before", "after")}
    except ValueError:
        print(f"error: {' '.join(words)}: allowed is {' '.join(f'{k}={v}' for k, v in given.items())}", file=sys.stderr)
        return 2
    old, new = (best(N, p) for p in chances.values())
    table = Table("repeat", "B at the change", "steps until near the new one", "share near it since",
                  title=f"N = {N}: best B {old} for p = {chances['before']:g}, {new} for p = {chances['after']:g}")
    late = 0
    for repeat in range(repeats):
        with waiting(Console(stderr=True), f"repeat {repeat + 1} of {repeats}, {2 * seconds:g} s each"):
            changed, reports = follow(N, chances, seconds, given["policy"], repeat)
        steps, share, before = judge(changed, reports, new[1])
        table.add_row(str(repeat), str(before), "never" if steps is None else str(steps), f"{share:.0%}")
        late += steps is None or steps > 200
    Console().print(table)
    return int(late > 0)


if __name__ == "__main__":
    sys.path[0] = str(ROOT)  # not bench/, whose modules would hide others of the same names
    sys.exit(main(sys.argv[1:]))

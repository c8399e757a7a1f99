"""One model alone, in one or more copies side by side: what a routed pair must beat with the same cores."""
from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from bench.systems import Service
from tokenrouter.cluster.cluster import Cluster
from tokenrouter.cluster.spec import ClusterSpec
from tokenrouter.core import FinishReason, SamplingParams
from tokenrouter.server.frontend import EndEvent, Event, Frontend


class Replicas:
    """Each request goes to the copy with the fewest open ones; what the copies measure is reported as one."""

    def __init__(self, frontend: Frontend, algorithms: Sequence[str]) -> None:
        self._frontend, self._algorithms = frontend, list(algorithms)
        self.models = frontend.models[:1]
        self._open: Counter[int] = Counter()
        self._copy: dict[str, int] = {}

    def submit(self, prompt_ids: Sequence[int], sampling: SamplingParams, algorithm: str) -> str:
        copy = min(range(len(self._algorithms)), key=lambda i: self._open[i])
        rid = self._frontend.submit(prompt_ids, sampling, self._algorithms[copy])
        self._open[copy] += 1
        self._copy[rid] = copy
        return rid

    def abort(self, rid: str, reason: FinishReason = FinishReason.ABORT) -> None:
        self._frontend.abort(rid, reason)

    def poll(self, timeout_s: float) -> list[Event]:
        events = self._frontend.poll(timeout_s)
        for event in events:
            if isinstance(event, EndEvent):
                self._open[self._copy.pop(event.rid)] -= 1
        return events

    def reset_stats(self) -> None:
        self._frontend.reset_stats()

    def stats(self) -> list[dict[str, Any]]:
        """Single steps of all copies in one list; times and counts added, so that shares of time are means."""
        name, reports = self._algorithms[0], self._frontend.stats()
        merged: dict[str, Any] = {"role": {name: 0}, "threshold_B": reports[0]["threshold_B"]}
        for field in reports[0].keys() - merged.keys():
            values = [report[field] for report in reports]
            if field in ("transitions", "commits"):
                rows = [value[own] for value, own in zip(values, self._algorithms, strict=True) if own in value]
                merged[field] = {name: [sum(column) for column in zip(*rows, strict=True)]}
            elif field == "engine":
                merged[field] = {key: sum(value[key] for value in values) for key in values[0]}
            else:
                merged[field] = sum(values, start=type(values[0])())
        return [merged]


@contextmanager
def serve(spec: ClusterSpec) -> Iterator[Service]:
    with Cluster(spec) as cluster:
        yield Replicas(cluster.frontend, [algorithm.name for algorithm in spec.algorithms])

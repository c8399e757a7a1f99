"""The load on a system: who sends which request when, and what came back at which time."""
from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from bench.config import LoadConfig
from bench.others import Others
from bench.records import Job, Progress, Record, Trace
from bench.systems import Service
from tokenrouter.server.frontend import EndEvent, TokenEvent

_POLL_S = 0.1
_TELL_S = 0.2  # between two reports of progress
_DRAIN_S = 2.0  # how long requests that were aborted may take to end


def arrivals(load: LoadConfig) -> list[float] | None:
    """Seconds from the beginning at which each request is sent; None in a closed loop, where the one before says so."""
    if load.mode == "closed":
        return None
    if load.request_rate is None:
        return [0.0] * load.num_requests
    gaps = np.random.default_rng(load.seed).exponential(1 / load.request_rate, load.num_requests)
    return list(np.cumsum(gaps) - gaps[0])


class LoadGenerator:
    """In a closed loop `concurrency` clients, each of which sends its next request when its last one has ended."""

    def __init__(
        self, service: Service, algorithm: str, concurrency: int, stall_s: float,
        watch: Callable[[Progress], None] = lambda _: None,
    ) -> None:
        self._service, self._algorithm, self._concurrency = service, algorithm, concurrency
        self._stall_s, self._watch = stall_s, watch

    def run(self, phase: str, jobs: Sequence[Job], at: Sequence[float] | None = None) -> Trace:
        """Send `jobs` in their order, `at` these seconds or, without, in a closed loop.

        A failure of the system or Ctrl-C ends the phase early; what was is kept.
        """
        others = Others()
        trace = Trace([], time.perf_counter(), 0.0, 0.0, 0.0)
        cpu = self._cpu_s()
        active: dict[str, Record] = {}
        try:
            self._drive(phase, jobs, at, trace, active)
        except (RuntimeError, KeyboardInterrupt) as stopped:
            trace.stopped = stopped
            self._abandon(active)
        trace.ended = max([r.end for r in trace.records if not math.isnan(r.end)], default=time.perf_counter())
        trace.others_busy = others.cores() / (os.cpu_count() or 1)
        trace.client_busy = (self._cpu_s() - cpu) / max(time.perf_counter() - trace.began, 1e-9)
        return trace

    def _cpu_s(self) -> float:
        """That the load client has computed, here and in what a service does for it."""
        return time.thread_time() + getattr(self._service, "client_cpu_s", lambda: 0.0)()

    def _drive(self, phase: str, jobs: Sequence[Job], at: Sequence[float] | None, trace: Trace,
               active: dict[str, Record]) -> None:
        todo = deque(jobs)
        tokens, told, heard = 0, 0.0, time.perf_counter()
        while todo or active:
            wait_s = self._send_due(todo, at, trace, active)
            events = self._service.poll(wait_s)
            now = time.perf_counter()
            heard = now if events or not active else heard
            if now - heard > self._stall_s:
                raise RuntimeError(f"no token from any of {len(active)} requests for load.stall_s={self._stall_s:g} s")
            for event in events:
                record = active[event.rid]
                if isinstance(event, TokenEvent):
                    _take(record, event)
                    tokens += len(event.token_ids)
                    continue
                _end(record, event)
                del active[event.rid]
                if todo and at is None:  # at once, before what else has come is looked at
                    self._send(todo.popleft(), trace, active)
            if now - told < _TELL_S and (todo or active):
                continue
            told, done = now, len(trace.records) - len(active)
            unsent_s = at[-1] - (now - trace.began) if at and todo else 0.0
            self._watch(Progress(phase, done, len(jobs), len(active), tokens, now - trace.began, max(unsent_s, 0.0)))

    def _send_due(self, todo: deque[Job], at: Sequence[float] | None, trace: Trace, active: dict[str, Record]) -> float:
        """Seconds that may be waited before it is to be asked again."""
        if at is None:
            while todo and len(active) < self._concurrency:
                self._send(todo.popleft(), trace, active)
            return _POLL_S
        while todo:
            early_s = trace.began + at[len(trace.records)] - time.perf_counter()
            if early_s > 0:
                return min(early_s, _POLL_S)
            self._send(todo.popleft(), trace, active)
        return _POLL_S

    def _send(self, job: Job, trace: Trace, active: dict[str, Record]) -> None:
        record = Record(job, time.perf_counter())
        rid = self._service.submit(job.prompt_ids, job.sampling, self._algorithm)
        active[rid] = record
        trace.records.append(record)

    def _abandon(self, active: dict[str, Record]) -> None:
        """Abort what is under way, and wait a moment for it to end."""
        deadline = time.perf_counter() + _DRAIN_S
        try:
            for rid in active:
                self._service.abort(rid)
            while active and time.perf_counter() < deadline:
                for event in self._service.poll(_POLL_S):
                    if isinstance(event, EndEvent) and event.rid in active:
                        _end(active.pop(event.rid), event)
        except RuntimeError:  # the system is what failed: it has no more to say
            pass


def _take(record: Record, event: TokenEvent) -> None:
    if event.position != len(record.token_ids):
        raise RuntimeError(f"{event.rid}: tokens at position {event.position}, expected {len(record.token_ids)}")
    record.token_ids += event.token_ids
    record.roles += [event.role] * len(event.token_ids)
    record.signals += [event.signal, *[None] * (len(event.token_ids) - 1)]
    if record.chunks and record.chunks[-1][0] == event.time:  # came together, whoever wrote which
        record.chunks[-1] = (event.time, record.chunks[-1][1] + len(event.token_ids))
    else:
        record.chunks.append((event.time, len(event.token_ids)))


def _end(record: Record, event: EndEvent) -> None:
    record.end, record.reason, record.error = event.time, event.reason, event.error
    record.handoffs, record.discarded = event.handoffs, event.discarded
    if record.error is None and event.num_output != len(record.token_ids):
        record.error = f"{len(record.token_ids)} tokens arrived, {event.num_output} were counted"

"""Which requests the next step runs, and whose KV makes room for them."""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from tokenrouter.core import Request, Status
from tokenrouter.engine.base import Engine, Row
from tokenrouter.subserver.policy import LaunchPolicy, Verdict

# A resume or a first handoff of a few tokens costs about a decode; longer appends share the chunk budget.
SHORT_APPEND = 16


@dataclass(slots=True)
class SchedulerCounters:
    evictions: int = 0  # KV taken from requests that are away
    preemptions: int = 0  # KV taken from requests that are here
    timeouts: int = 0  # launches below the threshold after max_wait_s: zero in healthy runs
    deadlines: int = 0  # launches below the threshold to keep the admission delay that was promised
    holds: int = 0  # batches that were ready and waited for more to return


class Scheduler:
    """The requests of one subserver. `ready` are here, in order of first arrival; `away` are at a peer."""

    def __init__(self, engine: Engine, policy: LaunchPolicy, *, max_batch: int, chunk_tokens: int) -> None:
        self.engine, self.policy = engine, policy
        self.max_batch, self.chunk_tokens = max_batch, chunk_tokens
        self.requests: dict[str, Request] = {}
        self.ready: dict[str, Request] = {}
        self.away: dict[str, Request] = {}  # with KV resident, the longest away first
        self.counters = SchedulerCounters()
        self._arrivals = 0
        self._holding = False

    def add(self, request: Request, now: float) -> None:
        """A request that this subserver has not seen: it is here, and waits for its first step."""
        self._arrivals += 1
        request.order = self._arrivals
        self.requests[request.rid] = request
        self._arrive(request, now)

    def resume(self, request: Request, now: float) -> None:
        """It came back: pending -> running, nothing else."""
        self.away.pop(request.rid, None)
        request.status = Status.RUNNING
        # The positions that are asked for are appended, also where nothing was added on the way.
        self.keep(request, request.length - request.num_logits)
        self._arrive(request, now)

    def keep(self, request: Request, length: int) -> None:
        """Of its KV, no more than that."""
        if request.kv_len > length:
            request.kv_len = length
            self.engine.truncate(request.rid, length)

    def _arrive(self, request: Request, now: float) -> None:
        request.arrived, request.admitted = now, False
        self.ready[request.rid] = request

    def depart(self, request: Request) -> None:
        """Handed off: running -> pending; its KV stays until room is needed."""
        request.status = Status.PENDING
        del self.ready[request.rid]
        if request.resident:
            self.away[request.rid] = request

    def remove(self, request: Request) -> None:
        """The request is over: whatever of it is here is given back."""
        request.status = Status.FINISHED
        for table in (self.requests, self.ready):
            table.pop(request.rid, None)
        if request.resident:
            self._release_kv(request)

    def may_launch(self, active: Mapping[int, int], now: float) -> bool:
        """Whether to make a step now. `active`: the requests in the system that can come here, by algorithm."""
        verdict = self.policy.ask(ReadyQueue(self, active, now), now)
        self.counters.timeouts += verdict is Verdict.TIMEOUT
        self.counters.deadlines += verdict is Verdict.DEADLINE
        self.counters.holds += verdict is Verdict.HOLD and not self._holding
        self._holding = verdict is Verdict.HOLD
        return verdict.launches

    def patience_s(self, active: Mapping[int, int], now: float) -> float:
        """How soon the policy wants to be asked again if nothing arrives."""
        return self.policy.patience_s(ReadyQueue(self, active, now), now)

    def assemble(self) -> list[tuple[Request, Row]]:
        """The next batch: everything that is ready and fits, the earliest arrivals first."""
        batch: list[tuple[Request, Row]] = []
        chosen: set[str] = set()
        budget, last = self.chunk_tokens, self._arrivals
        for request in self._candidates():
            if len(batch) == self.max_batch:
                break
            if request.order > last:
                continue
            if not request.resident:
                request.kv_len = self.engine.open(request.rid, request.ids)
                request.resident = True
            missing = request.length - request.kv_len
            take = missing if missing <= SHORT_APPEND else min(missing, budget)
            if take < missing:  # the positions whose logits are wanted come in one step
                take = min(take, missing - request.num_logits)
            if take <= 0:
                continue
            if not self._make_room(request, take, chosen):
                # It waits for those before it, and must not keep room from them; nor may later ones take what it lacks.
                self.counters.preemptions += request.kv_len > 0
                self._release_kv(request)
                last = request.order
                continue
            if missing > SHORT_APPEND:
                budget -= take
            end = request.kv_len + take
            wanted = request.num_logits if end == request.length else 0
            batch.append((request, Row(request.rid, request.span(request.kv_len, end), wanted)))
            chosen.add(request.rid)
        return batch

    def _candidates(self) -> Iterator[Request]:
        ordered = sorted(self.ready.values(), key=lambda request: request.order)
        # Long appends come last: they fill what is left of the step, and nobody waits behind them.
        long = []
        for request in ordered:
            if request.length - request.kv_len <= SHORT_APPEND:
                yield request
            else:
                long.append(request)
        yield from long

    def _make_room(self, request: Request, tokens: int, chosen: set[str]) -> bool:
        """Room for `tokens` more of `request`: from the away first, then from later arrivals that are here.

        Never from rows of this batch. So of the short appends the earliest arrival always gets on, and with it the
        system; a prompt may have to wait until some of them end, and lets no later one take what it lacks.
        """
        while not self.engine.allocate(request.rid, tokens):
            victim = next(iter(self.away.values()), None)
            if victim is not None:
                self.counters.evictions += 1
            else:
                later = [r for r in self.ready.values()
                         if r.resident and r.rid not in chosen and r.order > request.order]
                if not later:
                    return False
                victim = max(later, key=lambda r: r.order)
                self.counters.preemptions += 1
            self._release_kv(victim)
        return True

    def _release_kv(self, request: Request) -> None:
        self.engine.free(request.rid, request.ids[: request.kv_len])
        request.resident, request.kv_len = False, 0
        self.away.pop(request.rid, None)


class ReadyQueue:
    """What a launch policy is shown (tokenrouter.subserver.policy.Queue), worked out only when it looks."""

    def __init__(self, scheduler: Scheduler, active: Mapping[int, int], now: float) -> None:
        self.active, self._scheduler, self._now = active, scheduler, now
        self.ready = len(scheduler.ready)
        self.most = scheduler.max_batch

    @cached_property
    def prompt(self) -> bool:
        ready = self._scheduler.ready.values()
        return any(request.status is Status.WAITING and request.role == request.entry for request in ready)

    @cached_property
    def full(self) -> bool:
        """Waiting for one more would be in vain: it could not be admitted together with those that are ready."""
        capacity = self._scheduler.engine.capacity()
        needs = [-(-request.length // capacity.page_size) for request in self._scheduler.ready.values()]
        return sum(needs) + max(needs) > capacity.total // capacity.page_size

    @cached_property
    def waited_s(self) -> float:
        return self._now - min(request.arrived for request in self._scheduler.ready.values())

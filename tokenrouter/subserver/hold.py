"""Optimal thresholds and the hold rule: a batch waits when it is worth waiting for the one that is about to return."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tokenrouter.cluster.spec import BatchingSpec
from tokenrouter.subserver import messages as m
from tokenrouter.subserver.controller import Planned, Planner
from tokenrouter.subserver.policy import Queue, Sender, Step, Verdict

GRACE = 0.5  # of a batch's announced duration: later than that it is not waited for


@dataclass(frozen=True, slots=True)
class Running:
    """A batch at a peer, as it announced it."""

    batch: int
    due: float
    expires: float


class Hold(Planned):
    """An idle model i with k ready requests waits on while k r < b p_ji (L_i(k) - r).

    j is the other model that ends next, r the time it still takes, b its batch: what the k lose by waiting is less than
    what those lose on average that would find i in mid-step. Peers announce a batch with its size and the time it will
    take, and its end; one that is overdue counts as ending now, for a while.
    """

    def __init__(self, spec: BatchingSpec, index: int, planner: Planner | None) -> None:
        super().__init__(spec, index, planner)
        self._running: dict[int, Running] = {}

    def bind(self, mailbox: Sender, models: Sequence[Sequence[int]]) -> None:
        super().bind(mailbox, models)
        self._announced = False

    def decide(self, queue: Queue, now: float) -> Verdict:
        verdict = super().decide(queue, now)
        if verdict is not Verdict.LAUNCH or not self._worth_waiting(queue.ready, now):
            return verdict
        # Peers that launch again and again could have it wait for ever.
        forced = queue.prompt or queue.full or queue.waited_s >= self.spec.max_wait_s
        return verdict if forced else Verdict.HOLD

    def _worth_waiting(self, ready: int, now: float) -> bool:
        plan, sender = self.controller.plan, self._next(now)
        if plan is None or sender is None:
            return False
        own, theirs = plan.figures[self.index], plan.figures[sender]
        if own is None or theirs is None:
            return False
        running = self._running[sender]
        left_ms = max(running.due - now, 0.0) * 1e3
        return ready * left_ms < running.batch * theirs.P[self.index] * (own.step_ms(ready) - left_ms)

    def _next(self, now: float) -> int | None:
        """The peer whose batch ends next."""
        running = [peer for peer, batch in self._running.items() if batch.expires > now]
        return min(running, key=lambda peer: self._running[peer].due, default=None)

    def patience_s(self, queue: Queue, now: float) -> float:
        sender = self._next(now) if queue.ready else None
        patience = super().patience_s(queue, now)
        return patience if sender is None else min(patience, self._running[sender].expires - now)

    def launching(self, batch: int, decode: bool, now: float) -> None:
        """Steps that append long stretches are not announced: how long they take is not known."""
        measured = self.controller.measured
        self._announced = decode and measured.known
        if self._announced:
            self.tell(m.Launched(batch, now, measured.figures().step_ms(batch) / 1e3))

    def landed(self, step: Step, now: float) -> None:
        if self._announced:
            self.tell(m.Landed())

    def hear(self, sender: int, message: m.Scheduling, now: float) -> None:
        if isinstance(message, m.Launched):
            due = message.at + message.duration_s  # it may have lain unheard for as long as a step takes here
            self._running[sender] = Running(message.batch, due, due + GRACE * message.duration_s)
        elif isinstance(message, m.Landed):
            self._running.pop(sender, None)
        else:
            super().hear(sender, message, now)

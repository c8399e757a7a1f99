"""The main loop of a subserver: receive, schedule and run, send (paper section 4.2).

One model, one process, one loop. Nothing here waits for a peer: a request that is away is simply not here, and a
request that returns is an entry in `ready` again.
"""
from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import torch

from tokenrouter.core import Request, Status
from tokenrouter.engine.base import Engine, Row
from tokenrouter.subserver.idle import SPIN_S
from tokenrouter.subserver.lifecycle import Lifecycle
from tokenrouter.subserver.mailbox import Mailbox
from tokenrouter.subserver.messages import Scheduling
from tokenrouter.subserver.policy import Step
from tokenrouter.subserver.routing import Routing
from tokenrouter.subserver.scheduler import SHORT_APPEND, Scheduler
from tokenrouter.subserver.stats import Stats

IDLE_POLL_S = 0.1  # how soon an idle subserver notices that its parent is gone
# How long tokens that follow others may wait while steps follow one another: each sending wakes other threads.
TELL_S = 0.003


class LastStep(NamedTuple):
    """A step that has been made, when its requests were routed, and what Stats.step is told of it."""

    step: Step
    now: float
    counted: tuple[float, float, float, int, int, int]


class Subserver:
    def __init__(self, engine: Engine, mailbox: Mailbox, scheduler: Scheduler, lifecycle: Lifecycle,
                 routing: Routing, stats: Stats, alive: Callable[[], bool], *, awake: bool = False) -> None:
        """`awake`: wait without sleeping, but not for longer than SPIN_S after the last step."""
        self.engine, self.mailbox, self.scheduler, self.policy = engine, mailbox, scheduler, scheduler.policy
        self.lifecycle, self.routing, self.stats, self.alive = lifecycle, routing, stats, alive
        self.policy.bind(mailbox, lifecycle.models)
        self.last: LastStep | None = None  # until it has been learnt from
        self.flushed = 0.0  # when everything was last sent
        self.awake, self.worked = awake, 0.0  # when the last step was made

    @torch.inference_mode()
    def run(self) -> None:
        """Serve until told to stop, or until the parent process is gone."""
        while not self.lifecycle.stopping and self.alive():
            if not self.turn():
                now = time.perf_counter()
                patience_s = self.scheduler.patience_s(self.lifecycle.counts, now)
                self.receive(min(max(patience_s, 1e-3), IDLE_POLL_S), awake=self.awake and now - self.worked < SPIN_S)
        self.mailbox.flush()

    def turn(self) -> bool:
        """Once through the three stages; False if there was nothing to run."""
        start = time.perf_counter()
        self.receive()
        batch = self.scheduler.assemble() if self.may_launch() else []
        if batch:
            self.step(batch, start)
        else:
            self.catch_up(idle=True)
        return bool(batch)

    def receive(self, timeout_s: float = 0.0, *, awake: bool = False) -> None:
        """Everything that has arrived, whole bursts, before any launch is decided."""
        for sender, message in self.mailbox.receive(timeout_s, awake=awake):
            if isinstance(message, Scheduling):
                self.policy.receive(sender, message, time.perf_counter())
            else:
                self.lifecycle.handle(sender, message)

    def may_launch(self) -> bool:
        return self.scheduler.may_launch(self.lifecycle.counts, time.perf_counter())

    def step(self, batch: list[tuple[Request, Row]], start: float) -> None:
        """One forward pass, then each complete row is routed, and accepted, discarded or handed over.

        What is left of the step before is done while the device computes, where it does so by itself; sampling and
        routing are queued behind the forward pass, and `finish` waits for all.
        """
        decode = all(len(row.token_ids) <= SHORT_APPEND for _, row in batch)
        launched = time.perf_counter()
        self.policy.launching(len(batch), decode, launched)
        if not self.engine.asynchronous:  # this thread computes, so whatever is in the outbox would have to wait
            self.catch_up()
        output = self.engine.step([row for _, row in batch])
        if self.engine.asynchronous:  # before a router that reads from the device waits for it
            self.catch_up()
        complete = self.written(batch, launched)
        decided = self.routing.decide(complete, output) if complete else None
        tokens = sum(len(row.token_ids) for _, row in batch)
        threshold = self.policy.threshold(self.lifecycle.counts)
        compute_s = output.finish()
        moves = self.routing.settle(decided, self.stats) if decided else []
        now = time.perf_counter()
        step = Step(len(batch), moves, (now - start) * 1e3, decode, len(self.lifecycle.active))
        self.worked = now
        self.policy.landed(step, now)
        self.mailbox.flush(peers_only=True)  # handoffs at once; what the front end is told goes out in `catch_up`
        self.last = LastStep(step, now, (start, time.perf_counter(), compute_s, len(batch), tokens, threshold))

    def catch_up(self, *, idle: bool = False) -> None:
        """What no peer waits for: the last step is learnt from and counted, and the front end is told of it."""
        if last := self.last:
            self.last = None
            self.policy.learn(last.step, last.now)
            self.stats.step(*last.counted)
        now = time.perf_counter()
        if due := idle or now - self.flushed >= TELL_S:
            self.flushed = now
        self.mailbox.flush(patiently=not due)

    def written(self, batch: list[tuple[Request, Row]], launched: float) -> list[Request]:
        """The rows' tokens are in KV; returns the requests of which nothing is missing there, so that they go on."""
        complete = []
        for request, row in batch:
            request.kv_len += len(row.token_ids)
            if not request.admitted:
                request.admitted = True
                self.stats.admission_ms.append((launched - request.arrived) * 1e3)
            if row.num_logits:
                request.status = Status.RUNNING
                complete.append(request)
        return complete

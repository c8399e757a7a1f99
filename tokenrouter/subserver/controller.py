"""Thresholds that follow what is measured: paper section 4.3, in service and without a coordinator.

Each subserver measures its own P and L and tells its peers now and then. The one whose figures, or whose count of
requests, have drifted from those of the plan in force has a new plan worked out by a process of its own (planner.py)
and tells everybody. The latest plan is in force as soon as it is heard; thresholds for another number of requests are
scaled from it at once, so B follows the count without waiting for anybody.
"""
from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Protocol

from tokenrouter.cluster.spec import BatchingSpec
from tokenrouter.subserver import messages as m
from tokenrouter.subserver.measure import Measured
from tokenrouter.subserver.policy import LaunchPolicy, Queue, Sender, Step, Verdict, scaled, shrunk

TELL_EVERY = 16  # steps between two messages of figures, and before the first plan
SMALL_DRIFT = 0.05  # costs less than 1 % of throughput: no reason for a new plan
PATIENCE = 10.0  # drift times steps that a plan is kept in spite of it: 20 steps where figures are half off
ASK_EVERY_S = 0.5  # a planner must not compute all the time


class Planner(Protocol):
    """Works out thresholds, elsewhere; one question at a time."""

    @property
    def free(self) -> bool: ...

    def ask(self, active: int, figures: Sequence[m.Figures | None], start: Sequence[int] | None) -> None:
        """`figures`: None of a model that has had nothing to do, and that no other's requests go to."""

    def answer(self) -> tuple[int, ...] | None:
        """The thresholds that were asked for, once; None as long as there are none. Never waits."""


class Controller:
    """The plan in force, and the figures that plans are made of. Without a planner it only listens."""

    def __init__(self, index: int, planner: Planner | None) -> None:
        self.index, self.planner = index, planner
        self.plan: m.Plan | None = None

    def bind(self, count: int) -> None:
        """Of `count` subservers in all."""
        self.measured = Measured(self.index, count)
        self.figures: list[m.Figures | None] = [None] * count
        self._asked_at, self._planned_at = -math.inf, 0
        self._question: tuple[int, tuple[m.Figures | None, ...]] = (0, ())
        self._followed: m.Plan | None = None  # the plan in force at the step before
        self._active = 0  # requests here when it came, which differ from the author's where algorithms share models

    def learn(self, step: Step, now: float) -> m.Figures | m.Plan | None:
        """After each step: what there is to tell, if anything."""
        self.measured.add(step)
        if self.planner is not None and (B := self.planner.answer()) is not None:
            active, figures = self._question
            version = self.plan.version + 1 if self.plan else 1
            return m.Plan(version, self.index, active, B, figures)
        if not self.measured.known or self.measured.steps % TELL_EVERY:
            return None
        own = self.figures[self.index] = self.measured.figures()
        if self.plan is not self._followed:
            self._followed = self.plan
            self._active = self.plan.active if self.plan and self.plan.author == self.index else step.active
        if self.planner and self.planner.free and self._due(own, step.active, now):
            self._asked_at, self._question = now, (step.active, tuple(self.figures))
            start = scaled(self.plan.B, self.plan.active, step.active) if self.plan else None
            self.planner.ask(step.active, self.figures, start)
        return own

    def _due(self, own: m.Figures, active: int, now: float) -> bool:
        if active < 2 or now - self._asked_at < ASK_EVERY_S or not self._complete():
            return False
        then = self.plan.figures[self.index] if self.plan else None
        if then is None:
            return True
        off = max(self.measured.drift(own, then), abs(active / max(self._active, 1) - 1))
        return off > SMALL_DRIFT and off * (self.measured.steps - self._planned_at) >= PATIENCE

    def _complete(self) -> bool:
        """Whether two or more models are known, and all to which their requests go."""
        known = [figures for figures in self.figures if figures]
        missing = [index for index, figures in enumerate(self.figures) if figures is None]
        return len(known) > 1 and not any(figures.P[index] for figures in known for index in missing)

    def hear(self, sender: int, message: m.Figures | m.Plan) -> m.Plan | None:
        """Returns the plan in force if the sender should know it."""
        if isinstance(message, m.Figures):
            self.figures[sender] = message
        elif self.plan is None or (message.version, message.author) > (self.plan.version, self.plan.author):
            self.plan, self._planned_at = message, self.measured.steps
        elif message != self.plan:
            return self.plan
        return None


class Planned(LaunchPolicy):
    """The B that are best by the throughput model for what is measured; eager until the first plan."""

    def __init__(self, spec: BatchingSpec, index: int, planner: Planner | None) -> None:
        super().__init__(spec, index)
        self.controller = Controller(index, planner)

    def bind(self, mailbox: Sender, models: Sequence[Sequence[int]]) -> None:
        super().bind(mailbox, models)
        self.controller.bind(max([self.index, *self.peers]) + 1)

    def thresholds(self, active: int) -> tuple[int, ...]:
        """B of all subservers for that many requests, before each algorithm's own count bounds them."""
        plan = self.controller.plan
        return scaled(plan.B, plan.active, active) if plan else (1,) * len(self.controller.figures)

    def threshold(self, active: Mapping[int, int]) -> int:
        plan = self.controller.plan
        if plan is None:
            return 1
        alone = len(self.models) == 1  # else B is of several algorithms' requests, and more than one's count asks for
        found = shrunk(lambda count: scaled(plan.B, plan.active, count if alone else max(count, plan.active)),
                       self.index, self.models, active)
        return min(found, self.thresholds(sum(active.values()))[self.index])

    def learn(self, step: Step, now: float) -> None:
        message = self.controller.learn(step, now)
        if isinstance(message, m.Plan):
            self.receive(self.index, message, now)
        if message is not None:
            self.tell(message)

    def hear(self, sender: int, message: m.Scheduling, now: float) -> None:
        if isinstance(message, m.Figures | m.Plan) and (newer := self.controller.hear(sender, message)):
            self.mailbox.post(sender, newer)


class Bounded(Planned):
    """The same with a deadline: nobody waits longer than `slo_ms` for others to come.

    A request that arrives in mid-step also waits for the end of that step, so the admission delay is bounded by the
    greater of slo_ms and a step, and B is as large as throughput asks for where the bound allows.
    """

    def decide(self, queue: Queue, now: float) -> Verdict:
        verdict = super().decide(queue, now)
        late = verdict is Verdict.WAIT and queue.ready and queue.waited_s >= self.spec.slo_ms / 1e3
        return Verdict.DEADLINE if late else verdict

    def patience_s(self, queue: Queue, now: float) -> float:
        return min(super().patience_s(queue, now), self.spec.slo_ms / 1e3 - queue.waited_s if queue.ready else math.inf)

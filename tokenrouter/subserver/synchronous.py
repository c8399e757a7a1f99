"""The synchronous ways of running several models (paper figure 4 a, b), as launch policies over the same loop.

They are here to be compared with. Both are the best of their kind: nothing waits for anything but the synchronisation.
"""
from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Literal

from tokenrouter.subserver import messages as m
from tokenrouter.subserver.controller import Planned
from tokenrouter.subserver.policy import LaunchPolicy, Queue, Sender, Step, Verdict


class StepSync(LaunchPolicy):
    """Rounds: all models that have requests make one step, and the next round begins when all have ended.

    A model without requests passes when it hears that another one has begun, so that an idle system is silent.
    """

    round = 0
    over = False  # whether this model is done with the round

    def bind(self, mailbox: Sender, models: Sequence[Sequence[int]]) -> None:
        super().bind(mailbox, models)
        self._heard: defaultdict[int, dict[int, str]] = defaultdict(dict)

    def decide(self, queue: Queue, now: float) -> Verdict:
        while True:
            stages = self._heard[self.round]
            if self.over:
                if any(stages.get(peer, "begin") == "begin" for peer in self.peers):
                    return Verdict.WAIT
                del self._heard[self.round]
                self.round, self.over = self.round + 1, False
            elif "end" in stages.values() or (stages and not queue.ready):
                self._say("pass")  # what is ready came too late for this round
            else:
                return Verdict.LAUNCH if queue.ready else Verdict.WAIT

    def launching(self, batch: int, decode: bool, now: float) -> None:
        self._say("begin")

    def landed(self, step: Step, now: float) -> None:
        self._say("end")

    def hear(self, sender: int, message: m.Scheduling, now: float) -> None:
        if isinstance(message, m.Round):
            self._heard[message.number][sender] = message.stage

    def patience_s(self, queue: Queue, now: float) -> float:
        return math.inf  # only messages change anything

    def _say(self, stage: Literal["begin", "pass", "end"]) -> None:
        self.over = stage != "begin"
        self.tell(m.Round(self.round, stage))


class ModelSync(Planned):
    """One model at a time: the holder of the baton runs, the others' requests stall.

    It passes the baton on when at least B_j requests wait at another model, or none is left at its own. The B that are
    best for that are found like those of delayed batching. Passing it only when nothing is left would be B_j = N.
    """

    holding: bool

    def bind(self, mailbox: Sender, models: Sequence[Sequence[int]]) -> None:
        super().bind(mailbox, models)
        self.holding = self.index == 0
        self._stepped = False  # whether it has made a step since the baton came
        self._waiting = [0] * (max([self.index, *self.peers]) + 1)

    def decide(self, queue: Queue, now: float) -> Verdict:
        if not self.holding or not any(queue.active.values()):
            return Verdict.WAIT  # in an idle system the baton rests
        self._waiting[self.index] = queue.ready
        target = self._next(queue)
        if target == self.index:
            return Verdict.LAUNCH if queue.ready else Verdict.WAIT
        self.holding = False
        self.mailbox.post(target, m.Baton(self._waiting))
        return Verdict.WAIT

    def threshold(self, active: Mapping[int, int]) -> int:
        """B_i as it is used: no sum of B is too large where the baton moves on from an empty model."""
        return self.thresholds(sum(active.values()))[self.index]

    def _next(self, queue: Queue) -> int:
        if not self.peers:
            return self.index
        fullest = max(self.peers, key=lambda peer: self._waiting[peer])
        enough = self.thresholds(sum(queue.active.values()))[fullest]
        if queue.ready and (not self._stepped or self._waiting[fullest] < enough):
            return self.index
        if queue.ready or self._waiting[fullest]:
            return fullest
        # Nobody is known to wait, so somebody unknown does: a prompt at its entry.
        return next((peer for peer in self.peers if peer > self.index), self.peers[0])

    def landed(self, step: Step, now: float) -> None:
        self._stepped = True
        for target, _ in step.moves:
            self._waiting[target] += target != self.index

    def hear(self, sender: int, message: m.Scheduling, now: float) -> None:
        super().hear(sender, message, now)
        if isinstance(message, m.Baton):
            self.holding, self._stepped, self._waiting = True, False, list(message.waiting)

    def patience_s(self, queue: Queue, now: float) -> float:
        return math.inf

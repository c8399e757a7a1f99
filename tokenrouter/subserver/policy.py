"""When a subserver launches a batch (paper section 4.3): what policies share, and the two that need no figures."""
from __future__ import annotations

import enum
import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple, Protocol

import msgspec

from tokenrouter.cluster.spec import BatchingSpec
from tokenrouter.subserver import messages as m


class Verdict(enum.StrEnum):
    LAUNCH = "launch"
    WAIT = "wait"
    HOLD = "hold"  # enough are ready, but more are about to return
    DEADLINE = "deadline"  # launch below the threshold, as a request may not wait longer
    TIMEOUT = "timeout"  # the same as the last resort: zero in healthy runs

    @property
    def launches(self) -> bool:
        return self not in (Verdict.WAIT, Verdict.HOLD)


class Queue(Protocol):
    """What a policy may look at when it is asked."""

    @property
    def ready(self) -> int:
        """Requests that the next step could run."""

    @property
    def active(self) -> Mapping[int, int]:
        """Requests in the system that can visit this model, by algorithm."""

    @property
    def most(self) -> int:
        """The most that a step may run."""

    @property
    def prompt(self) -> bool:
        """A new prompt is at its entry: it does not wait."""

    @property
    def full(self) -> bool:
        """One more request could not be admitted together with those that are ready."""

    @property
    def waited_s(self) -> float:
        """How long the one that has waited longest has."""


class Asked(msgspec.Struct, array_like=True, tag=True):
    """In the log: a decision, and the queue that it was made on (of which it has the fields)."""

    now: float
    ready: int
    active: dict[int, int]
    most: int
    prompt: bool
    full: bool
    waited_s: float
    verdict: Verdict


class Heard(msgspec.Struct, array_like=True, tag=True):
    """In the log: a message as a policy got it."""

    now: float
    sender: int
    message: m.Scheduling


class Step(NamedTuple):
    """A step that has been made. `moves`: for each routed row the subserver it went to and the tokens committed.
    `decode`: no row appended a long stretch, so that the time says what a decoding step takes."""

    batch: int
    moves: list[tuple[int, int]]
    elapsed_ms: float
    decode: bool
    active: int


class Sender(Protocol):
    def post(self, destination: int, message: m.Message) -> None: ...


class LaunchPolicy:
    """Eager: launch as soon as anything is ready. Others change `threshold`, `decide` or more.

    What a decision depends on comes in through `ask` and `receive`, with the time it came, and can be logged: replaying
    the log (policies.py) reproduces every decision.
    """

    def __init__(self, spec: BatchingSpec, index: int) -> None:
        self.spec, self.index = spec, index
        self.log: list[Asked | Heard] | None = [] if spec.launch_log else None
        self.models: Sequence[Sequence[int]] = []
        self.peers: list[int] = []

    def bind(self, mailbox: Sender, models: Sequence[Sequence[int]]) -> None:
        """`models[a][r]`: subserver of algorithm a's role r."""
        self.mailbox, self.models = mailbox, models
        self.peers = sorted({model for bound in models for model in bound} - {self.index})

    def ask(self, queue: Queue, now: float) -> Verdict:
        """Whether to launch what is ready."""
        verdict = self.decide(queue, now)
        if self.log is not None and queue.ready:
            self.log.append(Asked(now, queue.ready, dict(queue.active), queue.most, queue.prompt, queue.full,
                                  queue.waited_s, verdict))
        return verdict

    def receive(self, sender: int, message: m.Scheduling, now: float) -> None:
        """What a subserver's policy, perhaps this one, has to say."""
        if self.log is not None:
            self.log.append(Heard(now, sender, message))
        self.hear(sender, message, now)

    def threshold(self, active: Mapping[int, int]) -> int:
        """B_i, with that many requests of each algorithm in the system."""
        return 1

    def decide(self, queue: Queue, now: float) -> Verdict:
        """New prompts pass the gate of delayed batching; all else counts towards B_i."""
        if not queue.ready:
            return Verdict.WAIT
        if queue.ready >= min(self.threshold(queue.active), queue.most) or queue.prompt or queue.full:
            return Verdict.LAUNCH
        return Verdict.TIMEOUT if queue.waited_s >= self.spec.max_wait_s else Verdict.WAIT

    def patience_s(self, queue: Queue, now: float) -> float:
        """How soon to be asked again if nothing arrives."""
        return self.spec.max_wait_s - queue.waited_s if queue.ready else math.inf

    def launching(self, batch: int, decode: bool, now: float) -> None:
        """A step is about to begin."""

    def landed(self, step: Step, now: float) -> None:
        """A step has ended, and what left with it is in the outbox. Peers are told at once of what is told here."""

    def learn(self, step: Step, now: float) -> None:
        """The same step, when there is time: while the next one computes, or when there is none."""

    def hear(self, sender: int, message: m.Scheduling, now: float) -> None:
        """Take note of it."""

    def tell(self, message: m.Scheduling) -> None:
        for peer in self.peers:
            self.mailbox.post(peer, message)


class FixedThreshold(LaunchPolicy):
    """The same B for the whole run, shrunk where the active count makes it infeasible."""

    def threshold(self, active: Mapping[int, int]) -> int:
        return shrunk(lambda count: self.spec.B, self.index, self.models, active)


def shrunk(thresholds: Callable[[int], Sequence[int]], index: int, models: Sequence[Sequence[int]],
           active: Mapping[int, int]) -> int:
    """B of subserver `index`, feasible for each algorithm by itself; `thresholds` are those for so many requests of it.

    Then the requests of any one algorithm always let one of its models launch, whatever those of others do: its
    models know the same thresholds and the same count, and so come to the same, however many others each one has.
    """
    found = []
    for algorithm, count in active.items():
        bound = models[algorithm]
        if index in bound and count:
            B = thresholds(count)
            found.append(feasible(tuple(B[i] for i in bound), count)[bound.index(index)])
    return min(found, default=1)


def scaled(thresholds: Sequence[int], planned: int, active: int) -> tuple[int, ...]:
    """Thresholds for another number of requests than they were planned for: B_i - 1 grows with N - 1."""
    factor = max(active - 1, 0) / max(planned - 1, 1)
    return tuple(1 + int((b - 1) * factor + 0.5) for b in thresholds)


@lru_cache(4096)
def feasible(thresholds: tuple[int, ...], active: int) -> tuple[int, ...]:
    """The nearest thresholds below with sum(B_i - 1) < active (paper equation 22).

    Otherwise every model could be left waiting for requests that wait at another. All subservers know all
    thresholds and the count, and take from the largest (the last of equals) first, so they agree without a word.
    """
    B = list(thresholds)
    while sum(b - 1 for b in B) >= max(active, 1):
        largest = max(range(len(B)), key=lambda i: (B[i], i))
        B[largest] -= 1
    return tuple(B)

"""What a run asks, and what comes back: the words in which the rest of the driver speaks."""
from __future__ import annotations

import math
from dataclasses import dataclass, field

from tokenrouter.core import FinishReason, SamplingParams
from zoo.tasks.rows import Task


@dataclass(frozen=True, slots=True)
class Job:
    """One request to be sent. `sample`: how often its problem was drawn before."""

    task: Task
    sample: int
    prompt_ids: list[int]
    sampling: SamplingParams


@dataclass(slots=True)
class Record:
    """One request as its client saw it; times are perf_counter's. `chunks`: (arrival, tokens in it)."""

    job: Job
    start: float
    chunks: list[tuple[float, int]] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    roles: list[int] = field(default_factory=list)
    end: float = math.nan  # nan: it has not ended
    reason: FinishReason | None = None
    handoffs: int = 0
    discarded: int = 0
    error: str | None = None
    signals: list[float | None] = field(default_factory=list)  # what each token was routed by, where it is told

    @property
    def completed(self) -> bool:
        return self.error is None and self.reason in (FinishReason.STOP, FinishReason.LENGTH)


@dataclass(slots=True)
class Progress:
    """Where a phase of the load stands. `least_left_s`: until the last request is sent, where that is known."""

    phase: str
    done: int
    total: int
    active: int
    tokens: int
    elapsed_s: float
    least_left_s: float = 0.0


@dataclass(slots=True)
class Trace:
    """A phase of the load. `stopped`: why it ended early. `client_busy`: share of the time that the client computed;
    `others_busy`: of all cores' time, what other programs took."""

    records: list[Record]
    began: float
    ended: float
    client_busy: float
    others_busy: float
    stopped: BaseException | None = None

"""How good answers are, and how much of the large model they took."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import binomtest

from zoo.offline import Offline, Progress, greedy
from zoo.setup import Setup
from zoo.tasks.rows import Task
from zoo.tasks.workload import Workload
from zoo.walk import Record


@dataclass
class Outcome:
    """`correct` [n] of each problem. Fractions are of accepted tokens, over all problems together."""

    correct: np.ndarray
    llm_fraction: float
    handoff: float  # share of the small model's proposals that were handed over
    tokens: float  # accepted, a problem

    @property
    def accuracy(self) -> float:
        return float(self.correct.mean())

    def interval(self) -> tuple[float, float]:
        """95 % interval of the accuracy (Wilson)."""
        found = binomtest(int(self.correct.sum()), len(self.correct)).proportion_ci(method="wilson")
        return float(found.low), float(found.high)

    def relative(self, reference: Outcome, seed: int = 0) -> tuple[float, float, float]:
        """Accuracy over the reference's on the same problems, and its 95 % interval (bootstrap over problems)."""
        draws = np.random.default_rng(seed).integers(0, len(self.correct), (2000, len(self.correct)))
        ratios = self.correct[draws].sum(1) / np.maximum(reference.correct[draws].sum(1), 1)
        low, high = np.quantile(ratios, [0.025, 0.975])
        return float(self.correct.sum() / max(reference.correct.sum(), 1)), float(low), float(high)


def measure(
    setup: Setup, workload: Workload, tasks: Sequence[Task], offline: Offline, large: int | None,
    progress: Progress | None = None,
) -> tuple[Outcome, list[Record]]:
    """Decode the tasks greedily and grade them; `large`: the role whose tokens count as the large model's."""
    records = offline.decode(
        greedy([setup.prompt(task) for task in tasks], workload.max_tokens, seed=setup.seed), progress
    )
    return grade(setup, workload, tasks, records, large), records


def grade(
    setup: Setup, workload: Workload, tasks: Sequence[Task], records: Sequence[Record], large: int | None
) -> Outcome:
    correct = np.array([
        setup.same(workload.grader, setup.answer(workload.grader, record), task.expected)
        for record, task in zip(records, tasks, strict=True)
    ])
    total = sum(len(record.token_ids) for record in records)
    written = sum(record.token_models.count(large) for record in records) if large is not None else 0
    discarded = sum(record.discarded or 0 for record in records)
    proposals = total - written + discarded
    return Outcome(correct, written / total, discarded / proposals if proposals else 0.0, total / len(records))


def as_row(outcome: Outcome, reference: Outcome) -> dict[str, Any]:
    """What goes into JSON: fractions and intervals as numbers in [0, 1]."""
    ratio, low, high = outcome.relative(reference)
    return {
        "n": len(outcome.correct), "accuracy": outcome.accuracy, "accuracy_ci95": list(outcome.interval()),
        "quality": ratio, "quality_ci95": [low, high], "llm_token_fraction": outcome.llm_fraction,
        "handoff": outcome.handoff, "tokens_per_problem": outcome.tokens,
    }

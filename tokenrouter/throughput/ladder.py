"""Throughput of the synchronous systems of the paper's figure 4, exact: what delayed batching is compared with.

The state at a moment when nothing runs is how many requests each model has, so the chain is small.
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import multinomial as multinomial_law

from tokenrouter.core import InputError
from tokenrouter.throughput.chain import multinomial
from tokenrouter.throughput.spec import Spec, Thresholds

Counts = tuple[int, ...]


def step_sync(spec: Spec) -> float:
    """Tokens/s where all models step together and the next step begins when the slowest has ended (figure 4 a).

    Requests do not affect each other's ways, so that their places are multinomial.
    """
    _supported(spec)
    routing = np.array(spec.P)
    balance = np.vstack([routing.T - np.eye(spec.M), np.ones(spec.M)])
    share = np.linalg.lstsq(balance, np.eye(spec.M + 1)[-1], rcond=None)[0].clip(0)
    share /= share.sum()
    ticks = sum(float(multinomial_law.pmf(counts, spec.N, share)) * _together(spec, counts)
                for counts in _compositions(spec.N, spec.M))
    tokens = spec.N * float(share @ (routing * np.array(spec.C)).sum(axis=1))
    return tokens / (ticks * spec.tick_ms / 1000)


@dataclass(frozen=True)
class ModelSync:
    """B*, and T(B*) in tokens/s."""

    B: Thresholds
    throughput: float


def model_sync(spec: Spec, B: Thresholds) -> float:
    """Tokens/s where one model runs at a time (figure 4 b): it makes steps until B_j requests wait at another one, or
    none is left at its own; then the one with most runs."""
    _supported(spec)
    states: dict[tuple[int, Counts], int] = {(0, (spec.N, *(0,) * (spec.M - 1))): 0}
    order = list(states)
    entries: list[tuple[int, int, float]] = []
    for row, (holder, counts) in enumerate(order):
        rest = tuple(0 if i == holder else count for i, count in enumerate(counts))
        for moved, probability in multinomial(counts[holder], spec.P[holder]):
            after = tuple(a + b for a, b in zip(rest, moved, strict=True))
            state = (_holder(holder, after, B), after)
            if state not in states:
                states[state] = len(order)
                order.append(state)
            entries.append((row, states[state], probability))
    law = np.zeros((len(order), len(order)))
    for row, column, probability in entries:
        law[row, column] += probability
    weight = _stationary(law)
    served = np.array([counts[holder] for holder, counts in order])
    holders = np.array([holder for holder, _ in order])
    ticks = np.array([spec.step_ticks(holder, counts[holder]) for holder, counts in order])
    tokens = served * (np.array(spec.P) * np.array(spec.C)).sum(axis=1)[holders]
    return float(weight @ tokens / (weight @ ticks * spec.tick_ms / 1000))


def best_model_sync(spec: Spec) -> ModelSync:
    """The best B, by scanning one threshold after the other until nothing changes."""
    B: Thresholds = (spec.N,) * spec.M
    best = model_sync(spec, B)
    while True:
        before = B
        for model in range(spec.M):
            for value in range(1, spec.N + 1):
                tried = (*B[:model], value, *B[model + 1 :])
                if (found := model_sync(spec, tried)) > best * (1 + 1e-10):
                    B, best = tried, found
        if before == B:
            return ModelSync(B, best)


def _holder(holder: int, counts: Counts, B: Thresholds) -> int:
    """Which model runs next: the rule of tokenrouter.subserver.synchronous.ModelSync."""
    others = [i for i in range(len(counts)) if i != holder]
    fullest = max(others, key=lambda i: counts[i], default=holder)
    return holder if counts[holder] and (fullest == holder or counts[fullest] < B[fullest]) else fullest


def _together(spec: Spec, counts: Counts) -> float:
    """Ticks until all models that have requests have made one step, begun together."""
    left = {i: float(spec.step_ticks(i, count)) for i, count in enumerate(counts) if count}
    groups = spec.contention.devices if spec.contention else ()
    total = 0.0
    while left:
        crowded = {i for group in groups for i in group if i in left and sum(j in left for j in group) > 1}
        pace = {i: spec.contention.factor if spec.contention and i in crowded else 1.0 for i in left}
        passed = min(ticks * pace[i] for i, ticks in left.items())
        left = {i: ticks - passed / pace[i] for i, ticks in left.items() if ticks * pace[i] > passed + 1e-9}
        total += passed
    return total


def _compositions(n: int, parts: int) -> Iterator[Counts]:
    if parts == 1:
        yield (n,)
        return
    for first in range(n + 1):
        for rest in _compositions(n - first, parts - 1):
            yield (first, *rest)


def _stationary(law: NDArray[np.float64]) -> NDArray[np.float64]:
    balance = np.vstack([law.T - np.eye(len(law)), np.ones(len(law))])
    weight = np.linalg.lstsq(balance, np.eye(len(law) + 1)[-1], rcond=None)[0].clip(0)
    return np.asarray(weight / weight.sum())


def _supported(spec: Spec) -> None:
    if spec.run_lengths is not None:
        raise InputError("run_lengths: the synchronous systems are predicted for geometric runs only")

"""When a subserver launches a batch (paper section 4.3)."""
from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Protocol

from tokenrouter.cluster.spec import BatchingSpec


class LaunchPolicy(Protocol):
    def threshold(self, active: int) -> int:
        """B_i: how many requests must be ready here, when `active` requests are in the system."""


class Eager:
    """Launch as soon as anything is ready."""

    def threshold(self, active: int) -> int:
        return 1


class FixedThreshold:
    """The same B for the whole run, shrunk where the active count makes it infeasible."""

    def __init__(self, thresholds: Sequence[int], index: int) -> None:
        self._thresholds, self._index = tuple(thresholds), index

    def threshold(self, active: int) -> int:
        return feasible(self._thresholds, active)[self._index]


@cache
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


def make_policy(spec: BatchingSpec, index: int) -> LaunchPolicy:
    return FixedThreshold(spec.B, index) if spec.policy == "fixed" else Eager()

"""Waiting without sleeping, where nobody else needs the core.

A core that halts, as it does when its only process waits, comes back late and with cold caches: that took an eighth of
CITER's throughput on a virtual machine, with one client as with four.
"""
from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

SPIN_S = 0.1  # after the last work; then a process sleeps like any other


def own_core(pin: Sequence[int], index: int, count: int) -> bool:
    """Whether the process of model `index` of `count` shares its core with none of the others."""
    cores = [pin[i % len(pin)] for i in range(count)] if pin else []
    return bool(cores) and cores.count(cores[index]) == 1


def spin(ready: Callable[[], bool], seconds: float) -> bool:
    """Look for something until it is there, at most for so long; whatever else wants the core gets it in between."""
    until = time.perf_counter() + seconds
    while not ready():
        if time.perf_counter() > until:
            return False
        os.sched_yield()
    return True

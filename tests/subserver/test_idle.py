"""Waiting awake: only on a core of one's own, and not for ever."""
from __future__ import annotations

import time

import pytest

from tokenrouter.subserver.idle import own_core, spin


@pytest.mark.parametrize(("pin", "count", "own"), [
    ([0, 1], 2, [True, True]), ([0], 2, [False, False]), ([0, 1], 3, [False, True, False]), ([], 2, [False, False]),
    ([3, 5, 3], 3, [False, True, False]),
])
def test_a_core_of_its_own(pin: list[int], count: int, own: list[bool]):
    assert [own_core(pin, index, count) for index in range(count)] == own


def test_it_ends_when_something_is_there_or_time_is_up():
    looks = iter([False] * 5 + [True])
    assert spin(lambda: next(looks), 60.0)
    began = time.perf_counter()
    assert not spin(lambda: False, 0.02)
    assert 0.02 <= time.perf_counter() - began < 1.0

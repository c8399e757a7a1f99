"""The page pool against a model of it that writes tokens into pages and looks whether they are still there."""
from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tokenrouter.engine.base import EngineCounters
from tokenrouter.engine.pages import PagePool

PAGE, PAGES = 4, 7


class Memory:
    """A pool whose pages hold token ids instead of keys and values."""

    def __init__(self, num_pages: int = PAGES, *, prefix_cache: bool = True) -> None:
        self.slots = [[-1] * PAGE for _ in range(num_pages)]
        self.counters = EngineCounters()
        self.pool = PagePool(
            num_pages, PAGE, prefix_cache=prefix_cache, copy=self.copy, counters=self.counters
        )

    def copy(self, source: int, target: int) -> None:
        self.slots[target] = list(self.slots[source])

    def write(self, rid: str, ids: list[int]) -> None:
        start = self.pool.length(rid)
        for t, token in enumerate(ids, start):
            self.slots[self.pool[rid].pages[t // PAGE]][t % PAGE] = token
        self.pool.append(rid, ids)

    def read(self, rid: str) -> list[int]:
        return [self.slots[self.pool[rid].pages[t // PAGE]][t % PAGE] for t in range(self.pool.length(rid))]

    def run(self, rid: str, ids: list[int]) -> int:
        """Open a sequence and fill in what the cache does not have; returns what it had."""
        had = self.pool.open(rid, ids)
        assert self.pool.allocate(rid, len(ids) - had)
        self.write(rid, ids[had:])
        return had

    def snapshot(self) -> Any:
        pool = self.pool
        return (
            {rid: (list(table.ids), list(table.pages)) for rid, table in pool._sequences.items()},
            list(pool._unused), list(pool._idle), dict(pool._cached), [list(page) for page in self.slots],
        )  # fmt: skip


class PoolMachine(RuleBasedStateMachine):
    """Few tokens and short pages, so that prefixes meet often."""

    @initialize()
    def start(self) -> None:
        self.memory = Memory()
        self.ids: dict[str, list[int]] = {}
        self.cached: set[tuple[int, ...]] = set()
        self.count = 0

    @rule(ids=st.lists(st.integers(0, 1), min_size=1, max_size=18))
    def open(self, ids: list[int]) -> None:
        rid = f"r{self.count}"
        self.count += 1
        had = self.memory.pool.open(rid, ids)
        assert had < len(ids) and had % PAGE == 0
        assert had == 0 or tuple(ids[:had]) in self.cached
        if self.memory.counters.pages_evicted == 0:
            assert had == max((n for n in range(0, len(ids), PAGE) if tuple(ids[:n]) in self.cached), default=0)
        self.ids[rid] = ids[:had]

    @precondition(lambda self: self.ids)
    @rule(data=st.data(), ids=st.lists(st.integers(0, 1), min_size=1, max_size=9))
    def append(self, data: st.DataObject, ids: list[int]) -> None:
        rid = data.draw(st.sampled_from(sorted(self.ids)))
        before = self.memory.snapshot()
        if self.memory.pool.allocate(rid, len(ids)):
            self.memory.write(rid, ids)
            self.ids[rid] += ids
        else:
            assert self.memory.snapshot() == before
            needed = -(-(len(self.ids[rid]) + len(ids)) // PAGE) - len(self.memory.pool[rid].pages)
            assert needed + 1 > self.memory.pool.free_pages  # one more where a shared page must be copied

    @precondition(lambda self: self.ids)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        rid = data.draw(st.sampled_from(sorted(self.ids)))
        length = data.draw(st.integers(0, len(self.ids[rid])))
        self.memory.pool.truncate(rid, length)
        del self.ids[rid][length:]

    @precondition(lambda self: self.ids)
    @rule(data=st.data(), keep=st.booleans())
    def free(self, data: st.DataObject, keep: bool) -> None:
        rid = data.draw(st.sampled_from(sorted(self.ids)))
        ids = self.ids.pop(rid)
        committed = ids[: data.draw(st.integers(0, len(ids)))] if keep else []
        self.memory.pool.free(rid, committed)
        self.cached |= {tuple(committed[:n]) for n in range(PAGE, len(committed) + 1, PAGE)}

    @rule()
    def flush(self) -> None:
        self.memory.pool.flush()
        self.cached.clear()

    @invariant()
    def nothing_is_lost(self) -> None:
        self.memory.pool.check(self.ids)
        for rid, ids in self.ids.items():
            assert self.memory.read(rid) == ids == self.memory.pool[rid].ids


PoolMachine.TestCase.settings = settings(max_examples=50, stateful_step_count=30, deadline=None, derandomize=True)
TestPool = PoolMachine.TestCase


def test_full_pages_of_committed_tokens_are_found_again() -> None:
    memory = Memory()
    memory.run("a", list(range(10)))
    memory.pool.free("a", list(range(10)))
    assert memory.run("b", [*range(9), 99]) == 8  # two full pages; the third was not full
    assert memory.counters.prefix_hit_tokens == 8 and memory.counters.prefix_lookups == 2
    assert memory.counters.pages_allocated == 3 + 1


def test_the_last_id_is_never_adopted() -> None:
    memory = Memory()
    memory.run("a", list(range(8)))
    memory.pool.free("a", list(range(8)))
    assert memory.pool.open("b", list(range(8))) == 4


def test_tokens_that_were_not_committed_are_not_cached() -> None:
    memory = Memory()
    memory.run("a", list(range(8)))
    memory.pool.free("a", [0, 1, 2, 3, 4, 5, 6, 70])
    assert memory.pool.open("b", list(range(9))) == 4
    assert memory.pool.open("c", [0, 1, 2, 3, 4, 5, 6, 70, 8]) == 4


def test_without_prefix_cache_nothing_is_kept() -> None:
    memory = Memory(prefix_cache=False)
    memory.run("a", list(range(8)))
    memory.pool.free("a", list(range(8)))
    assert memory.pool.open("b", list(range(9))) == 0
    assert memory.counters.prefix_lookups == 0


def test_the_least_recently_used_prefix_goes_first_and_from_its_end() -> None:
    memory = Memory(num_pages=4)
    old, new = [1] * 8, [2] * 8
    for rid, ids in (("old", old), ("new", new)):
        memory.run(rid, ids)
        memory.pool.free(rid, ids)
    memory.run("other", [3] * 4)
    assert memory.counters.pages_evicted == 1
    assert memory.pool.open("a", [*old, 0]) == 4
    assert memory.pool.open("b", [*new, 0]) == 8


def test_a_shared_page_is_copied_before_it_is_written() -> None:
    memory = Memory()
    memory.run("a", list(range(8)))
    memory.pool.free("a", list(range(8)))
    memory.run("b", list(range(9)))
    memory.run("c", list(range(9)))
    memory.pool.truncate("b", 6)
    assert memory.pool.allocate("b", 2)
    memory.write("b", [60, 70])
    assert memory.read("b") == [0, 1, 2, 3, 4, 5, 60, 70]
    assert memory.read("c") == list(range(9))
    memory.pool.check(["b", "c"])


def test_no_room_for_the_copy_of_a_shared_page() -> None:
    memory = Memory(num_pages=3)
    memory.run("a", list(range(8)))
    memory.pool.free("a", list(range(8)))
    memory.run("b", list(range(9)))
    memory.pool.open("c", list(range(9)))
    memory.pool.truncate("c", 6)
    before = memory.snapshot()
    assert not memory.pool.allocate("c", 1)
    assert memory.snapshot() == before


def test_a_sequence_alone_can_always_write_to_what_it_holds() -> None:
    memory = Memory(num_pages=2)
    memory.run("a", list(range(8)))
    memory.pool.free("a", list(range(8)))
    assert memory.pool.open("b", list(range(8))) == 4
    assert memory.pool.allocate("b", 4)
    memory.pool.truncate("b", 2)
    assert memory.pool.allocate("b", 6)
    memory.write("b", [20, 30, 40, 50, 60, 70])
    assert memory.read("b") == [0, 1, 20, 30, 40, 50, 60, 70]
    memory.pool.free("b")
    assert memory.pool.open("c", list(range(9))) == 0  # the page it wrote to is no longer the cached one


@pytest.mark.parametrize("length", [-1, 5])
def test_truncate_beyond_the_sequence(length: int) -> None:
    memory = Memory()
    memory.run("a", [1, 2, 3, 4])
    with pytest.raises(ValueError, match="allowed is 0 to 4"):
        memory.pool.truncate("a", length)


def test_check_names_a_leak() -> None:
    memory = Memory()
    memory.run("a", [1, 2, 3])
    with pytest.raises(AssertionError, match="live"):
        memory.pool.check([])
    memory.pool._holders[memory.pool["a"].pages[0]] = 2
    with pytest.raises(AssertionError, match="reference counts"):
        memory.pool.check(["a"])

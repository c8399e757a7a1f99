"""What engines over the page pool share: everything of the protocol but loading a model and making a step."""
from __future__ import annotations

from collections.abc import Iterable, Sequence

from tokenrouter.engine.base import Capacity, Score
from tokenrouter.engine.pages import PagePool


class PagedEngine:
    """Half of tokenrouter.engine.base.Engine: the sequences' life in `_pool`, which the engine makes."""

    _pool: PagePool

    def capacity(self) -> Capacity:
        pool = self._pool
        return Capacity(pool.num_pages * pool.page_size, pool.free_pages * pool.page_size, pool.page_size)

    def open(self, rid: str, ids: Sequence[int]) -> int:
        return self._pool.open(rid, ids)

    def allocate(self, rid: str, num_tokens: int) -> bool:
        return self._pool.allocate(rid, num_tokens)

    def truncate(self, rid: str, length: int) -> None:
        self._pool.truncate(rid, length)

    def free(self, rid: str, ids: Sequence[int] = ()) -> None:
        self._pool.free(rid, ids)

    def kv_len(self, rid: str) -> int:
        return self._pool.length(rid)

    def graphed(self, score: Score) -> Score:
        return score

    def check(self, live: Iterable[str]) -> None:
        self._pool.check(live)

    def flush_cache(self) -> None:
        self._pool.flush()

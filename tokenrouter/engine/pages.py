"""Who owns which page of the KV pool: sequences, the prefix cache, or nobody. No tensors here."""
from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from tokenrouter.engine.base import EngineCounters


@dataclass(slots=True)
class PageTable:
    """A sequence's `ids` whose KV is written, and where: token t is in page `pages[t // page_size]`."""

    ids: list[int] = field(default_factory=list)
    pages: array[int] = field(default_factory=lambda: array("q"))


class PagePool:
    """Page tables over `num_pages` pages of `page_size` tokens, with a cache of full pages.

    A cached page is named by a 128-bit digest of all the token ids up to its end, so that equal digests mean equal
    prefixes. It is shared by reference count, never written while shared, and reclaimed in least-recently-used
    order once no sequence holds it. `copy(source, target)` copies a page's KV: a sequence that was truncated
    into a page which others hold gets a page of its own before it writes on.
    """

    def __init__(
        self,
        num_pages: int,
        page_size: int,
        *,
        prefix_cache: bool = True,
        copy: Callable[[int, int], None],
        counters: EngineCounters,
    ) -> None:
        self.num_pages, self.page_size = num_pages, page_size
        self.counters = counters
        self._prefix_cache = prefix_cache
        self._copy = copy
        self._sequences: dict[str, PageTable] = {}
        self._unused = list(range(num_pages - 1, -1, -1))
        self._holders = [0] * num_pages
        self._digest: list[bytes | None] = [None] * num_pages  # of a cached page
        self._cached: dict[bytes, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()  # cached pages that no sequence holds, oldest first

    @property
    def free_pages(self) -> int:
        """Pages that a sequence can have now: unused ones and those that only the cache holds."""
        return len(self._unused) + len(self._idle)

    def __getitem__(self, rid: str) -> PageTable:
        try:
            return self._sequences[rid]
        except KeyError:
            raise KeyError(f"sequence {rid!r} is not open") from None

    def length(self, rid: str) -> int:
        return len(self[rid].ids)

    def open(self, rid: str, ids: Sequence[int]) -> int:
        """Begin a sequence with the cached full pages that `ids` starts with, its last id left out; returns their
        tokens."""
        if rid in self._sequences:
            raise ValueError(f"sequence {rid!r} is open already")
        sequence = self._sequences[rid] = PageTable()
        if not self._prefix_cache:
            return 0
        self.counters.prefix_lookups += 1
        for digest in self._digests(ids, len(ids) - 1):
            page = self._cached.get(digest)
            if page is None:
                break
            self._idle.pop(page, None)
            self._holders[page] += 1
            sequence.pages.append(page)
        length = len(sequence.pages) * self.page_size
        sequence.ids.extend(ids[:length])
        self.counters.prefix_hit_tokens += length
        return length

    def allocate(self, rid: str, num_tokens: int) -> bool:
        """Give the sequence pages for `num_tokens` more tokens; False, and nothing changed, if there are too few."""
        sequence = self[rid]
        length = len(sequence.ids)
        missing = -(-(length + num_tokens) // self.page_size) - len(sequence.pages)
        written = length // self.page_size  # index of the page that the next token goes to
        shared = bool(length % self.page_size) and self._holders[sequence.pages[written]] > 1
        if max(missing, 0) + shared > self.free_pages:
            return False
        if length % self.page_size:
            old = sequence.pages[written]
            if shared:
                new = sequence.pages[written] = self._take()
                self._copy(old, new)
                self._release(old)
            elif self._digest[old] is not None:
                self._forget(old)
        for _ in range(missing):
            sequence.pages.append(self._take())
        return True

    def writable(self, table: PageTable, num_tokens: int) -> bool:
        """Whether `allocate` has made the room for as many tokens: a page that others can read does not count."""
        length = len(table.ids)
        if length + num_tokens > len(table.pages) * self.page_size:
            return False
        page = table.pages[length // self.page_size]
        return not length % self.page_size or (self._holders[page] == 1 and self._digest[page] is None)

    def append(self, rid: str, token_ids: Sequence[int]) -> None:
        """Note that the KV of `token_ids` was written at the sequence's end, into room that was allocated."""
        self[rid].ids.extend(token_ids)

    def truncate(self, rid: str, length: int) -> None:
        sequence = self[rid]
        if not 0 <= length <= len(sequence.ids):
            raise ValueError(f"truncate {rid!r} to {length}: allowed is 0 to {len(sequence.ids)}")
        del sequence.ids[length:]
        keep = -(-length // self.page_size)
        for page in reversed(sequence.pages[keep:]):
            self._release(page)
        del sequence.pages[keep:]

    def free(self, rid: str, ids: Sequence[int] = ()) -> None:
        """End a sequence; the full pages in which it holds a prefix of `ids` stay cached."""
        sequence = self[rid]
        if self._prefix_cache and ids:
            common = common_prefix(sequence.ids, ids)
            chain = list(self._digests(ids, common))
            # From the end: a page that is used up by age goes before the one it continues.
            for page, digest in reversed(list(zip(sequence.pages, chain, strict=False))):
                cached = self._cached.setdefault(digest, page)
                if cached == page:
                    self._digest[page] = digest
                elif cached in self._idle:
                    self._idle.move_to_end(cached)
        for page in reversed(sequence.pages):
            self._release(page)
        del self._sequences[rid]

    def flush(self) -> None:
        """Empty the prefix cache; pages that sequences hold stay theirs."""
        for page in list(self._cached.values()):
            self._forget(page)

    def check(self, live: Iterable[str]) -> None:
        """AssertionError unless each page is unused, idle in the cache, or held, and only by the live sequences."""
        live = set(live)
        assert set(self._sequences) == live, f"open sequences {sorted(self._sequences)}, live ones {sorted(live)}"
        holders = [0] * self.num_pages
        for rid, sequence in self._sequences.items():
            assert len(sequence.ids) <= len(sequence.pages) * self.page_size, f"{rid}: KV beyond its pages"
            assert len(set(sequence.pages)) == len(sequence.pages), f"{rid}: a page twice"
            for page in sequence.pages:
                holders[page] += 1
        assert holders == self._holders, "reference counts differ from page tables"
        unused = set(self._unused)
        assert len(unused) == len(self._unused), "an unused page is listed twice"
        for page in range(self.num_pages):
            digest = self._digest[page]
            assert digest is None or self._cached.get(digest) == page, f"page {page}: digest not in the cache"
            owners = (page in unused) + (page in self._idle) + (holders[page] > 0)
            assert owners == 1, f"page {page} has {owners} owners"
            assert digest is not None or page not in self._idle, f"page {page} is idle, but not cached"
        assert len(self._cached) == sum(d is not None for d in self._digest), "the cache names pages it has not"

    def _digests(self, ids: Sequence[int], length: int) -> Iterator[bytes]:
        """Digest of each full page within the first `length` ids."""
        digest = b""
        for end in range(self.page_size, length + 1, self.page_size):
            page = array("q", ids[end - self.page_size : end])
            digest = blake2b(digest + page.tobytes(), digest_size=16).digest()
            yield digest

    def _take(self) -> int:
        if not self._unused:
            self.counters.pages_evicted += 1
            self._forget(next(iter(self._idle)))
        page = self._unused.pop()
        self._holders[page] = 1
        self.counters.pages_allocated += 1
        return page

    def _release(self, page: int) -> None:
        self._holders[page] -= 1
        if not self._holders[page]:
            if self._digest[page] is None:
                self._unused.append(page)
            else:
                self._idle[page] = None

    def _forget(self, page: int) -> None:
        """Take a page out of the cache."""
        digest = self._digest[page]
        assert digest is not None
        del self._cached[digest]
        self._digest[page] = None
        if page in self._idle:
            del self._idle[page]
            self._unused.append(page)


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many ids two sequences of one type begin alike with."""
    length = min(len(a), len(b))
    if a[:length] == b[:length]:
        return length
    return next((t for t in range(length) if a[t] != b[t]), length)

"""Steps of the embedded engine from graphs: decodes and small extends, padded to shapes that were recorded at load.

A shape is (rows, tokens a row, keys a row). Rows that there are not, and tokens that a row does not have, write into
the page that is nobody's, and nobody reads what comes out of them.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from tokenrouter.engine.base import EngineCounters, Row
from tokenrouter.engine.graphs import GraphBackend, smallest
from tokenrouter.engine.pages import PagePool
from tokenrouter.engine.torch.batch import Batch, Group
from tokenrouter.engine.torch.kv import KVPool
from tokenrouter.engine.torch.layout import check_row
from tokenrouter.engine.torch.options import GraphRange
from tokenrouter.engine.torch.runner import Runner


class Shape(NamedTuple):
    """`rows` of `tokens` each, over page tables of `pages` pages."""

    rows: int
    tokens: int
    pages: int


class StepGraphs:
    """Recorded at construction, the largest first, so that the smaller ones find their memory in the pool."""

    def __init__(self, runner: Runner, kv: KVPool, pool: PagePool, device: torch.device, sizes: GraphRange,
                 context_length: int, backend: GraphBackend, counters: EngineCounters) -> None:
        self._pool, self._counters, self._sizes = pool, counters, sizes
        longest = min(context_length, pool.num_pages * pool.page_size)
        widths = {-(-min(context, longest) // pool.page_size) for context in sizes.contexts}
        self._widths = sorted(widths)
        shapes = [Shape(rows, tokens, pages) for rows in sizes.batch_sizes for tokens in sizes.tokens
                  for pages in self._widths if rows * tokens <= sizes.max_tokens]
        self._graphs = {shape: _Graph(shape, runner, kv, device, backend)
                        for shape in sorted(shapes, key=lambda s: s.rows * s.tokens * s.pages, reverse=True)}

    def step(self, rows: Sequence[Row]) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Logits and hidden states of the rows that ask for them; None if no graph covers the step."""
        for row in rows:
            check_row(row, self._pool)
        shape = self._shape(rows)
        if shape is None:
            return None
        if shape.tokens == 1:
            self._counters.graph_decodes += 1
        else:
            self._counters.graph_extends += 1
        return self._graphs[shape].run(rows, self._pool)

    def _shape(self, rows: Sequence[Row]) -> Shape | None:
        if any(row.num_logits > 1 for row in rows):
            return None
        size = self._pool.page_size
        count = smallest(self._sizes.batch_sizes, len(rows))
        tokens = smallest(self._sizes.tokens, max(len(row.token_ids) for row in rows))
        keys = max(self._pool.length(row.rid) + len(row.token_ids) for row in rows)
        pages = smallest(self._widths, -(-keys // size))
        if count is None or tokens is None or pages is None or count * tokens > self._sizes.max_tokens:
            return None
        return Shape(count, tokens, pages)


class _Graph:
    def __init__(self, shape: Shape, runner: Runner, kv: KVPool, device: torch.device, backend: GraphBackend) -> None:
        rows, tokens, pages = self._shape = shape
        self._page_size = kv.page_size
        count = rows * tokens
        lengths = [count, count, count, rows, rows * pages]
        slots = kv.trash_page * kv.page_size + np.arange(count) % kv.page_size
        zeros = np.zeros(count)
        tables = np.full(rows * pages, kv.trash_page)
        self._empty = np.concatenate((zeros, zeros, slots, np.arange(rows) * tokens, tables)).astype(np.int64)
        host = torch.from_numpy(self._empty.copy())
        self._host = host.pin_memory() if device.type == "cuda" else host
        self._ids, self._positions, self._slots, self._logits_at, self._pages = np.split(
            self._host.numpy(), np.cumsum(lengths)[:-1])
        self._inputs = torch.empty_like(self._host, device=device)
        self._inputs.copy_(self._host)
        ids, positions, at, logits_at, page_tables = torch.split(self._inputs, lengths)

        def forward() -> tuple[torch.Tensor, torch.Tensor]:
            group = Group(rows, tokens, pages * kv.page_size, page_tables, positions.view(rows, tokens), None)
            return runner.forward(
                Batch(ids, positions, at, None if tokens == 1 else logits_at, None, [group]), kv)

        self._replay = backend.capture(forward)

    def run(self, rows: Sequence[Row], pool: PagePool) -> tuple[torch.Tensor, torch.Tensor]:
        size, (_, tokens, pages) = self._page_size, self._shape
        self._host.numpy()[:] = self._empty
        for at, row in enumerate(rows):
            table, count = pool[row.rid], len(row.token_ids)
            start, first = len(table.ids), at * tokens
            places = range(start, start + count)
            self._ids[first : first + count] = row.token_ids
            self._positions[first : first + count] = places
            self._slots[first : first + count] = [table.pages[t // size] * size + t % size for t in places]
            self._logits_at[at] = first + count - 1
            used = -(-(start + count) // size)
            self._pages[at * pages : at * pages + used] = table.pages[:used]
        self._inputs.copy_(self._host, non_blocking=True)
        logits, hidden = self._replay()
        wanted = [at for at, row in enumerate(rows) if row.num_logits]
        if len(wanted) == len(rows):  # copies, as the next replay writes over both
            return logits[: len(rows)].clone(), hidden[: len(rows)].clone()
        index = torch.tensor(wanted, dtype=torch.long, device=logits.device)
        return logits.index_select(0, index), hidden.index_select(0, index)

"""Copies of sequences' KV, each in one piece, so that attention reads the rows of a decode step where they lie.

Gathering pages reads a batch's KV and writes it once more before attention reads it: on a CPU a third of a decode step
of 16 rows, and most of one of long sequences. The pages remain what counts: a lane is filled from them, has all that
they have until it is dropped, as what is written to them is written to it, and can be dropped at any time.
"""
from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from math import prod

import numpy as np
import torch

from tokenrouter.engine.pages import PageTable
from tokenrouter.engine.torch.shape import LayerShape

MAX_TOKENS = 2048  # of most lanes; what outgrows one moves to one of the others, which take any sequence
MAX_LANES = 64  # of either kind
MAX_BYTES, LONG_BYTES = 256 << 20, 768 << 20  # of all lanes of a kind; memory is taken only where something was written


class Lanes:
    """Which sequence has which lane, and per layer a tensor [slots + 1, row] of all lanes one behind the other.

    `kinds`: how many there are of which number of tokens, the shortest first. The last row is nobody's: `nowhere` is
    the slot of tokens of sequences without a lane.
    """

    def __init__(self, shapes: Sequence[LayerShape], kinds: Sequence[tuple[int, int]], dtype: torch.dtype) -> None:
        lengths = [length for count, length in kinds for _ in range(count)]
        self._lengths, self._starts = lengths, [sum(lengths[:lane]) for lane in range(len(lengths))]
        self._kind = [kind for kind, (count, _) in enumerate(kinds) for _ in range(count)]
        self._first = [self._kind.index(kind) for kind in range(len(kinds))]
        self.nowhere = sum(lengths)
        self.layers: list[torch.Tensor] = []
        # Runs of layers of one shape are one tensor, of each kind [layers, count, length, row], so that one view reads
        # them all.
        self._runs: list[tuple[LayerShape, list[torch.Tensor]]] = []
        for shape, run in groupby(shapes):
            stack = _zeros(len(list(run)), self.nowhere + 1, shape.row, dtype=dtype)
            self.layers += stack.unbind()
            self._runs.append((shape, [
                stack[:, self._starts[first] :][:, : count * length].view(len(stack), count, length, -1)
                for first, (count, length) in zip(self._first, kinds, strict=True)]))
        self._of: dict[str, int] = {}
        self._free = set(range(len(lengths)))

    @classmethod
    def fitting(cls, shapes: Sequence[LayerShape], longest: int, dtype: torch.dtype) -> Lanes | None:
        """As many as fit into the bytes allowed, for sequences of at most `longest` tokens; None if not one does."""
        width = sum(shape.row for shape in shapes) * dtype.itemsize
        kinds: list[tuple[int, int]] = []
        for length, allowed in ((min(longest, MAX_TOKENS), MAX_BYTES), (longest, LONG_BYTES)):
            count = min(MAX_LANES, allowed // (length * width))
            if count and all(length > other for _, other in kinds):
                kinds.append((count, length))
        return cls(shapes, kinds, dtype) if kinds else None

    def place(self, rids: Sequence[str], tables: Sequence[PageTable], allowed: int,
              pages: Sequence[torch.Tensor]) -> list[dict[int, int]]:
        """Runs of lanes that go through attention together: lane -> index of the sequence that decodes there.

        Attention goes through all lanes from the first to the last of a run, up to the end of the longest sequence: a
        run ends where that would be half as much again as what is asked for, and `allowed` scores, or more. Sequences
        for which there is no lane are left out: they have to be gathered. `pages`: each layer's, [num_pages,
        page_size * row], to fill new lanes from.
        """
        found = [self.lane(rid, table, 1, pages) for rid, table in zip(rids, tables, strict=True)]
        runs: list[dict[int, int]] = []
        first = asked = longest = 0
        for lane, index in sorted((lane, index) for index, lane in enumerate(found) if lane is not None):
            keys = len(tables[index].ids) + 1
            asked, longest = asked + keys, max(longest, keys)
            if (not runs or self._kind[lane] != self._kind[first]
                    or (lane - first + 1) * longest > asked + asked // 2 + allowed):
                runs.append({})
                first, asked, longest = lane, keys, keys
            runs[-1][lane] = index
        return runs

    def slots(self, rid: str, start: int, count: int) -> range | None:
        """Where else its tokens from `start` on, about to be written to its pages, go; None: it has no lane."""
        lane = self._of.get(rid)
        if lane is None:
            return None
        if start + count > self._lengths[lane]:
            self.drop(rid)
            return None
        at = self._starts[lane] + start
        return range(at, at + count)

    def drop(self, rid: str) -> None:
        if (lane := self._of.pop(rid, None)) is not None:
            self._free.add(lane)

    def read(self, first: int, count: int, length: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Each layer's keys and values of the first `length` tokens of `count` lanes, as LayerShape.split has them."""
        layers: list[tuple[torch.Tensor, torch.Tensor]] = []
        kind = self._kind[first]
        at = first - self._first[kind]
        for shape, lanes in self._runs:
            keys, values = shape.split(lanes[kind][:, at : at + count, :length])
            layers += zip(keys.unbind(), values.unbind(), strict=True)
        return layers

    def lane(self, rid: str, table: PageTable, count: int, pages: Sequence[torch.Tensor]) -> int | None:
        """One with room for `count` more tokens: the sequence's own, or else the first free one, which is filled."""
        lane, length = self._of.get(rid), len(table.ids) + count
        if lane is not None and length <= self._lengths[lane]:
            return lane
        self.drop(rid)
        lane = min((lane for lane in self._free if length <= self._lengths[lane]), default=None)
        if lane is not None:
            self._free.remove(lane)
            self._of[rid] = lane
            self._fill(lane, table, pages)
        return lane

    def _fill(self, lane: int, table: PageTable, pages: Sequence[torch.Tensor]) -> None:
        if not table.ids:
            return
        index = torch.tensor(table.pages)
        for lanes, layer in zip(self.layers, pages, strict=True):
            rows = layer.index_select(0, index).view(-1, lanes.shape[1])[: len(table.ids)]
            lanes[self._starts[lane] :][: len(rows)] = rows


def _zeros(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    """As torch.zeros, which writes them: here the system gives memory where it is first touched."""
    return torch.from_numpy(np.zeros(prod(shape) * dtype.itemsize, np.uint8)).view(dtype).view(shape)

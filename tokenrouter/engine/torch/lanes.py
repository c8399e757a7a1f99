"""Copies of sequences' KV, each in one piece, so that attention reads the rows of a decode step where they lie.

Gathering pages reads a batch's KV and writes it once more before attention reads it: on a CPU a third of a decode step
of 16 rows. The pages remain what counts: a lane is filled from them, has all that they have until it is dropped, as
what is written to them is written to it, and can be dropped at any time.
"""
from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import torch

from tokenrouter.engine.pages import PageTable
from tokenrouter.engine.torch.shape import LayerShape

MAX_TOKENS = 2048  # of a lane: what is longer is gathered
MAX_LANES = 64
MAX_BYTES = 256 << 20  # of all lanes of a model; memory is taken only where something was written


class Lanes:
    """Which sequence has which of `count` lanes of `length` tokens, and per layer a tensor [count * length + 1, row].

    The last row is nobody's: `nowhere` is the slot of tokens of sequences without a lane.
    """

    def __init__(self, shapes: Sequence[LayerShape], count: int, length: int, dtype: torch.dtype) -> None:
        self.length, self.nowhere = length, count * length
        self.layers: list[torch.Tensor] = []
        # Runs of layers of one shape are one tensor, [layers, count, length, row], so that one view reads them all.
        self._runs: list[tuple[LayerShape, torch.Tensor]] = []
        for shape, run in groupby(shapes):
            stack = torch.zeros(len(list(run)), count * length + 1, shape.row, dtype=dtype)
            self.layers += stack.unbind()
            self._runs.append((shape, stack[:, :-1].view(len(stack), count, length, -1)))
        self._of: dict[str, int] = {}
        self._free = set(range(count))

    @classmethod
    def fitting(cls, shapes: Sequence[LayerShape], longest: int, dtype: torch.dtype) -> Lanes | None:
        """As many as fit into the bytes allowed, for sequences of at most `longest` tokens; None if not one does."""
        length = min(longest, MAX_TOKENS)
        count = min(MAX_LANES, MAX_BYTES // (length * sum(shape.row for shape in shapes) * dtype.itemsize))
        return cls(shapes, count, length, dtype) if count else None

    def place(self, rids: Sequence[str], tables: Sequence[PageTable], allowed: int,
              pages: Sequence[torch.Tensor]) -> dict[int, int]:
        """lane -> index of the sequence that decodes there; those that are left out have to be gathered.

        Attention goes through all lanes from the first to the last of them, up to the end of the longest sequence.
        Nothing is placed where that is half as much again as what is asked for, and `allowed` scores, or more.
        `pages`: each layer's, [num_pages, page_size * row], to fill new lanes from.
        """
        free = iter(() if all(rid in self._of for rid in rids) else sorted(self._free))
        places = {}
        for index, (rid, table) in enumerate(zip(rids, tables, strict=True)):
            lane = self._of.get(rid)
            if len(table.ids) < self.length and (lane is not None or (lane := next(free, None)) is not None):
                places[lane] = index
        keys = [len(tables[index].ids) + 1 for index in places.values()]
        if not places or (max(places) - min(places) + 1) * max(keys) > sum(keys) + sum(keys) // 2 + allowed:
            return {}
        for lane, index in places.items():
            rid, table = rids[index], tables[index]
            if rid not in self._of:
                self._fill(lane, table, pages)
                self._of[rid] = lane
                self._free.remove(lane)
        return places

    def slots(self, rid: str, start: int, count: int) -> range | None:
        """Where else its tokens from `start` on, about to be written to its pages, go; None: it has no lane."""
        lane = self._of.get(rid)
        if lane is None:
            return None
        if start + count > self.length:
            self.drop(rid)
            return None
        return range(lane * self.length + start, lane * self.length + start + count)

    def drop(self, rid: str) -> None:
        if (lane := self._of.pop(rid, None)) is not None:
            self._free.add(lane)

    def read(self, first: int, count: int, length: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Each layer's keys and values of the first `length` tokens of `count` lanes, as LayerShape.split has them."""
        layers: list[tuple[torch.Tensor, torch.Tensor]] = []
        for shape, lanes in self._runs:
            keys, values = shape.split(lanes[:, first : first + count, :length])
            layers += zip(keys.unbind(), values.unbind(), strict=True)
        return layers

    def _fill(self, lane: int, table: PageTable, pages: Sequence[torch.Tensor]) -> None:
        if not table.ids:
            return
        index = torch.tensor(table.pages)
        for lanes, layer in zip(self.layers, pages, strict=True):
            rows = layer.index_select(0, index).view(-1, lanes.shape[1])[: len(table.ids)]
            lanes[lane * self.length :][: len(rows)] = rows

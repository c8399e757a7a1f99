"""The KV tensors: a row for each slot of the page pool, a tensor for each layer."""
from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from tokenrouter.engine.torch.batch import Batch, Group
from tokenrouter.engine.torch.lanes import Lanes


class LayerShape(NamedTuple):
    """What one token leaves in one layer: `num_heads` keys of `key_dim` and values of `value_dim` numbers."""

    num_heads: int
    key_dim: int
    value_dim: int

    @property
    def row(self) -> int:
        return self.num_heads * (self.key_dim + self.value_dim)


class KVPool:
    """Per layer a tensor [(num_pages + 1) * page_size, row]: all key heads, then all value heads of a token.

    The page behind the last one is nobody's: it fills up page tables of different lengths. It and all others
    start as zeros, as a masked slot is still multiplied by its weight of zero.
    """

    def __init__(
        self,
        shapes: Sequence[LayerShape],
        num_pages: int,
        page_size: int,
        dtype: torch.dtype,
        device: torch.device,
        lanes: Lanes | None = None,
    ) -> None:
        self.shapes, self.page_size, self.trash_page = list(shapes), page_size, num_pages
        slots = (num_pages + 1) * page_size
        self.layers = [torch.zeros(slots, shape.row, dtype=dtype, device=device) for shape in shapes]
        self.pages = [layer.view(num_pages + 1, -1) for layer in self.layers]
        self.lanes = lanes

    def write(self, layer: int, batch: Batch, rows: torch.Tensor) -> None:
        """Store `rows` [T, row], of the batch's tokens."""
        self.layers[layer].index_copy_(0, batch.slots, rows)
        if batch.lane_slots is not None:
            assert self.lanes is not None
            self.lanes.layers[layer].index_copy_(0, batch.lane_slots, rows)

    def read(self, layer: int, group: Group) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys [B, num_heads, L, key_dim] and values [B, num_heads, L, value_dim] of the group's sequences."""
        heads, key_dim, value_dim = self.shapes[layer]
        if group.lane is None:
            rows = self.pages[layer].index_select(0, group.pages).view(group.size, group.kv_len, -1)
        else:
            assert self.lanes is not None
            rows = self.lanes.read(layer, group.lane, group.size, group.kv_len)
        if key_dim == value_dim:
            both = rows.view(group.size, group.kv_len, 2 * heads, key_dim).transpose(1, 2)
            return both[:, :heads], both[:, heads:]
        keys = rows[..., : heads * key_dim].view(group.size, group.kv_len, heads, key_dim)
        values = rows[..., heads * key_dim :].view(group.size, group.kv_len, heads, value_dim)
        return keys.transpose(1, 2), values.transpose(1, 2)

    def copy_page(self, source: int, target: int) -> None:
        for pages in self.pages:
            pages[target] = pages[source]


def bytes_per_token(shapes: Sequence[LayerShape], dtype: torch.dtype) -> int:
    return sum(shape.row for shape in shapes) * dtype.itemsize

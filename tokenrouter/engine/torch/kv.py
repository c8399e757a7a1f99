"""The KV tensors: a row for each slot of the page pool, a tensor for each layer."""
from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch


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
        self, shapes: Sequence[LayerShape], num_pages: int, page_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.shapes, self.page_size, self.trash_page = list(shapes), page_size, num_pages
        slots = (num_pages + 1) * page_size
        self.layers = [torch.zeros(slots, shape.row, dtype=dtype, device=device) for shape in shapes]
        self._pages = [layer.view(num_pages + 1, -1) for layer in self.layers]

    def write(self, layer: int, slots: torch.Tensor, rows: torch.Tensor) -> None:
        """Store `rows` [T, row] at `slots` [T]."""
        self.layers[layer].index_copy_(0, slots, rows)

    def gather(self, layer: int, pages: torch.Tensor, num_sequences: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys [B, num_heads, L, key_dim] and values [B, num_heads, L, value_dim] of B page tables of equal length.

        `pages` [B * P] is their concatenation, L = P * page_size.
        """
        heads, key_dim, value_dim = self.shapes[layer]
        rows = self._pages[layer].index_select(0, pages)
        length = rows.numel() // (num_sequences * heads * (key_dim + value_dim))
        if key_dim == value_dim:
            both = rows.view(num_sequences, length, 2 * heads, key_dim).transpose(1, 2)
            return both[:, :heads], both[:, heads:]
        rows = rows.view(num_sequences, length, -1)
        keys = rows[..., : heads * key_dim].view(num_sequences, length, heads, key_dim)
        values = rows[..., heads * key_dim :].view(num_sequences, length, heads, value_dim)
        return keys.transpose(1, 2), values.transpose(1, 2)

    def copy_page(self, source: int, target: int) -> None:
        for pages in self._pages:
            pages[target] = pages[source]


def bytes_per_token(shapes: Sequence[LayerShape], dtype: torch.dtype) -> int:
    return sum(shape.row for shape in shapes) * dtype.itemsize

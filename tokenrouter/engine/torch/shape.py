"""How the KV of a token lies in a row of numbers."""
from __future__ import annotations

from typing import NamedTuple

import torch


class LayerShape(NamedTuple):
    """What one token leaves in one layer: `num_heads` keys of `key_dim`, then as many values of `value_dim` numbers."""

    num_heads: int
    key_dim: int
    value_dim: int

    @property
    def row(self) -> int:
        return self.num_heads * (self.key_dim + self.value_dim)

    def split(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[..., L, row] -> keys [..., num_heads, L, key_dim] and values [..., num_heads, L, value_dim]; views."""
        heads, key_dim, value_dim = self
        size = rows.shape[:-1]
        if key_dim == value_dim:
            keys, values = rows.view(*size, 2, heads, key_dim).unbind(-3)
        else:
            keys = rows[..., : heads * key_dim].view(*size, heads, key_dim)
            values = rows[..., heads * key_dim :].view(*size, heads, value_dim)
        return keys.transpose(-3, -2), values.transpose(-3, -2)

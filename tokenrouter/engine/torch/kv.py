"""The KV tensors: a row for each slot of the page pool, a tensor for each layer."""
from __future__ import annotations

from collections.abc import Sequence

import torch

from tokenrouter.engine.torch.batch import Batch, Group
from tokenrouter.engine.torch.lanes import Lanes
from tokenrouter.engine.torch.shape import LayerShape


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
        if group.lanes is not None:
            return group.lanes[layer]
        rows = self.pages[layer].index_select(0, group.pages).view(group.size, group.kv_len, -1)
        return self.shapes[layer].split(rows)

    def copy_page(self, source: int, target: int) -> None:
        for pages in self.pages:
            pages[target] = pages[source]


def bytes_per_token(shapes: Sequence[LayerShape], dtype: torch.dtype) -> int:
    return sum(shape.row for shape in shapes) * dtype.itemsize

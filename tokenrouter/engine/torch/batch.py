"""A ragged batch: what one forward pass over the pool needs to know, computed once for all layers."""
from __future__ import annotations

from dataclasses import dataclass, field

import torch


@dataclass(slots=True)
class Group:
    """`size` rows that go through attention together, padded to q_len queries and kv_len keys each.

    `pages` [size * kv_len / page_size]: their page tables; empty if their KV lies in `lanes`, each layer's views of it.
    `positions` [size, q_len]: of their queries. `queries` [size * q_len]: where those stand in the flat batch (None:
    the flat batch is this group as it is).
    """

    size: int
    q_len: int
    kv_len: int
    pages: torch.Tensor
    positions: torch.Tensor
    queries: torch.Tensor | None
    lanes: list[tuple[torch.Tensor, torch.Tensor]] | None = None
    _masks: dict[int | None, torch.Tensor] = field(default_factory=dict)

    def mask(self, window: int | None, dtype: torch.dtype) -> torch.Tensor:
        """[size, 1, q_len, kv_len], 0 where a query sees a key, else -inf: causal, at most the last `window` keys."""
        mask = self._masks.get(window)
        if mask is None:
            keys = torch.arange(self.kv_len, device=self.positions.device)
            queries = self.positions[:, None, :, None]
            hidden = keys > queries
            if window:
                hidden |= keys <= queries - window
            mask = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill_(hidden, -torch.inf)
            self._masks[window] = mask
        return mask


@dataclass(slots=True)
class Batch:
    """T tokens of the rows, flat: `ids` [T], `positions` [T], `slots` [T] (where their KV goes), `lane_slots` [T]
    (where else; None for nowhere).

    `logits_at` [R]: the tokens whose logits are asked for, None for all T in order. `order` [T]: where each
    token stands in the concatenated outputs of `groups`, None for in order.
    """

    ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    logits_at: torch.Tensor | None
    order: torch.Tensor | None
    groups: list[Group]
    lane_slots: torch.Tensor | None = None

    def select(self, values: torch.Tensor) -> torch.Tensor:
        """The rows of `values` [T, ...] whose logits are asked for, [R, ...]."""
        return values if self.logits_at is None else values.index_select(0, self.logits_at)

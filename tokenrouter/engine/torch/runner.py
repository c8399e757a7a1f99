"""What a model must do to be run over the pool, whoever computes its layers."""
from __future__ import annotations

from typing import Protocol

import torch

from tokenrouter.engine.torch.batch import Batch
from tokenrouter.engine.torch.kv import KVPool
from tokenrouter.engine.torch.shape import LayerShape


class Runner(Protocol):
    """`shapes`: what each layer keeps of a token. Sizes in bytes."""

    shapes: list[LayerShape]
    num_params: int
    weight_bytes: int

    def forward(self, batch: Batch, kv: KVPool) -> tuple[torch.Tensor, torch.Tensor]:
        """One pass, which writes the batch's KV: logits [R, V] fp32 and hidden states [R, H] after the final norm."""

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """[B] -> [B, H]."""

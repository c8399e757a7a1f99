"""CITER's router network (`ConfidenceModel` of the official code)."""
from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class ConfidenceNetwork(nn.Sequential):
    """[B, H] hidden states -> [B, 1] logit of "the small model's token is fine"; 4 H^2 + 8 H + 1 parameters.

    Batch norm makes a training row depend on its batch: at least two rows a batch, and evaluation mode for inference.
    """

    def __init__(self, hidden_size: int, dropout: float = 0.1) -> None:
        super().__init__(
            nn.Linear(hidden_size, 2 * hidden_size), nn.BatchNorm1d(2 * hidden_size), nn.ReLU(), nn.Dropout(dropout),
            nn.Linear(2 * hidden_size, hidden_size), nn.Dropout(dropout), nn.Linear(hidden_size, 1),
        )


class FoldedNetwork:
    """A `ConfidenceNetwork` for inference: batch norm is part of the first layer, and the last two layers, with nothing
    between them but dropout, are one vector."""

    @torch.no_grad()
    def __init__(self, network: ConfidenceNetwork) -> None:
        first, norm, _, _, second, _, last = network
        scale = norm.weight / (norm.running_var + norm.eps).sqrt()
        self._up = (first.weight * scale[:, None]).contiguous()
        self._up_bias = (first.bias - norm.running_mean) * scale + norm.bias
        self._down = last.weight @ second.weight
        self._down_bias = last.weight @ second.bias + last.bias

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """[B, H] hidden states -> [B] logit."""
        inner = F.relu(F.linear(hidden, self._up, self._up_bias))
        return F.linear(inner, self._down, self._down_bias).squeeze(-1)

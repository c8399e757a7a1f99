"""The win-rate network: from what the small model makes of a prompt to how likely the large one is needed."""
from __future__ import annotations

import torch
from torch import nn


class WinRate(nn.Module):
    """[B, H] hidden states of the prompts' last positions -> [B] logit; standardised, one hidden layer of `width`."""

    mean: torch.Tensor
    std: torch.Tensor

    def __init__(self, hidden_size: int, width: int, dropout: float) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(hidden_size))
        self.register_buffer("std", torch.ones(hidden_size))
        self.layers = nn.Sequential(
            nn.Linear(hidden_size, width), nn.ReLU(), nn.Dropout(dropout), nn.Linear(width, 1))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        logit: torch.Tensor = self.layers((hidden - self.mean) / self.std).squeeze(-1)
        return logit

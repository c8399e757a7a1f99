"""Co-LLM's deferral head and its training objective (`DeferralTrainerV1` of the official code)."""
from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class DeferralHead(nn.Module):
    """[..., H] hidden states of the base -> [...] logit d of leaving the token to the large model: one vector, no bias.

    The source keeps it as one more row of the base's output layer, whose logit must stay out of the softmax over
    tokens; apart from that layer it cannot get into it.
    """

    def __init__(self, vector: torch.Tensor) -> None:
        """`vector` [H]: what to start from."""
        super().__init__()
        self.vector = nn.Parameter(vector.float().clone())

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden @ self.vector


def marginal_nll(d: torch.Tensor, base: torch.Tensor, large: torch.Tensor) -> torch.Tensor:
    """-log[(1 - s(d)) p_base(x) + s(d) p_large(x)], s the sigmoid; `base` and `large` are log p(x)."""
    return -torch.logaddexp(F.logsigmoid(-d) + base, F.logsigmoid(d) + large)

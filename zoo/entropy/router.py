"""Entropy routing, the training-free alternative in R2R's code: an uncertain proposal is left to the large model."""
from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from tokenrouter.interface import Param
from zoo.threshold import Tensors, ThresholdRouter


def normalised_entropy(logits: torch.Tensor) -> torch.Tensor:
    """[B, V] raw logits -> [B] entropies over ln V, in [0, 1].

    Logits of -inf (masked ids) and probabilities that underflow count 0, never NaN; a row with NaN counts 1.
    """
    log_probs = torch.log_softmax(logits.float(), dim=-1)
    terms = log_probs.exp() * log_probs.clamp(min=torch.finfo(torch.float32).min)
    entropies = -terms.sum(dim=-1) / math.log(logits.shape[-1])
    return entropies.nan_to_num(nan=1.0).clamp(0.0, 1.0)  # rounding must not lift a uniform row above 1


class EntropySmall(ThresholdRouter):
    """Leaves when the entropy of the proposal's distribution exceeds `threshold`; regenerates there."""

    params = (Param("threshold", 0.1, 0.0, 1.0, "entropy over ln V above which a proposal is routed", sends="above"),)
    leaves = ">"

    def score(self, tensors: Tensors, params: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return normalised_entropy(tensors.logits)

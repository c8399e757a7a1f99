"""A template to copy: the small model's proposal is routed where the model gives it too little probability."""
from __future__ import annotations

from collections.abc import Mapping

import torch

from tokenrouter.interface import Param
from zoo.threshold import Tensors, ThresholdRouter


class TemplateSmall(ThresholdRouter):
    """Leaves when the proposal's probability is < `threshold`; it is discarded, and the large model writes instead."""

    # `sends` names the side of the threshold on which a request leaves: that of small scores.
    params = (Param("threshold", 0.5, 0.0, 1.0, "probability of the proposal below which it is routed", sends="below"),)
    leaves = "<"

    def score(self, tensors: Tensors, params: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """[B]. A row without a number (NaN) counts as improbable."""
        probabilities = tensors.logits.float().softmax(-1)
        return probabilities.gather(1, tensors.token_ids[:, None]).squeeze(1).nan_to_num(nan=0.0)

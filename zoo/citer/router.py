"""CITER's routers: where the small model is not confident enough, the large one writes the token."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from tokenrouter.interface import ModelContext, Param
from zoo.citer.network import ConfidenceNetwork, FoldedNetwork
from zoo.threshold import Tensors
from zoo.trained import PairedReturn, TrainedRouter

KIND = "citer"


class CiterSmall(TrainedRouter):
    """Leaves when the confidence in the small model is < threshold; the proposal is discarded."""

    params = (Param("threshold", 0.95, 0.0, 1.0, "confidence in the small model below which a proposal is routed",
                    sends="below"),)
    kind = KIND
    leaves = "<"
    top_logits = 0
    unknown = 0.0

    def build(self, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, Any], model: ModelContext) -> None:
        network = ConfidenceNetwork(model.hidden_size)
        network.load_state_dict(tensors)
        self._network = FoldedNetwork(network.to(model.device))

    def logit(self, tensors: Tensors, hidden: torch.Tensor) -> torch.Tensor:
        return self._network(hidden)


class CiterLarge(PairedReturn):
    """Keeps one token and returns; sits on the large model that the weights were trained with."""

    kind = KIND

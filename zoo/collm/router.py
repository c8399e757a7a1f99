"""Co-LLM's routers: the base's own deferral head says which tokens the large model writes."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from tokenrouter.interface import ModelContext, Param
from zoo.threshold import Tensors
from zoo.trained import PairedReturn, TrainedRouter

KIND = "collm"


class CoLLMBase(TrainedRouter):
    """Leaves when the probability of deferring is > threshold; the proposal is discarded."""

    params = (Param("threshold", 0.5, 0.0, 1.0, "probability of deferring above which a proposal is routed",
                    sends="above"),)
    kind = KIND
    trained_as = "base"
    leaves = ">"
    top_logits = 0

    def build(self, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, Any], model: ModelContext) -> None:
        self._vector = tensors["vector"].to(model.device)

    def logit(self, tensors: Tensors, hidden: torch.Tensor) -> torch.Tensor:
        return hidden @ self._vector


class CoLLMLarge(PairedReturn):
    """Keeps one token and returns; sits on the large model that the weights were trained with."""

    kind = KIND

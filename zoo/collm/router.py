"""Co-LLM's routers: the base's own deferral head says which tokens the large model writes."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from tokenrouter.core import InputError
from tokenrouter.interface import ModelContext, Param
from zoo import weights
from zoo.returning import PairedReturn
from zoo.threshold import Tensors, ThresholdRouter

KIND = "collm"


class CoLLMBase(ThresholdRouter):
    """Leaves when the probability of deferring is > threshold; the proposal is discarded.

    `weights`: see zoo.weights. They fit one pair of a base and a large model and refuse others.
    """

    params = (Param("threshold", 0.5, 0.0, 1.0, "probability of deferring above which a proposal is routed",
                    sends="above"),)
    needs = frozenset({"hidden_states"})
    leaves = ">"
    weights: str = ""

    def __init__(self, **config: Any) -> None:
        super().__init__(**config)
        self._tensors, self._metadata = weights.load(self.weights, KIND)

    def setup(self, model: ModelContext) -> None:
        super().setup(model)
        weights.check_model(self.weights, self._metadata, "base", model)
        self._vector = self._tensors["vector"].to(model.device)

    def score(self, tensors: Tensors, params: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """[B] probabilities of deferring; a row that has none (NaN) counts as certain."""
        if tensors.hidden is None:
            raise InputError("hidden_states: missing; allowed for Co-LLM is a step result that has them")
        return (tensors.hidden.float() @ self._vector).sigmoid().nan_to_num(nan=1.0)


class CoLLMLarge(PairedReturn):
    """Keeps one token and returns."""

    kind = KIND

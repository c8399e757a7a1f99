"""CITER's routers: where the small model is not confident enough, the large one writes the token."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from tokenrouter.core import InputError
from tokenrouter.interface import ModelContext, Param
from zoo import weights
from zoo.citer.network import ConfidenceNetwork, FoldedNetwork
from zoo.returning import PairedReturn
from zoo.threshold import Tensors, ThresholdRouter

KIND = "citer"


class CiterSmall(ThresholdRouter):
    """Leaves when the confidence in the small model is < threshold; the proposal is discarded.

    `weights`: see zoo.weights. They fit one pair of models and refuse others.
    """

    params = (Param("threshold", 0.95, 0.0, 1.0, "confidence in the small model below which a proposal is routed",
                    sends="below"),)
    needs = frozenset({"hidden_states"})
    leaves = "<"
    weights: str = ""

    def __init__(self, **config: Any) -> None:
        super().__init__(**config)
        self._tensors, self._metadata = weights.load(self.weights, KIND)

    def setup(self, model: ModelContext) -> None:
        super().setup(model)
        weights.check_model(self.weights, self._metadata, "small", model)
        network = ConfidenceNetwork(model.hidden_size)
        network.load_state_dict(self._tensors)
        self._network = FoldedNetwork(network.to(model.device))

    def score(self, tensors: Tensors, params: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """[B] confidences; a row that has none (NaN) counts as without any."""
        if tensors.hidden is None:
            raise InputError("hidden_states: missing; allowed for CITER is a step result that has them")
        with torch.inference_mode():
            return self._network(tensors.hidden.float()).sigmoid().nan_to_num(nan=0.0)


class CiterLarge(PairedReturn):
    """Keeps one token and returns."""

    kind = KIND

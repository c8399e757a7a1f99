"""R2R's routers: the small model's proposal is replaced where it would change the outcome."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from tokenrouter.core import InputError
from tokenrouter.interface import ModelContext, Param
from zoo import weights
from zoo.r2r.network import FoldedNetwork, R2RNetwork, Sizes
from zoo.returning import PairedReturn
from zoo.threshold import Tensors, ThresholdRouter

KIND = "r2r"


class R2RSmall(ThresholdRouter):
    """Leaves when the network says that the proposal diverges: p >= threshold; the proposal is discarded.

    `weights`: see zoo.weights. They fit one pair of models and refuse others.
    """

    params = (Param("threshold", 0.5, 0.0, 1.0, "probability of divergence from which on a proposal is routed",
                    sends="above"),)
    needs = frozenset({"hidden_states"})
    leaves = ">="
    weights: str = ""

    def __init__(self, **config: Any) -> None:
        super().__init__(**config)
        self._tensors, self._metadata = weights.load(self.weights, KIND)

    def setup(self, model: ModelContext) -> None:
        super().setup(model)
        weights.check_model(self.weights, self._metadata, "small", model)
        network = R2RNetwork(Sizes(**self._metadata["sizes"]))
        network.load_state_dict(self._tensors)
        with torch.no_grad():
            embeddings = model.embed(torch.arange(model.vocab_size, device=model.device))
        self._network = FoldedNetwork(network.to(model.device), embeddings)

    def score(self, tensors: Tensors, params: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """[B] probabilities of divergence; a row that has none (NaN) counts as certain."""
        if tensors.hidden is None:
            raise InputError("hidden_states: missing; allowed for R2R is a step result that has them")
        with torch.inference_mode():
            logit = self._network(tensors.token_ids, tensors.logits, tensors.hidden.float())
            return logit.sigmoid().nan_to_num(nan=1.0)


class R2RLarge(PairedReturn):
    """Keeps one token and returns."""

    kind = KIND

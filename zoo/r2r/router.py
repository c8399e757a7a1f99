"""R2R's routers: the small model's proposal is replaced where it would change the outcome."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from tokenrouter.interface import ModelContext, Param
from zoo.r2r.network import FoldedNetwork, R2RNetwork, Sizes
from zoo.threshold import Tensors
from zoo.trained import PairedReturn, TrainedRouter

KIND = "r2r"


class R2RSmall(TrainedRouter):
    """Leaves when the network says that the proposal diverges: p >= threshold; the proposal is discarded."""

    params = (Param("threshold", 0.5, 0.0, 1.0, "probability of divergence from which on a proposal is routed",
                    sends="above"),)
    kind = KIND
    leaves = ">="

    def __init__(self, **config: Any) -> None:
        super().__init__(**config)
        self.top_logits = int(self._metadata["sizes"]["num_logits"])

    def build(self, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, Any], model: ModelContext) -> None:
        network = R2RNetwork(Sizes(**metadata["sizes"]))
        network.load_state_dict(tensors)
        with torch.no_grad():
            embeddings = model.embed(torch.arange(model.vocab_size, device=model.device))
        self._network = FoldedNetwork(network.to(model.device), embeddings)

    def logit(self, tensors: Tensors, hidden: torch.Tensor) -> torch.Tensor:
        return self._network(tensors.token_ids, tensors.logits, hidden)


class R2RLarge(PairedReturn):
    """Keeps one token and returns; sits on the large model that the weights were trained with."""

    kind = KIND

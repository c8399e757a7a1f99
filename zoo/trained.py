"""Both sides of routers that were trained for one pair of models: a score of the small one's state, and the return."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from tokenrouter.core import InputError
from tokenrouter.interface import BaseRouter, ModelContext, ReturnAfterOne
from zoo import weights
from zoo.threshold import Tensors, ThresholdRouter


class Trained(BaseRouter):
    """Has `weights` (see zoo.weights) of a `kind`, which fit one pair of models.

    Refuses to sit on another model than the one that was in the role `trained_as`.
    """

    kind: ClassVar[str]
    trained_as: ClassVar[str]
    weights: str = ""

    def __init__(self, **config: Any) -> None:
        super().__init__(**config)
        self._tensors, self._metadata = weights.load(self.weights, self.kind)

    def check_model(self, model: ModelContext) -> None:
        weights.check_model(self.weights, self._metadata, self.trained_as, model)

    def setup(self, model: ModelContext) -> None:
        super().setup(model)
        self.check_model(model)


class TrainedRouter(Trained, ThresholdRouter):
    """Compares the sigmoid of a trained network's logit with the threshold; a row without one (NaN) is `unknown`."""

    trained_as = "small"
    unknown: ClassVar[float] = 1.0
    needs = frozenset({"hidden_states"})

    def setup(self, model: ModelContext) -> None:
        super().setup(model)
        self.build(self._tensors, self._metadata, model)

    def build(self, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, Any], model: ModelContext) -> None:
        """Make the network of its weights, on the model's device."""
        raise TypeError(f"{type(self).__name__} defines no build")

    def logit(self, tensors: Tensors, hidden: torch.Tensor) -> torch.Tensor:
        """[B] logits; `hidden` [B, H] are the hidden states in fp32."""
        raise TypeError(f"{type(self).__name__} defines no logit")

    def score(self, tensors: Tensors, params: Mapping[str, torch.Tensor]) -> torch.Tensor:
        if tensors.hidden is None:
            raise InputError(f"hidden_states: missing; allowed for {self.kind} is a step result that has them")
        with torch.inference_mode():
            return self.logit(tensors, tensors.hidden.float()).sigmoid().nan_to_num(nan=self.unknown)


class PairedReturn(Trained, ReturnAfterOne):
    """Keeps one token and returns."""

    trained_as = "large"

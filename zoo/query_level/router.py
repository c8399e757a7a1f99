"""Routing of whole requests by a win rate, as RouteLLM does (arXiv 2406.18665): one model writes the whole answer."""
from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from tokenrouter.core import InputError
from tokenrouter.interface import ModelContext, Param, StayRouter, StepResult
from zoo import weights
from zoo.query_level.network import WinRate
from zoo.threshold import Tensors, ThresholdRouter

KIND = "query_level"


class QuerySmall(ThresholdRouter):
    """Decides once, at the first proposal: leaves for good where the large model's win rate is >= threshold.

    The win rate is read from the small model's state behind the prompt: what routing costs is that prompt's prefill.
    `weights`: see zoo.weights.
    """

    params = (Param("threshold", 0.5, 0.0, 1.0, "win rate of the large model from which on it writes the answer",
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
        self._network = WinRate(model.hidden_size, self._metadata["width"], 0.0)
        self._network.load_state_dict(self._tensors)
        self._network.to(model.device).eval()

    def score(self, tensors: Tensors, params: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """[B] win rates of the large model; a row that has none (NaN) counts as certain."""
        if tensors.hidden is None:
            raise InputError("hidden_states: missing; allowed for query_level is a step result that has them")
        with torch.inference_mode():
            return self._network(tensors.hidden.float()).sigmoid().nan_to_num(nan=1.0)

    def scores(self, result: StepResult) -> tuple[torch.Tensor, torch.Tensor]:
        """Behind the first token nothing leaves any more, whatever the threshold."""
        score, threshold = super().scores(result)
        begun = torch.tensor([view.num_accepted > 0 for view in result.requests], device=score.device)
        return score.masked_fill(begun, -math.inf), threshold


class QueryLarge(StayRouter):
    """Writes the answer to its end; checks that it sits on the model that the weights were trained with."""

    weights: str = ""

    def __init__(self, **config: Any) -> None:
        super().__init__(**config)
        _, self._metadata = weights.load(self.weights, KIND)

    def setup(self, model: ModelContext) -> None:
        super().setup(model)
        weights.check_model(self.weights, self._metadata, "large", model)

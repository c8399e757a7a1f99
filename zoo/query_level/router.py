"""Routing of whole requests by a win rate, as RouteLLM does (arXiv 2406.18665): one model writes the whole answer."""
from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from tokenrouter.interface import ModelContext, Param, StayRouter, StepResult
from zoo.query_level.network import WinRate
from zoo.threshold import Tensors
from zoo.trained import Trained, TrainedRouter

KIND = "query_level"


class QuerySmall(TrainedRouter):
    """Decides once, at the first proposal: leaves for good where the large model's win rate is >= threshold.

    The win rate is read from the small model's state behind the prompt: what routing costs is that prompt's prefill.
    """

    params = (Param("threshold", 0.5, 0.0, 1.0, "win rate of the large model from which on it writes the answer",
                    sends="above"),)
    kind = KIND
    leaves = ">="
    top_logits = 0

    def build(self, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, Any], model: ModelContext) -> None:
        self._network = WinRate(model.hidden_size, metadata["width"], 0.0)
        self._network.load_state_dict(tensors)
        self._network.to(model.device).eval()

    def logit(self, tensors: Tensors, hidden: torch.Tensor) -> torch.Tensor:
        return self._network(hidden)

    def scores(self, result: StepResult) -> tuple[torch.Tensor, torch.Tensor]:
        """Behind the first token nothing leaves any more, whatever the threshold."""
        score, threshold = super().scores(result)
        begun = torch.tensor([view.num_accepted > 0 for view in result.requests], device=score.device)
        return score.masked_fill(begun, -math.inf), threshold


class QueryLarge(Trained, StayRouter):
    """Writes the answer to its end."""

    kind = KIND
    trained_as = "large"

"""Random routing: what a router is worth that knows nothing."""
from __future__ import annotations

import torch

from tokenrouter.interface import Param, StepResult
from tokenrouter.sampling import Purpose, uniform
from zoo.threshold import ThresholdRouter


class RandomSmall(ThresholdRouter):
    """Leaves for the large model with probability `threshold` at each proposal.

    The draw is keyed by the request's seed and the position, so that it is the same whatever the batch.
    """

    params = (Param("threshold", 0.1, 0.0, 1.0, "probability that a proposal is routed", sends="below"),)
    leaves = "<"
    top_logits = 0

    def scores(self, result: StepResult) -> tuple[torch.Tensor, torch.Tensor]:
        draws = [
            uniform(view.sampling_params.seed, view.num_accepted, self.role, Purpose.ROUTE) for view in result.requests
        ]
        thresholds = self.values("threshold", result)
        return torch.tensor(draws, dtype=torch.float64, device=thresholds.device), thresholds

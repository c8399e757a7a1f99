"""ME, mixture-model-like ensemble: the model that writes a token is drawn anew for every token."""
from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch

from tokenrouter.interface import BaseRouter, EntryContext, Param, StepResult
from tokenrouter.sampling import Purpose, uniform

WEIGHTS = Param("weights", (), 0.0, 1e6, "probability, up to a common factor, that a model writes a token",
                per_role=True)


def drawn(weights: Sequence[float], seed: int, position: int) -> int:
    """The role that writes output token `position`.

    The key names no role (0 stands for all): whoever draws for a position, draws the same.
    """
    bounds = list(accumulate(weights))
    last = max(role for role, weight in enumerate(weights) if weight)  # rounding must not point beyond it
    return min(bisect_right(bounds, uniform(seed, position, 0, Purpose.ROUTE) * bounds[-1]), last)


class MERouter(BaseRouter):
    """Of every role alike: each token is kept, and the next one is written by a model drawn by `weights`."""

    params = (WEIGHTS,)
    handoff = "keep"
    top_logits = 0
    weights: tuple[float, ...]

    def route(self, result: StepResult) -> torch.Tensor:
        answers = []
        for view in result.requests:
            weights = view.params.get("weights", self.weights)
            role = drawn(weights, view.sampling_params.seed, view.num_accepted + 1)
            answers.append(0 if role == self.role else role + (role < self.role))
        return torch.tensor(answers, device=result.next_token_ids.device)


class MEEntry:
    """The first token's model is drawn too: were it fixed, the first token would not follow the mixture."""

    def __init__(self, weights: Any) -> None:
        self._weights = WEIGHTS.parse(weights)

    def __call__(self, context: EntryContext) -> str:
        weights = WEIGHTS.parse(context.params.get("weights", self._weights), context.roles)
        assert isinstance(weights, tuple)
        return context.roles[drawn(weights, context.seed, 0)]

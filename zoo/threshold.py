"""Routers that compare one score with one threshold: R2R, entropy, random, and those of the same kind to come."""
from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal, NamedTuple

import torch

from tokenrouter.interface import BaseRouter, StepResult

_COMPARE = {">=": torch.ge, ">": torch.gt, "<=": torch.le, "<": torch.lt}


class Tensors(NamedTuple):
    """What a score is computed from, one row a request: `token_ids` [B] the proposals, `logits` [B, V] raw, and
    `hidden` [B, H], None unless the router needs hidden states."""

    token_ids: torch.Tensor
    logits: torch.Tensor
    hidden: torch.Tensor | None


class ThresholdRouter(BaseRouter):
    """Sends a request to the first peer when its score is on the leaving side of `threshold`.

    A subclass declares the parameter `threshold`, whose `sends` names the leaving side, and defines `score`; one whose
    score is no function of tensors overrides `scores`.
    """

    threshold: float
    peers = 1
    leaves: ClassVar[Literal[">=", ">", "<=", "<"]]  # how the score of a request that leaves stands to the threshold

    def score(self, tensors: Tensors, params: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """[B] scores in [0, 1], a pure function; `params` are the [B] values of the declared parameters."""
        raise TypeError(f"{type(self).__name__} defines no score")

    def scores(self, result: StepResult) -> tuple[torch.Tensor, torch.Tensor]:
        """[B] scores and [B] thresholds of a step."""
        params = {param.name: self.values(param.name, result) for param in self.params}
        return self.score(Tensors(result.next_token_ids, *result.logits_output), params), params["threshold"]

    def route(self, result: StepResult) -> torch.Tensor:
        score, threshold = self.scores(result)
        result.signal = score
        return _COMPARE[self.leaves](score, threshold).long()

    def margin(self, result: StepResult) -> torch.Tensor:
        """[B] distances of the scores from the thresholds: below which difference a route may flip."""
        score, threshold = self.scores(result)
        return (score - threshold).abs()

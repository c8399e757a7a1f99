"""Algorithms for tests: one model, a pair with entropy routing, and a ring of any number of roles."""
from __future__ import annotations

from typing import Any

import torch

from tokenrouter.interface import Algorithm, BaseRouter, StepResult

RETURN = {"_target_": "tokenrouter.interface.ReturnAfterOne"}
ENTROPY = "zoo.entropy.router.EntropySmall"
HALF = 0.7  # entropy that about half of a dummy model's proposals exceed


def pair(target: str = ENTROPY, **config: Any) -> Algorithm:
    return Algorithm("pair", ("small", "large"), {"small": {"_target_": target, **config}, "large": RETURN}, "small")


def single() -> Algorithm:
    return Algorithm("single", ("only",), {"only": {"_target_": "tokenrouter.interface.StayRouter"}}, "only")


class Circular(BaseRouter):
    """Moves on to the next role after each token that it keeps."""

    handoff = "keep"

    def route(self, result: StepResult) -> torch.Tensor:
        # Destinations leave the own role out: from the last role, the first one is 1.
        following = self.role + 1 if self.role + 1 < len(self.roles) else 1
        return torch.full((len(result.requests),), following)


def ring(*names: str, entry: str) -> Algorithm:
    return Algorithm("ring", names, {name: {"_target_": "tests.zoo.algorithms.Circular"} for name in names}, entry)

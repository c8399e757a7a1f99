"""R2R, CITER and Co-LLM over two models of random weights: what tests need of routers trained for a pair."""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from tests.scripted import dummy
from tokenrouter.core import Request, SamplingParams
from tokenrouter.interface import Algorithm, LogitsOutput, ModelContext, RequestView, StepResult
from zoo import weights
from zoo.citer.network import ConfidenceNetwork
from zoo.citer.router import CiterLarge, CiterSmall
from zoo.collm.router import CoLLMBase, CoLLMLarge
from zoo.r2r.network import R2RNetwork, Sizes
from zoo.r2r.router import R2RLarge, R2RSmall
from zoo.reference import Reference
from zoo.trained import TrainedRouter
from zoo.walk import Record

HIDDEN, VOCAB = 32, 64
Models = Sequence[Any]


def r2r_network() -> R2RNetwork:
    """One whose inputs are standardised and whose biases and norms are not the initial ones, or folding them wrongly
    would not show."""
    torch.manual_seed(0)
    made = R2RNetwork(Sizes(HIDDEN, num_logits=10, width=16, expansion=2, num_blocks=2)).eval()
    made.mean.normal_()
    made.std.uniform_(0.5, 2.0)
    for parameter in made.parameters():
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter, 0.3)
    return made


def citer_network() -> ConfidenceNetwork:
    """One whose running statistics and norm are not the initial ones, or folding them wrongly would not show."""
    torch.manual_seed(0)
    made = ConfidenceNetwork(HIDDEN)
    norm = made[1]
    for tensor in (norm.weight.data, norm.running_var):
        tensor.uniform_(0.5, 2.0)
    for tensor in (norm.bias.data, norm.running_mean, made[6].weight.data):
        tensor.normal_()
    return made.eval()


def collm_vector() -> torch.Tensor:
    return torch.randn(HIDDEN, generator=torch.Generator().manual_seed(0))


class Kind(NamedTuple):
    """One of the three. `leaves(score, threshold)`: its rule. `far`: the threshold at which nothing leaves."""

    name: str
    roles: tuple[str, str]
    small: type[TrainedRouter]
    large: type
    tensors: Callable[[], Mapping[str, torch.Tensor]]
    about: Mapping[str, Any]
    leaves: Callable[[torch.Tensor, float], torch.Tensor]
    far: float

    def save(self, path: Path, models: Models, tensors: Mapping[str, torch.Tensor] | None = None) -> str:
        described = {role: weights.describe(f"dummy-{role}", context(model))
                     for role, model in zip(self.roles, models, strict=True)}
        weights.save(path, self.tensors() if tensors is None else tensors,
                     {"kind": self.name, "models": described, **self.about})
        return str(path)

    def router(self, file: str, models: Models, **config: Any) -> TrainedRouter:
        made = self.small(weights=file, **config)
        made.setup(context(models[0]))
        return made

    def algorithm(self, file: str, threshold: float | str) -> Algorithm:
        routers = {role: {"_target_": f"{target.__module__}.{target.__name__}", "weights": file}
                   for role, target in zip(self.roles, (self.small, self.large), strict=True)}
        routers[self.roles[0]]["threshold"] = threshold  # type: ignore[assignment]
        return Algorithm(self.name, self.roles, routers, self.roles[0])


KINDS = (
    Kind("r2r", ("small", "large"), R2RSmall, R2RLarge, lambda: r2r_network().state_dict(),
         {"sizes": r2r_network().sizes._asdict()}, torch.ge, 1.0),
    Kind("citer", ("small", "large"), CiterSmall, CiterLarge, lambda: citer_network().state_dict(), {}, torch.lt, 0.0),
    Kind("collm", ("base", "large"), CoLLMBase, CoLLMLarge, lambda: {"vector": collm_vector()}, {}, torch.gt, 1.0),
)
R2R, CITER, COLLM = KINDS


def pair() -> tuple[Any, Any]:
    return dummy(1, eos_token_id=7), dummy(2, eos_token_id=7)


def context(model: Any) -> ModelContext:
    return ModelContext(torch.device("cpu"), VOCAB, HIDDEN, (), model.get_input_embeddings())


def result(rows: int, thresholds: Sequence[float] | None = None) -> StepResult:
    """A step's random numbers, and requests with these thresholds of their own."""
    torch.manual_seed(rows)
    params = [{"threshold": threshold} for threshold in thresholds] if thresholds else [{}] * rows
    views = [RequestView(Request("0", 0, 0, 0, SamplingParams(0, 9), own, [1], 1, [1, 0]), 2) for own in params]
    output = LogitsOutput(torch.randn(rows, VOCAB), torch.randn(rows, HIDDEN))
    return StepResult(torch.randint(0, VOCAB, (rows,)), output, views)


def decode(algorithm: Algorithm, models: Models) -> Record:
    return Reference(algorithm, list(models)).decode([3, 1, 4], SamplingParams(0, 12))

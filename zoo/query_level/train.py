"""Trains the win-rate router (arXiv 2406.18665, section 4): whose answer to a whole problem would be another one?

The labels are those of R2R for a whole answer: both models answer each problem greedily, and the large one wins where
the small one's final answer is another.
"""
from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import msgspec
import torch
from torch.nn import functional as F

from tokenrouter.core import InputError
from tokenrouter.engine.base import Engine, Row
from zoo import weights
from zoo.fit import Fit, TrainOptions, fit
from zoo.labels import Pair
from zoo.offline import Offline, greedy, reserve, single
from zoo.query_level.network import WinRate
from zoo.query_level.router import KIND
from zoo.setup import Setup


class Options(TrainOptions):
    """`python -m zoo.train algo=query_level out=FOLDER ...`: what there is to set."""

    problems: int = 1500
    held_out: float = 0.2
    lr: float = 3e-4
    weight_decay: float = 1e-2
    batch_size: int = 128
    epochs: int = 200
    patience: int = 30
    width: int = 8
    dropout: float = 0.2

    def check(self) -> None:
        super().check()
        self.at_least_one("width")
        if not 0 <= self.dropout < 1:
            raise InputError(f"dropout={self.dropout}: allowed is a number in [0, 1)")


class Rows(NamedTuple):
    """One row a problem: the small model's state behind the prompt `hidden` [N, H], and whether the large one wins."""

    hidden: torch.Tensor
    wins: torch.Tensor
    problems: torch.Tensor


def train(setup: Setup, options: Options) -> Path:
    """Label, fit; returns the router's file."""
    options.check()
    pair = Pair(setup, options, ())
    rows = pair.collect(Rows, lambda part: label(pair, part))
    network, fitted = train_network(rows, pair.held(rows.problems), options, pair.state_file())
    file = pair.folder / "router.safetensors"
    wins = int(rows.wins.sum())
    weights.save(file, network.state_dict(), {
        "kind": KIND, "width": options.width, **pair.about, "options": msgspec.to_builtins(options) | {"out": ""},
        "rows": len(rows.wins), "wins": wins, "held_out_loss": fitted.loss, "best_epoch": fitted.epoch})
    print(f"{file}: {len(rows.wins)} problems, the large model wins at {wins}\n"
          f"held-out loss {fitted.loss:.4f} at epoch {fitted.epoch}")
    return file


def label(pair: Pair, part: slice) -> Rows:
    """The rows of these problems; an answer that does not end agrees with none."""
    prompts = pair.prompts[part]
    answers = [
        Offline(single(), [engine], batch_size=pair.options.decode_batch).decode(
            greedy(prompts, pair.workload.max_tokens))
        for engine in (pair.small, pair.large)
    ]
    wins = torch.tensor([not pair.agree(small, large) for small, large in zip(*answers, strict=True)])
    return Rows(prompt_states(pair.small, prompts), wins, torch.arange(len(prompts)))


@torch.inference_mode()
def prompt_states(engine: Engine, prompts: list[list[int]]) -> torch.Tensor:
    """[N, H] hidden states of each prompt's last position."""
    states = []
    for prompt in prompts:
        row = Row("prompt", prompt[engine.open("prompt", prompt) :])
        reserve(engine, row)
        states.append(engine.step([row]).hidden[-1].float().cpu())
        engine.free("prompt")
    return torch.stack(states)


def train_network(
    rows: Rows, held: torch.Tensor, options: Options, state_file: Path | None = None
) -> tuple[WinRate, Fit]:
    """Fit a network on the rows that are not `held` [N]."""
    torch.manual_seed(options.seed)
    used, labels = (~held).nonzero().squeeze(1), rows.wins.float()
    if not 0 < labels[used].sum() < len(used):
        raise InputError(f"problems={options.problems}: one model wins them all; allowed are more problems")
    network = WinRate(rows.hidden.shape[1], options.width, options.dropout)
    network.mean.copy_(rows.hidden[used].mean(dim=0))
    network.std.copy_(rows.hidden[used].std(dim=0).clamp(min=1e-3))

    def loss(index: torch.Tensor) -> tuple[torch.Tensor, int]:
        return F.binary_cross_entropy_with_logits(network(rows.hidden[index]), labels[index]), len(index)

    return network, fit(network, loss, used, held.nonzero().squeeze(1), options, state_file=state_file)

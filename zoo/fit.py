"""The training loop of the zoo's routers: AdamW, early stopping on the held-out loss, and going on where it stopped."""
from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec
import torch
from safetensors.torch import load_file, save_file

from tokenrouter.core import InputError
from zoo.cli import progress_bar

Loss = Callable[[torch.Tensor], tuple[torch.Tensor, int]]
"""[n] indices of examples -> their mean loss, and over how many terms it is the mean."""


class TrainOptions(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What every training has to set; each algorithm adds its own and says what its source takes."""

    out: str  # folder: labels, progress and router.safetensors
    seed: int = 0
    problems: int = 1000  # of the `router` split
    held_out: float = 0.15  # share of the problems for early stopping
    chunk: int = 50  # problems labelled between two files
    decode_batch: int = 48  # requests decoded at once
    lr: float = 1e-3
    weight_decay: float = 0.0
    batch_size: int = 1024  # examples a step
    epochs: int = 60
    patience: int = 10  # epochs without a better held-out loss

    def check(self) -> None:
        """InputError for a value that is out of range."""
        for name in ("problems", "chunk", "decode_batch", "batch_size", "epochs"):
            self.at_least_one(name)
        if not 0 < self.held_out < 1:
            raise InputError(f"held_out={self.held_out}: allowed is a number between 0 and 1")

    def at_least_one(self, name: str) -> None:
        if getattr(self, name) < 1:
            raise InputError(f"{name}={getattr(self, name)}: allowed is >= 1")


class Fit(NamedTuple):
    """The least held-out loss, a mean over its terms, and the epoch that had it."""

    loss: float
    epoch: int


def constant(progress: float) -> float:
    return 1.0


def fit(
    module: torch.nn.Module, loss_of: Loss, used: torch.Tensor, held: torch.Tensor, options: TrainOptions, *,
    state_file: Path | None = None, schedule: Callable[[float], float] = constant, held_batch: int = 8192,
    name: str = "training epochs",
) -> Fit:
    """Fit a module on the examples `used` [n]; it is left with the weights of the epoch that was best on `held` [m].

    `schedule`: the factor on the learning rate, by the share of all steps that are done. After each epoch all that is
    needed to go on goes to `state_file`; an epoch is the same whether or not it is resumed to.
    """
    optimizer = torch.optim.AdamW(module.parameters(), lr=options.lr, weight_decay=options.weight_decay)
    best, least, best_epoch, first = copy.deepcopy(module.state_dict()), math.inf, -1, 0
    if state_file and state_file.exists():
        best, least, best_epoch, first = _resume(state_file, module, optimizer)
    with progress_bar() as bar:
        task = bar.add_task(name, total=options.epochs, completed=first)
        for epoch in range(first, options.epochs):
            if epoch - best_epoch > options.patience:
                break
            torch.manual_seed(options.seed + 1 + epoch)
            module.train()
            batches = used[torch.randperm(len(used))].split(options.batch_size)
            for number, index in enumerate(batches):
                for group in optimizer.param_groups:
                    group["lr"] = options.lr * schedule((epoch + number / len(batches)) / options.epochs)
                mean, _ = loss_of(index)
                optimizer.zero_grad()
                mean.backward()
                optimizer.step()
            now = held_out_loss(module, loss_of, held, held_batch)
            if now < least:
                best, least, best_epoch = copy.deepcopy(module.state_dict()), now, epoch
            if state_file:
                _keep(state_file, module, optimizer, best, least, best_epoch, epoch + 1)
            bar.update(task, completed=epoch + 1, description=f"{name} (loss {now:.4f}, best {least:.4f})")
    module.load_state_dict(best)
    module.eval()
    return Fit(least, best_epoch)


@torch.no_grad()
def held_out_loss(module: torch.nn.Module, loss_of: Loss, held: torch.Tensor, batch_size: int) -> float:
    """The mean over all terms of the examples `held` [m]."""
    module.eval()
    means = [loss_of(index) for index in held.split(batch_size)]
    return sum(float(mean) * terms for mean, terms in means) / sum(terms for _, terms in means)


def _keep(
    file: Path, module: torch.nn.Module, optimizer: torch.optim.Optimizer, best: dict[str, torch.Tensor], loss: float,
    best_epoch: int, epoch: int,
) -> None:
    """Write what `_resume` reads. Tensors only: the optimizer's state is a table of them, by parameter."""
    tensors = {f"network.{name}": tensor for name, tensor in module.state_dict().items()}
    tensors |= {f"best.{name}": tensor for name, tensor in best.items()}
    for number, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{number}.{name}": tensor for name, tensor in state.items()}
    tensors["progress"] = torch.tensor([loss, best_epoch, epoch], dtype=torch.float64)
    save_file({name: tensor.clone() for name, tensor in tensors.items()}, file.with_suffix(".partial"))
    file.with_suffix(".partial").rename(file)


def _resume(
    file: Path, module: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[dict[str, torch.Tensor], float, int, int]:
    groups: dict[str, dict[str, torch.Tensor]] = {"network": {}, "best": {}, "optimizer": {}}
    for key, tensor in load_file(file).items():
        group, _, name = key.partition(".")
        if group in groups:
            groups[group][name] = tensor
        else:
            loss, best_epoch, epoch = tensor.tolist()
    module.load_state_dict(groups["network"])
    state: dict[int, dict[str, torch.Tensor]] = {}
    for key, tensor in groups["optimizer"].items():
        number, _, name = key.partition(".")
        state.setdefault(int(number), {})[name] = tensor
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    return groups["best"], loss, int(best_epoch), int(epoch)

"""Trains R2R's router on labelled rows (arXiv 2505.21600; official code: script/train/train_router.py)."""
from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional as F

from tokenrouter.core import InputError
from zoo import weights
from zoo.offline import context_of
from zoo.r2r.label import DIVERGENT, Labeller, Rows, collect
from zoo.r2r.network import Features, R2RNetwork, Sizes
from zoo.r2r.router import KIND
from zoo.setup import Setup, progress_bar, same_answer


class Options(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """`python -m zoo.train algo=r2r out=FOLDER ...`: what there is to set, with the values for the embedded pair.

    The paper's network is num_logits=100 width=1024 expansion=4 num_blocks=6, its training lr=5e-5 weight_decay=5e-4
    batch_size=1024 epochs=50 patience=10 recall=0.95 recall_factor=1.
    """

    out: str  # folder: labels, progress and router.safetensors
    seed: int = 0
    problems: int = 1000  # of the `router` split
    held_out: float = 0.15  # share of the problems for early stopping and the threshold
    chunk: int = 50  # problems labelled between two files
    decode_batch: int = 48  # requests decoded at once
    num_logits: int = 32
    width: int = 64
    expansion: int = 2
    num_blocks: int = 1
    dropout: float = 0.1
    lr: float = 1e-3
    weight_decay: float = 5e-4
    batch_size: int = 1024
    epochs: int = 60
    patience: int = 10  # epochs without a better held-out loss
    recall: float = 0.95  # of divergent proposals on held-out rows, which sets the threshold
    recall_factor: float = 1.0  # on the weight of divergent rows


class Fit(NamedTuple):
    network: R2RNetwork
    loss: float  # held-out
    epoch: int  # the best


def train(setup: Setup, options: Options) -> Path:
    """Label, fit, pick the threshold; returns the router's file."""
    folder = Path(options.out)
    _check(options)
    setup.check_vocabularies()
    workload, tasks = setup.problems("router", options.problems)
    prompts = [setup.prompt(task) for task in tasks]
    length = max(map(len, prompts)) + workload.max_tokens
    small, large = (setup.engine(role, options.decode_batch, length) for role in ("small", "large"))
    models = {
        role: weights.describe(setup.model_name(role), context_of(engine))
        for role, engine in (("small", small), ("large", large))
    }
    about = {"models": models, "data": workload.data_source, "labels": _labels_key(options), "seed": setup.seed}
    _claim(folder / "labels.json", about)
    labeller = Labeller(
        small, large, lambda a, b: same_answer(setup.answer(workload.grader, a), setup.answer(workload.grader, b)),
        num_logits=min(options.num_logits, small.info.vocab_size), max_tokens=workload.max_tokens,
        batch_size=options.decode_batch,
    )
    with progress_bar() as bar:
        task = bar.add_task("labelling problems", total=len(prompts))
        rows = collect(labeller, prompts, folder / "labels", chunk=options.chunk,
                       progress=partial(bar.advance, task))
    embeddings = small.embed(torch.arange(small.info.vocab_size, device=small.device)).float().cpu()
    held = rows.problems >= len(prompts) * (1 - options.held_out)
    fit = train_network(rows, held, embeddings, options, folder / f"training-{_digest(options)}.safetensors")
    scores = torch.cat(list(_scores(fit.network, rows, held.nonzero().squeeze(1), embeddings)))
    threshold = pick_threshold(scores, rows.kinds[held] == DIVERGENT, options.recall)
    file = folder / "router.safetensors"
    summary = {
        "kind": KIND, "sizes": fit.network.sizes._asdict(), "threshold": threshold, **about,
        "options": msgspec.to_builtins(options) | {"out": ""}, "rows": len(rows.kinds),
        "mismatches": int((rows.kinds > 0).sum()), "divergent": int((rows.kinds == DIVERGENT).sum()),
        "held_out_loss": fit.loss, "best_epoch": fit.epoch,
    }
    weights.save(file, fit.network.state_dict(), summary)
    sent = float((scores >= threshold).float().mean())
    print(f"{file}: {summary['rows']} rows, {summary['mismatches']} mismatches, {summary['divergent']} divergent\n"
          f"held-out loss {fit.loss:.4f} at epoch {fit.epoch}; threshold {threshold:.4f} for a recall of "
          f"{options.recall:g}, which sends {sent:.2%} of the held-out positions")
    return file


def train_network(
    rows: Rows, held: torch.Tensor, embeddings: torch.Tensor, options: Options, state_file: Path | None = None
) -> Fit:
    """Fit a network by AdamW on the rows that are not `held` [N]; the epoch with the least loss on those that are.

    Divergent rows weigh n0 / n1 * recall_factor. After each epoch all that is needed to go on goes to `state_file`.
    """
    torch.manual_seed(options.seed)
    sizes = Sizes(embeddings.shape[1], rows.top_logits.shape[1], options.width, options.expansion, options.num_blocks,
                  options.dropout)
    network = R2RNetwork(sizes)
    used = (~held).nonzero().squeeze(1)
    labels = (rows.kinds == DIVERGENT).float()
    if not 0 < labels[used].sum() < len(used):
        raise InputError(f"problems={options.problems}: all their rows have one label; allowed are more problems")
    _standardise(network, rows, used, embeddings)
    weight = pos_weight(labels[used], options.recall_factor)
    optimizer = torch.optim.AdamW(network.parameters(), lr=options.lr, weight_decay=options.weight_decay)
    best, loss, best_epoch, first = copy.deepcopy(network.state_dict()), math.inf, -1, 0
    if state_file and state_file.exists():
        best, loss, best_epoch, first = _resume(state_file, network, optimizer)
    with progress_bar() as bar:
        task = bar.add_task("training epochs", total=options.epochs, completed=first)
        for epoch in range(first, options.epochs):
            if epoch - best_epoch > options.patience:
                break
            torch.manual_seed(options.seed + 1 + epoch)  # an epoch is the same whether or not it is resumed to
            network.train()
            for index in used[torch.randperm(len(used))].split(options.batch_size):
                logit = network(_features(rows, index, embeddings))
                step = F.binary_cross_entropy_with_logits(logit, labels[index], pos_weight=weight)
                optimizer.zero_grad()
                step.backward()
                optimizer.step()
            now = _loss(network, rows, held.nonzero().squeeze(1), embeddings, labels, weight)
            if now < loss:
                best, loss, best_epoch = copy.deepcopy(network.state_dict()), now, epoch
            if state_file:
                _keep(state_file, network, optimizer, best, loss, best_epoch, epoch + 1)
            bar.update(task, completed=epoch + 1, description=f"training epochs (loss {now:.4f}, best {loss:.4f})")
    network.load_state_dict(best)
    return Fit(network.eval(), loss, best_epoch)


def pos_weight(labels: torch.Tensor, recall_factor: float = 1.0) -> torch.Tensor:
    """Weight of a positive row: n0 / n1 * recall_factor, so that with 1 both classes weigh the same."""
    positives = labels.sum()
    return (len(labels) - positives) / positives * recall_factor


def pick_threshold(scores: torch.Tensor, labels: torch.Tensor, recall: float) -> float:
    """The largest threshold at which the share `recall` of the positives has a score of at least that."""
    positives = scores[labels.bool()].sort(descending=True).values
    if not len(positives):
        raise InputError("held_out: holds no divergent proposal; allowed is a larger share, or more problems")
    return float(positives[max(math.ceil(recall * len(positives) - 1e-9), 1) - 1])


def _features(rows: Rows, index: torch.Tensor, embeddings: torch.Tensor) -> Features:
    return Features(rows.hidden[index], rows.top_logits[index], embeddings[rows.token_ids[index]])


@torch.no_grad()
def _standardise(network: R2RNetwork, rows: Rows, used: torch.Tensor, embeddings: torch.Tensor) -> None:
    parts = _features(rows, used, embeddings)
    network.mean.copy_(torch.cat([part.mean(dim=0) for part in parts]))
    network.std.copy_(torch.cat([part.std(dim=0) for part in parts]).clamp(min=1e-3))


@torch.no_grad()
def _scores(
    network: R2RNetwork, rows: Rows, index: torch.Tensor, embeddings: torch.Tensor, batch_size: int = 8192
) -> Iterator[torch.Tensor]:
    network.eval()
    for part in index.split(batch_size):
        yield network(_features(rows, part, embeddings)).sigmoid()


@torch.no_grad()
def _loss(
    network: R2RNetwork, rows: Rows, index: torch.Tensor, embeddings: torch.Tensor, labels: torch.Tensor,
    weight: torch.Tensor, batch_size: int = 8192,
) -> float:
    network.eval()
    total = sum(
        float(F.binary_cross_entropy_with_logits(
            network(_features(rows, part, embeddings)), labels[part], pos_weight=weight, reduction="sum"))
        for part in index.split(batch_size)
    )
    return total / len(index)


def _keep(
    file: Path, network: R2RNetwork, optimizer: torch.optim.Optimizer, best: dict[str, torch.Tensor], loss: float,
    best_epoch: int, epoch: int,
) -> None:
    """Write what `_resume` reads. Tensors only: the optimizer's state is a table of them, by parameter."""
    tensors = {f"network.{name}": tensor for name, tensor in network.state_dict().items()}
    tensors |= {f"best.{name}": tensor for name, tensor in best.items()}
    for number, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{number}.{name}": tensor for name, tensor in state.items()}
    tensors["progress"] = torch.tensor([loss, best_epoch, epoch], dtype=torch.float64)
    save_file({name: tensor.clone() for name, tensor in tensors.items()}, file.with_suffix(".partial"))
    file.with_suffix(".partial").rename(file)


def _resume(
    file: Path, network: R2RNetwork, optimizer: torch.optim.Optimizer
) -> tuple[dict[str, torch.Tensor], float, int, int]:
    groups: dict[str, dict[str, torch.Tensor]] = {"network": {}, "best": {}, "optimizer": {}}
    for key, tensor in load_file(file).items():
        group, _, name = key.partition(".")
        if group in groups:
            groups[group][name] = tensor
        else:
            loss, best_epoch, epoch = tensor.tolist()
    network.load_state_dict(groups["network"])
    state: dict[int, dict[str, torch.Tensor]] = {}
    for key, tensor in groups["optimizer"].items():
        number, _, name = key.partition(".")
        state.setdefault(int(number), {})[name] = tensor
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    return groups["best"], loss, int(best_epoch), int(epoch)


def _digest(options: Options) -> str:
    return hashlib.blake2b(msgspec.json.encode(options), digest_size=4).hexdigest()


def _labels_key(options: Options) -> dict[str, Any]:
    return {name: getattr(options, name) for name in ("problems", "chunk", "num_logits")}


def _claim(file: Path, about: dict[str, Any]) -> None:
    """Note what the folder's labels are of; InputError if it has those of something else."""
    content = msgspec.json.format(msgspec.json.encode(about, order="deterministic"))
    if file.exists() and file.read_bytes() != content:
        raise InputError(f"out={file.parent}: holds labels of other models, problems or num_logits; allowed is a new "
                         "folder, or that of the same labels")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)


def _check(options: Options) -> None:
    for name in ("problems", "chunk", "decode_batch", "num_logits", "width", "expansion", "num_blocks", "batch_size",
                 "epochs"):
        if getattr(options, name) < 1:
            raise InputError(f"{name}={getattr(options, name)}: allowed is >= 1")
    for name in ("held_out", "recall"):
        if not 0 < getattr(options, name) < 1 and not (name == "recall" and options.recall == 1):
            raise InputError(f"{name}={getattr(options, name)}: allowed is a number between 0 and 1")

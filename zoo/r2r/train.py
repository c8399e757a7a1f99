"""Trains R2R's router on labelled rows (arXiv 2505.21600; official code: script/train/train_router.py)."""
from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import msgspec
import torch
from torch.nn import functional as F

from tokenrouter.core import InputError
from zoo import weights
from zoo.fit import Fit, TrainOptions, fit
from zoo.labels import Pair
from zoo.r2r.label import DIVERGENT, Labeller, Rows
from zoo.r2r.network import Features, R2RNetwork, Sizes
from zoo.r2r.router import KIND
from zoo.setup import Setup


class Options(TrainOptions):
    """`python -m zoo.train algo=r2r out=FOLDER ...`: what there is to set, with the values for the embedded pair.

    The paper's network is num_logits=100 width=1024 expansion=4 num_blocks=6, its training lr=5e-5 weight_decay=5e-4
    batch_size=1024 epochs=50 patience=10 recall=0.95 recall_factor=1.
    """

    problems: int = 1950  # of the `router` split
    lr: float = 3e-4
    weight_decay: float = 5e-4
    num_logits: int = 32
    width: int = 64
    expansion: int = 2
    num_blocks: int = 1
    dropout: float = 0.1
    recall: float = 0.95  # of divergent proposals on held-out rows, which sets the threshold
    recall_factor: float = 0.1  # on the weight of divergent rows

    def check(self) -> None:
        super().check()
        for name in ("num_logits", "width", "expansion", "num_blocks"):
            self.at_least_one(name)
        if not 0 < self.recall <= 1:
            raise InputError(f"recall={self.recall}: allowed is a number in (0, 1]")


def train(setup: Setup, options: Options) -> Path:
    """Label, fit, pick the threshold; returns the router's file."""
    options.check()
    pair = Pair(setup, options, ("num_logits",))
    labeller = Labeller(
        pair.small, pair.large, pair.agree, num_logits=min(options.num_logits, pair.small.info.vocab_size),
        max_tokens=pair.workload.max_tokens, batch_size=options.decode_batch,
    )
    rows = pair.collect(Rows, lambda part: labeller.label(pair.prompts[part]))
    embeddings = pair.small.embed(torch.arange(pair.small.info.vocab_size, device=pair.small.device)).float().cpu()
    held = pair.held(rows.problems)
    network, fitted = train_network(rows, held, embeddings, options, pair.state_file())
    scores = torch.cat(list(_scores(network, rows, held.nonzero().squeeze(1), embeddings)))
    threshold = pick_threshold(scores, rows.kinds[held] == DIVERGENT, options.recall)
    file = pair.folder / "router.safetensors"
    summary = {
        "kind": KIND, "sizes": network.sizes._asdict(), "threshold": threshold, **pair.about,
        "options": msgspec.to_builtins(options) | {"out": ""}, "rows": len(rows.kinds),
        "mismatches": int((rows.kinds > 0).sum()), "divergent": int((rows.kinds == DIVERGENT).sum()),
        "held_out_loss": fitted.loss, "best_epoch": fitted.epoch,
    }
    weights.save(file, network.state_dict(), summary)
    sent = float((scores >= threshold).float().mean())
    print(f"{file}: {summary['rows']} rows, {summary['mismatches']} mismatches, {summary['divergent']} divergent\n"
          f"held-out loss {fitted.loss:.4f} at epoch {fitted.epoch}; threshold {threshold:.4f} for a recall of "
          f"{options.recall:g}, which sends {sent:.2%} of the held-out positions")
    return file


def train_network(
    rows: Rows, held: torch.Tensor, embeddings: torch.Tensor, options: Options, state_file: Path | None = None
) -> tuple[R2RNetwork, Fit]:
    """Fit a network on the rows that are not `held` [N]. Divergent rows weigh n0 / n1 * recall_factor."""
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

    def loss(index: torch.Tensor) -> tuple[torch.Tensor, int]:
        logit = network(_features(rows, index, embeddings))
        return F.binary_cross_entropy_with_logits(logit, labels[index], pos_weight=weight), len(index)

    return network, fit(network, loss, used, held.nonzero().squeeze(1), options, state_file=state_file)


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

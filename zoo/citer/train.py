"""Trains CITER's router on labelled rows (arXiv 2502.01976; official code: src/pipeline)."""
from __future__ import annotations

from pathlib import Path

import msgspec
import torch
from torch.nn import functional as F

from tokenrouter.core import InputError
from tokenrouter.interface import Algorithm
from zoo import weights
from zoo.citer.label import BOTH_WRONG, LARGE_RIGHT, Labeller, Labels, Rows
from zoo.citer.network import ConfidenceNetwork
from zoo.citer.router import KIND
from zoo.fit import Fit, TrainOptions, fit
from zoo.labels import Pair, digest
from zoo.offline import Offline
from zoo.setup import Setup


class Options(TrainOptions):
    """`python -m zoo.train algo=citer out=FOLDER ...`: what there is to set, with the values for the embedded pair.

    The official training is lr=1e-7 batch_size=80 epochs=1000 patience=5 held_out=0.2 relabel_threshold=0.95.
    """

    problems: int = 400
    held_out: float = 0.2
    batch_size: int = 512
    patience: int = 5
    dropout: float = 0.1
    relabel_rounds: int = 1  # times that undecided rows are labelled anew with the router in the loop
    relabel_threshold: float = 0.95  # the router's then

    def check(self) -> None:
        super().check()
        for name in ("dropout", "relabel_threshold"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"{name}={getattr(self, name)}: allowed is a number in [0, 1]")
        for name, least in (("relabel_rounds", 0), ("batch_size", 2)):
            if getattr(self, name) < least:
                raise InputError(f"{name}={getattr(self, name)}: allowed is >= {least}")


def train(setup: Setup, options: Options) -> Path:
    """Label, fit, label anew with the router in the loop, fit again; returns the router's file."""
    options.check()
    pair = Pair(setup, options, ())
    labeller = Labeller(pair)
    rows = pair.collect(Rows, labeller.label)
    undecided = rows.kinds == BOTH_WRONG
    file = pair.folder / "router.safetensors"
    for turn in range(options.relabel_rounds + 1):
        if turn:
            offline, seen = routed(pair, file, options), rows
            new = pair.collect(Labels, lambda part, seen=seen, offline=offline: labeller.relabel(seen, part, offline),
                               f"relabelled{turn}-{digest(options)}")
            labels = rows.labels.clone()
            labels[undecided] = new.labels
            rows = rows._replace(labels=labels)
        network, fitted = train_network(rows, pair.held(rows.problems), options, pair.state_file(f"training{turn}"))
        summary = {
            "kind": KIND, **pair.about, "options": msgspec.to_builtins(options) | {"out": ""}, "rows": len(rows.labels),
            "only_large_right": int((rows.kinds == LARGE_RIGHT).sum()), "both_wrong": int(undecided.sum()),
            "both_wrong_but_fine": int(rows.labels[undecided].sum()), "held_out_loss": fitted.loss,
            "best_epoch": fitted.epoch,
        }
        weights.save(file, network.state_dict(), summary)
        print(f"{file}: {summary['rows']} rows; at {summary['only_large_right']} only the large model is right, at "
              f"{summary['both_wrong']} neither, of which {summary['both_wrong_but_fine']} are fine\n"
              f"held-out loss {fitted.loss:.4f} at epoch {fitted.epoch}", flush=True)
    return file


def routed(pair: Pair, file: Path, options: Options) -> Offline:
    """The pair under the router in `file`."""
    path = "zoo.citer.router"
    algorithm = Algorithm("citer", ("small", "large"), {
        "small": {"_target_": f"{path}.CiterSmall", "weights": str(file), "threshold": options.relabel_threshold},
        "large": {"_target_": f"{path}.CiterLarge", "weights": str(file)},
    }, "small")
    return Offline(algorithm, [pair.small, pair.large], batch_size=options.decode_batch)


def train_network(
    rows: Rows, held: torch.Tensor, options: Options, state_file: Path | None = None
) -> tuple[ConfidenceNetwork, Fit]:
    """Fit a network on the rows that are not `held` [N], all of one weight."""
    torch.manual_seed(options.seed)
    network = ConfidenceNetwork(rows.hidden.shape[1], options.dropout)
    used = (~held).nonzero().squeeze(1)
    if not 0 < rows.labels[used].sum() < len(used):
        raise InputError(f"problems={options.problems}: all their rows have one label; allowed are more problems")
    if len(used) % options.batch_size == 1:
        used = used[:-1]  # batch norm cannot learn from one row

    def loss(index: torch.Tensor) -> tuple[torch.Tensor, int]:
        logit = network(rows.hidden[index]).squeeze(1)
        return F.binary_cross_entropy_with_logits(logit, rows.labels[index]), len(index)

    return network, fit(network, loss, used, held.nonzero().squeeze(1), options, state_file=state_file)

"""Trains Co-LLM: a deferral head and, unless it is frozen, the base under it (arXiv 2403.03870)."""
from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoConfig, AutoModelForCausalLM

from tokenrouter.core import InputError
from tokenrouter.engine.torch.load import eos_token_ids
from tokenrouter.interface import ModelContext
from zoo import weights
from zoo.collm.label import Labeller, Rows
from zoo.collm.network import DeferralHead, marginal_nll
from zoo.collm.router import KIND
from zoo.fit import Fit, TrainOptions, fit
from zoo.labels import Pair
from zoo.setup import Setup


class Options(TrainOptions):
    """`python -m zoo.train algo=collm out=FOLDER ...`: what there is to set, with the values for the embedded pair.

    The model in the role `small` is what the base starts from. The official training is base=tuned lr=2e-5 epochs=2
    batch_size=128 warmup=0.04 weak_weight=8, and for the head's start head_lr=2e-5 in one pass of batches of 8.
    """

    problems: int = 600
    base: Literal["tuned", "frozen"] = "tuned"  # whether the base learns too, or the head alone
    lr: float = 1e-3  # of the base and the head together
    batch_size: int = 16  # answers a step of theirs
    epochs: int = 10
    patience: int = 2
    warmup: float = 0.04  # share of the steps in which the learning rate rises, before it falls to zero
    head_lr: float = 1e-2  # of the head alone
    head_batch: int = 1024  # positions a step of its own
    head_epochs: int = 20
    weak_weight: float = 8.0  # of positions where only the large model is right, at the head's start

    def check(self) -> None:
        super().check()
        for name in ("head_batch", "head_epochs"):
            self.at_least_one(name)
        if not 0 <= self.warmup < 1:
            raise InputError(f"warmup={self.warmup}: allowed is a number in [0, 1)")

    @property
    def of_head(self) -> TrainOptions:
        """Those of a fit of the head alone, whose examples are positions."""
        return msgspec.structs.replace(self, lr=self.head_lr, batch_size=self.head_batch, epochs=self.head_epochs)


class Joint(nn.Module):
    """A base and its deferral head."""

    def __init__(self, model: Any, head: DeferralHead, vocab_size: int) -> None:
        super().__init__()
        self.model, self.head, self.vocab_size = model, head, vocab_size

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[B, T] ids, padded at their ends -> [B, T, V] log probabilities and [B, T] deferral logits."""
        seen: list[torch.Tensor] = []
        hook = self.model.get_output_embeddings().register_forward_pre_hook(lambda _, args: seen.append(args[0]))
        try:
            logits = self.model(input_ids=ids, attention_mask=mask, use_cache=False).logits
        finally:
            hook.remove()
        return logits[..., : self.vocab_size].float().log_softmax(dim=-1), self.head(seen[0].float())


class Answers(NamedTuple):
    """Sequences to learn from: `ids[i]` a prompt and its right answer, `starts[i]` the prompt's length, `large[i]` the
    large model's log probabilities of the answer's tokens."""

    ids: list[torch.Tensor]
    starts: list[int]
    large: list[torch.Tensor]


def train(setup: Setup, options: Options) -> Path:
    """Score right answers by both models, start the head, fit; returns the head's file, beside which is the base."""
    options.check()
    pair = Pair(setup, options, ())
    labeller = Labeller(pair)
    rows = pair.collect(Rows, labeller.label)
    held = pair.held(rows.problems)
    path = setup.model_path("small")
    model = AutoModelForCausalLM.from_pretrained(path, revision=setup.revision("small"), dtype=torch.float32)
    head = DeferralHead(model.get_output_embeddings().weight.detach().mean(dim=0))
    start_head(head, rows, held, options, pair.state_file("start"))
    if options.base == "frozen":
        fitted = fit_head(head, rows, held, options, pair.state_file("head"))
        described = pair.about["models"]["small"]
    else:
        joint = Joint(model.to(pair.small.device), head.to(pair.small.device), labeller.vocab_size)
        fitted = fit_jointly(joint, answers_of(pair, rows), held_answers(pair, rows), options, pair.state_file("joint"))
        folder = pair.folder / "base"
        stored = model.to(AutoConfig.from_pretrained(path, revision=setup.revision("small")).dtype)
        stored.save_pretrained(folder)
        setup.tokenizer.save_pretrained(folder)
        described = weights.describe(folder.name, _context(stored))
    file = pair.folder / "router.safetensors"
    small, large = (-float(column[held].mean()) for column in (rows.small, rows.large))
    weights.save(file, {"vector": head.vector.detach().cpu()}, {
        "kind": KIND, **pair.about, "models": pair.about["models"] | {"base": described},
        "options": msgspec.to_builtins(options) | {"out": ""}, "rows": len(rows.weak), "weak": int(rows.weak.sum()),
        "held_out_loss": fitted.loss, "best_epoch": fitted.epoch,
    })
    print(f"{file}: {len(rows.weak)} rows, of which at {int(rows.weak.sum())} only the large model is right\n"
          f"held-out loss {fitted.loss:.4f} nats a token at epoch {fitted.epoch}; small model alone {small:.4f}, "
          f"large model alone {large:.4f}", flush=True)
    return file


def start_head(
    head: DeferralHead, rows: Rows, held: torch.Tensor, options: Options, state_file: Path | None = None
) -> Fit:
    """Fit the head to the weak labels."""
    weight = torch.tensor(options.weak_weight)

    def loss(index: torch.Tensor) -> tuple[torch.Tensor, int]:
        d = head(rows.hidden[index])
        return F.binary_cross_entropy_with_logits(d, rows.weak[index], pos_weight=weight), len(index)

    return _fit_positions(head, loss, held, options, state_file, "starting the head")


def fit_head(
    head: DeferralHead, rows: Rows, held: torch.Tensor, options: Options, state_file: Path | None = None
) -> Fit:
    """Fit the head on a base that stays as it is, by the marginal likelihood."""

    def loss(index: torch.Tensor) -> tuple[torch.Tensor, int]:
        return marginal_nll(head(rows.hidden[index]), rows.small[index], rows.large[index]).mean(), len(index)

    return _fit_positions(head, loss, held, options, state_file, "training the head")


def fit_jointly(
    joint: Joint, answers: Answers, held: torch.Tensor, options: Options, state_file: Path | None = None
) -> Fit:
    """Fit base and head together, by the marginal likelihood; `held` [n] says which answers are held out."""
    device = joint.head.vector.device

    def loss(index: torch.Tensor) -> tuple[torch.Tensor, int]:
        chosen = index.tolist()
        ids = pad_sequence([answers.ids[i] for i in chosen], batch_first=True).to(device)
        lengths = torch.tensor([len(answers.ids[i]) for i in chosen], device=device)
        log_probs, d = joint(ids, (torch.arange(ids.shape[1], device=device) < lengths[:, None]).long())
        terms = []
        for row, i in enumerate(chosen):
            end = len(answers.ids[i])
            before = slice(answers.starts[i] - 1, end - 1)  # the positions that predict the answer's tokens
            gold = ids[row, answers.starts[i] : end]
            base = log_probs[row, before].gather(1, gold[:, None]).squeeze(1)
            terms.append(marginal_nll(d[row, before], base, answers.large[i].to(device)))
        nll = torch.cat(terms)
        return nll.mean(), len(nll)

    used, unused = (~held).nonzero().squeeze(1), held.nonzero().squeeze(1)
    schedule = partial(rise_and_fall, options.warmup)
    return fit(joint, loss, used, unused, options, state_file=state_file, schedule=schedule,
               held_batch=options.batch_size, name="training base and head")


def rise_and_fall(warmup: float, progress: float) -> float:
    """Linear from 0 to 1 in the share `warmup` of the steps, and back to 0 in the others."""
    return progress / warmup if progress < warmup else (1 - progress) / (1 - warmup)


def answers_of(pair: Pair, rows: Rows) -> Answers:
    """The answers that the rows are positions of, in their order."""
    answers = Answers([], [], [])
    for problem in rows.problems.unique_consecutive().tolist():
        own, prompt = rows.problems == problem, pair.prompts[problem]
        answers.ids.append(torch.cat([torch.tensor(prompt), rows.token_ids[own]]))
        answers.starts.append(len(prompt))
        answers.large.append(rows.large[own])
    return answers


def held_answers(pair: Pair, rows: Rows) -> torch.Tensor:
    """Which of the answers are held out."""
    return pair.held(rows.problems.unique_consecutive())


def _fit_positions(
    head: DeferralHead, loss: Any, held: torch.Tensor, options: Options, state_file: Path | None, name: str
) -> Fit:
    used = (~held).nonzero().squeeze(1)
    return fit(head, loss, used, held.nonzero().squeeze(1), options.of_head, state_file=state_file, name=name)


def _context(model: Any) -> ModelContext:
    config = model.config.get_text_config()
    return ModelContext(model.device, config.vocab_size, config.hidden_size, eos_token_ids(model),
                        model.get_input_embeddings())

"""Trains the embedded models from nothing: `python -m zoo.models.train --size large`.

Half of the first batches drill single equations, with the loss on results alone, where all the difficulty lies; the
others are whole problems, with the loss on the worked answer. Hidden matrices are trained by Muon, the rest by AdamW.
A deep model may start shallow and be grown on the way, which saves much of the time.
Every problem is drawn afresh from the `train` split. A run is a function of size, seed and token budget, up to the
machine's rounding; README.md says what it gave. `--stage 2` goes on from what the stage before has written.
"""

from __future__ import annotations

import argparse
import copy
import math
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AttentionInterface, GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from zoo.models import SIZES, path
from zoo.models.batches import IGNORE, Batch, Drills, problem_batches
from zoo.models.tokenizer import CONTEXT, build

DRILL_UNTIL = 0.7  # the part of a stage in which there are drills
MUON_LR, ADAMW_LR = 0.02, 2e-3
WARMUP_STEPS, DECAY_FROM, DECAY_TO = 100, 0.3, 0.02


@dataclass(frozen=True)
class Stage:
    """A part of a training, with a learning rate schedule of its own; a later stage may add layers.

    tokens: budget, padding included. drills: their share among the batches of its first part. rate: the peak of the
    learning rates, relative to MUON_LR and ADAMW_LR. again: how many times an equation that was got wrong in a drill
    comes again, in later drills: what is rare and hard (a division by 8, a difference below 10) is learned only so.
    """

    layers: int
    tokens: int
    drills: float = 0.5
    rate: float = 1.0
    again: int = 0


@dataclass(frozen=True)
class Recipe:
    """A model's shape, its batches (in tokens), and the stages of its training."""

    hidden: int
    heads: int
    kv_heads: int
    intermediate: int
    stages: tuple[Stage, ...]
    batch: int = 3072

    def config(self, tokenizer: PreTrainedTokenizerFast, layers: int) -> Qwen3Config:
        return Qwen3Config(
            vocab_size=len(tokenizer),
            hidden_size=self.hidden,
            num_hidden_layers=layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            head_dim=32,
            intermediate_size=self.intermediate,
            tie_word_embeddings=True,
            max_position_embeddings=CONTEXT,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )


RECIPES = {
    "small": Recipe(
        96,
        heads=3,
        kv_heads=1,
        intermediate=256,
        stages=(Stage(3, 7_000_000, drills=0.2), Stage(3, 2_500_000, drills=0.4, rate=0.5)),
    ),
    "medium": Recipe(
        128,
        heads=4,
        kv_heads=2,
        intermediate=352,
        stages=(Stage(4, 7_000_000, drills=0.2), Stage(4, 3_000_000, drills=0.5, rate=0.6, again=1)),
    ),
    "large": Recipe(
        160,
        heads=4,
        kv_heads=2,
        intermediate=448,
        stages=(Stage(8, 10_500_000), Stage(10, 4_000_000, drills=0.6, rate=0.4, again=4)),
    ),
}


def _attention(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float, **_: object
) -> tuple[Tensor, None]:
    """Causal attention by plain matrix products: on a CPU in bf16 twice as fast, backward included, as the fused one.

    Rows are padded at their end, so that causality is the only mask. Shapes [batch, heads, length, head_dim].
    """
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    with torch.autocast("cpu", enabled=False):
        query, key, value = query.to(value.dtype), key.to(value.dtype), value
        future = torch.full((query.shape[2], key.shape[2]), float("-inf"), dtype=query.dtype).triu(1)
        weights = F.softmax((query * scaling) @ key.transpose(-1, -2) + future, -1)
        return (weights @ value).transpose(1, 2).contiguous(), None


AttentionInterface.register("matmul", _attention)


def loss_of(model: Qwen3ForCausalLM, batch: Batch) -> tuple[Tensor, Tensor]:
    """Mean cross-entropy, in nats, of the labelled positions; and which of them are wrong, bool [rows, length]."""
    ids, labels = batch
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state
        target = labels[:, 1:]
        logits = model.lm_head(hidden[:, :-1][target != IGNORE])
    wrong = torch.zeros_like(labels, dtype=torch.bool)
    wrong[:, 1:][target != IGNORE] = logits.detach().argmax(-1) != target[target != IGNORE]
    return F.cross_entropy(logits.float(), target[target != IGNORE]), wrong


def _rate(step: int, progress: float) -> float:
    """The learning rate relative to its peak: a linear warm-up, a plateau, a cosine."""
    warm = min(1.0, (step + 1) / WARMUP_STEPS)
    if progress < DECAY_FROM:
        return warm
    cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, (progress - DECAY_FROM) / (1 - DECAY_FROM))))
    return warm * (DECAY_TO + (1 - DECAY_TO) * cosine)


def _optimizers(model: Qwen3ForCausalLM) -> list[torch.optim.Optimizer]:
    named = list(model.named_parameters())
    matrices = [p for name, p in named if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in named if p.ndim != 2 or "embed" in name]
    return [
        torch.optim.Muon(matrices, lr=MUON_LR, weight_decay=0.01, momentum=0.95, adjust_lr_fn="original"),
        torch.optim.AdamW(others, lr=ADAMW_LR, betas=(0.9, 0.98), weight_decay=0.0),
    ]


def grow(model: Qwen3ForCausalLM, config: Qwen3Config) -> Qwen3ForCausalLM:
    """A model of `config`, which differs in its number of layers alone, that computes what `model` does.

    Some layers are doubled, evenly over the depth; a copy's output projections are zero, so that it adds nothing until
    it has learned to (block expansion: Wu et al., LLaMA Pro, arXiv:2401.02415, section 3.2).
    """
    deep = Qwen3ForCausalLM._from_config(config, attn_implementation="matmul")
    deep.load_state_dict({k: v for k, v in model.state_dict().items() if ".layers." not in k}, strict=False)
    old, new = model.config.num_hidden_layers, config.num_hidden_layers
    for index, layer in enumerate(deep.model.layers):
        source = index * old // new
        layer.load_state_dict(model.model.layers[source].state_dict())
        if index and source == (index - 1) * old // new:
            torch.nn.init.zeros_(layer.self_attn.o_proj.weight)
            torch.nn.init.zeros_(layer.mlp.down_proj.weight)
    return deep


def train(
    recipe: Recipe,
    tokenizer: PreTrainedTokenizerFast,
    seed: int,
    snapshot: int = 0,
    out: Path | None = None,
    first: int = 1,
) -> tuple[Qwen3ForCausalLM, list[float]]:
    """Trains a model of this recipe; returns it with the loss of each of its steps on whole problems.

    Every `snapshot` tokens of a stage (0: never) what there is so far is saved to `out`. With first > 1 the stages
    before that one are not run: it goes on from the model in `out`.
    """
    torch.manual_seed(seed)
    if first > 1:
        model = Qwen3ForCausalLM.from_pretrained(out, dtype=torch.float32, attn_implementation="matmul")
    else:
        config = recipe.config(tokenizer, recipe.stages[0].layers)
        model = Qwen3ForCausalLM._from_config(config, attn_implementation="matmul")
    losses: list[float] = []
    for number, stage in list(enumerate(recipe.stages))[first - 1 :]:
        if stage.layers > model.config.num_hidden_layers:
            model = grow(model, recipe.config(tokenizer, stage.layers))
        for used in _run(model, stage, recipe.batch, tokenizer, seed + 100 * number, losses):
            if snapshot and out is not None and used // snapshot > (used - recipe.batch) // snapshot:
                save(model, tokenizer, out)
    return model, losses


def _run(
    model: Qwen3ForCausalLM,
    stage: Stage,
    batch_tokens: int,
    tokenizer: PreTrainedTokenizerFast,
    seed: int,
    losses: list[float],
) -> Iterator[int]:
    """Trains through a stage; yields the number of tokens used after each step, and appends to `losses`."""
    optimizers = _optimizers(model)
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    peaks = [stage.rate * group["lr"] for group in groups]
    whole, drills = problem_batches(tokenizer, batch_tokens, seed), Drills(tokenizer, batch_tokens, seed, stage.again)
    rng = random.Random(seed)
    drilled = 0.0
    used = step = 0
    began = time.perf_counter()
    while used < stage.tokens:
        progress = used / stage.tokens
        drill = rng.random() < stage.drills and progress < DRILL_UNTIL
        batch = drills.next() if drill else next(whole)
        for group, peak in zip(groups, peaks, strict=True):
            group["lr"] = peak * _rate(step, progress)
        loss, wrong = loss_of(model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        used += batch[0].numel()
        step += 1
        if drill:
            drills.mark(wrong)
            drilled = loss.item()
        else:
            losses.append(loss.item())
        if step % 100 == 0:
            speed = used / (time.perf_counter() - began)
            recent = losses[-50:]
            print(
                f"step {step}  {used / 1e6:.2f}M of {stage.tokens / 1e6:.2f}M tokens  "
                f"loss {sum(recent) / len(recent):.4f}  drill {drilled:.4f}  {speed:.0f} tok/s  "
                f"{(stage.tokens - used) / speed / 60:.1f} min left",
                flush=True,
            )
        yield used


def save(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    """Writes a folder that `from_pretrained` loads: bf16 weights, greedy generation, the tokenizer."""
    shipped = copy.deepcopy(model).bfloat16()
    shipped.generation_config = GenerationConfig(
        do_sample=False, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    shipped.save_pretrained(out)
    tokenizer.save_pretrained(out, save_jinja_files=False)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m zoo.models.train", description="Train the embedded models.")
    parser.add_argument("--size", choices=(*SIZES, "all"), default="all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1, help="torch threads")
    parser.add_argument("--snapshot", type=int, default=0, help="save every so many tokens on the way (0: never)")
    parser.add_argument("--stage", type=int, default=1, help="go on with this stage from what is in --out (first: 1)")
    parser.add_argument("--out", type=Path, help="folder to write a subfolder for each size to; default: zoo/models")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    tokenizer = build()
    for size in SIZES if given.size == "all" else (given.size,):
        recipe = RECIPES[size]
        out = given.out / size if given.out else path(size)
        began = time.perf_counter()
        model, losses = train(recipe, tokenizer, given.seed, given.snapshot, out, given.stage)
        save(model, tokenizer, out)
        count = sum(p.numel() for p in model.parameters())
        print(f"{size}: {count} parameters, {(time.perf_counter() - began) / 60:.1f} min, loss {losses[-1]:.4f}, {out}")


if __name__ == "__main__":
    main()

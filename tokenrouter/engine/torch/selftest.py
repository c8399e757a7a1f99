"""Whether a model over the pool gives what plain transformers give; run at every load."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from tokenrouter.core import InputError
from tokenrouter.engine.base import Engine, Row

PROMPT_LENGTHS = (13, 5)
NUM_TOKENS = 5
# What the plan below needs of a pool, in tokens of pages of any size up to the number itself.
MAX_LENGTH = max(PROMPT_LENGTHS) + NUM_TOKENS
# Largest difference of logits or hidden states, relative to the largest magnitude there is.
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 6e-2, torch.float16: 2e-2}

# Step by step how many tokens each of the two sequences appends: ragged chunks, a pause in the prompt, chunk next to
# decode, a pause of the decode. A negative number forgets as many; they are appended again.
PLAN = ((6, 0), (7, 3), (1, 0), (1, 2), (-2, 1), (1, 1), (2, -1), (1, 2), (0, 1))


@dataclass(slots=True)
class Reference:
    """A prompt with its greedy tokens, and the logits [n, V] and hidden states [n, H] they came from."""

    ids: list[int]
    prompt_len: int
    logits: torch.Tensor
    hidden: torch.Tensor


@torch.inference_mode()
def references(model: Any) -> list[Reference]:
    """By full passes of the model as transformers made it, without KV."""
    vocab = model.config.get_text_config().vocab_size
    generator = torch.Generator().manual_seed(0)
    seen: list[torch.Tensor] = []

    def keep(module: Any, inputs: tuple[torch.Tensor]) -> None:
        seen.append(inputs[0][0, -1])

    head = model.get_output_embeddings()
    hook = head.register_forward_pre_hook(keep) if head is not None else None
    found = []
    for length in PROMPT_LENGTHS:
        ids = torch.randint(vocab, (length,), generator=generator).tolist()
        logits = []
        seen.clear()
        for _ in range(NUM_TOKENS):
            output = model(input_ids=torch.tensor([ids], device=model.device), use_cache=False)
            logits.append(output.logits[0, -1].float())
            ids.append(int(logits[-1].argmax()))
        hidden = torch.stack(seen) if seen else torch.empty(0)
        found.append(Reference(ids, length, torch.stack(logits), hidden))
    if hook is not None:
        hook.remove()
    return found


def check(engine: Engine, expected: list[Reference]) -> None:
    """InputError if the engine's logits or hidden states differ from the references at any of their positions."""
    name = engine.info.name
    tolerance = TOLERANCE[getattr(torch, engine.info.dtype)]
    rids = [f"selftest-{n}" for n in range(len(expected))]
    for rid, reference in zip(rids, expected, strict=True):
        engine.open(rid, reference.ids)
    for step in PLAN:
        rows, wanted = [], []
        for rid, reference, count in zip(rids, expected, step, strict=True):
            length = engine.kv_len(rid)
            if count < 0:
                engine.truncate(rid, length + count)
            elif count > 0:
                asked = max(0, min(count, length + count - reference.prompt_len + 1))
                rows.append(Row(rid, reference.ids[length : length + count], asked))
                wanted += [(reference, at) for at in range(length + count - asked, length + count)]
                assert engine.allocate(rid, count)
        output = engine.step(rows)
        for (reference, at), logits, hidden in zip(wanted, output.logits, output.hidden, strict=True):
            row = at + 1 - reference.prompt_len
            _compare(name, "logits", logits, reference.logits[row], tolerance, at)
            _compare(name, "hidden states", hidden, reference.hidden[row], tolerance, at)
    for rid in rids:
        engine.free(rid)


def _compare(
    name: str, what: str, got: torch.Tensor, reference: torch.Tensor, tolerance: float, position: int
) -> None:
    if got.shape != reference.shape:
        raise InputError(f"model={name}: {what} of shape {tuple(got.shape)}, transformers' {tuple(reference.shape)}")
    difference = float((got.float() - reference.float()).abs().max())
    allowed = tolerance * max(1.0, float(reference.abs().max()))
    if not difference <= allowed:
        raise InputError(
            f"model={name}: over paged KV its {what} at position {position} differ from transformers' by "
            f"{difference:.2g} (token {int(got.argmax())}, transformers {int(reference.argmax())}); "
            f"allowed is {allowed:.2g}"
        )

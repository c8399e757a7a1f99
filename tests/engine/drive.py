"""Greedy decoding through an engine, in steps as uneven as a subserver's can be."""
from __future__ import annotations

import random
from typing import Any

import torch

from tokenrouter.engine.base import Engine, Row
from tokenrouter.engine.torch.load import load_model


def plain_model(path: str, seed: int = 0) -> Any:
    """The transformers model that an engine with load_format="dummy" holds."""
    return load_model(path, dtype="float32", device=torch.device("cpu"), load_format="dummy", seed=seed)


def generate(model: Any, prompts: list[list[int]], count: int) -> list[list[int]]:
    return [
        model.generate(torch.tensor([prompt]), max_new_tokens=count, do_sample=False)[0, len(prompt) :].tolist()
        for prompt in prompts
    ]


def make_prompts(lengths: tuple[int, ...], vocab: int = 300, seed: int = 3) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(1, vocab) for _ in range(length)] for length in lengths]


def append(engine: Engine, rid: str, ids: list[int], num_logits: int = 1) -> torch.Tensor:
    """One step of one row; its logits."""
    assert engine.allocate(rid, len(ids))
    return engine.step([Row(rid, ids, num_logits)]).logits


def decode(engine: Engine, rid: str, prompt: list[int], count: int) -> list[int]:
    """The sequence alone, from its open state: greedy tokens."""
    ids = list(prompt)
    for _ in range(count):
        ids.append(int(append(engine, rid, ids[engine.kv_len(rid) :])[-1].argmax()))
    return ids[len(prompt) :]


def decode_ragged(engine: Engine, prompts: list[list[int]], count: int, seed: int = 0) -> list[list[int]]:
    """All sequences at once: prompts in chunks of any size, pauses, drafts that are forgotten again."""
    rng = random.Random(seed)
    ids = {f"r{n}": list(prompt) for n, prompt in enumerate(prompts)}
    ends = {rid: len(prompt) + count for rid, prompt in ids.items()}
    for rid, prompt in ids.items():
        engine.open(rid, prompt)
    while any(len(ids[rid]) < end for rid, end in ends.items()):
        rows = []
        drafts: dict[str, int] = {}
        for rid in ids:
            if len(ids[rid]) == ends[rid] or rng.random() < 0.3:
                continue
            missing = ids[rid][engine.kv_len(rid) :]
            chunk = missing[: rng.randint(1, 7)]
            whole = len(chunk) == len(missing)
            drafts[rid] = rng.choice((0, 0, 3)) if whole else 0
            rows.append(Row(rid, chunk + [7] * drafts[rid], 1 + drafts[rid] if whole else 0))
            assert engine.allocate(rid, len(rows[-1].token_ids))
        if not rows:
            continue
        logits = iter(engine.step(rows).logits.argmax(-1).tolist())
        for row in rows:
            tokens = [next(logits) for _ in range(row.num_logits)]
            if tokens:
                engine.truncate(row.rid, engine.kv_len(row.rid) - drafts[row.rid])
                ids[row.rid].append(tokens[0])
    engine.check(ids)
    return [ids[f"r{n}"][len(prompt) :] for n, prompt in enumerate(prompts)]

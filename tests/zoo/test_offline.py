"""Batched decoding gives what the reference gives."""
from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.scripted import dummy
from tests.zoo.algorithms import HALF, pair, ring, single
from tokenrouter.core import SamplingParams
from tokenrouter.engine import load_engine
from tokenrouter.interface import Algorithm
from zoo.offline import Offline, greedy, teacher_forced
from zoo.reference import Reference, compare
from zoo.walk import Record


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    made = []
    for seed in (1, 2, 3):
        folder = tmp_path_factory.mktemp(f"model{seed}")
        dummy(seed, eos_token_id=7).save_pretrained(folder)
        made.append(str(folder))
    return made


@pytest.fixture(scope="module")
def engines(folders: list[str]) -> list[Any]:
    return [load_engine("torch", path=path, capacity_tokens=2048) for path in folders]


PROMPTS = [[(3 * i + j * j) % 64 for j in range(4 + 5 * i)] for i in range(4)]
RING = ring("a", "b", "c", entry="b")


@pytest.mark.parametrize(("algorithm", "temperature"), [
    (single(), 0.0), (pair(threshold=HALF), 0.0), (pair(threshold=HALF), 0.8), (RING, 0.8),
])
def test_equal_to_the_reference(
    folders: list[str], engines: list[Any], algorithm: Algorithm, temperature: float
) -> None:
    count = len(algorithm.roles)
    records = [Record(list(p), SamplingParams(i, 8 + 3 * i, temperature, 0.95)) for i, p in enumerate(PROMPTS)]
    told: list[int] = []
    decoded = Offline(algorithm, engines[:count], batch_size=4).decode(records, told.append)
    reference = Reference.load(algorithm, folders[:count])
    verdicts = [compare(r, reference.decode(r.prompt_ids, r.sampling)).kind for r in decoded]
    assert "diverged" not in verdicts and verdicts.count("equal") >= 3
    assert sum(told) == len(PROMPTS)
    for engine in engines:
        engine.check([])  # every page was given back


def test_teacher_forcing_gives_the_logits_of_plain_transformers(folders: list[str], engines: list[Any]) -> None:
    records = greedy(PROMPTS, 9)
    Offline(single(), engines[1:2], batch_size=6).decode(records)
    plain = dummy(1)
    for record, (logits, hidden) in zip(records, teacher_forced(engines[0], records, batch_size=4), strict=True):
        ids = torch.tensor([record.prompt_ids + record.token_ids])
        with torch.no_grad():
            output = plain(ids, output_hidden_states=True)
        asked = slice(len(record.prompt_ids) - 1, ids.shape[1] - 1)
        torch.testing.assert_close(logits, output.logits[0, asked], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(hidden, output.hidden_states[-1][0, asked], rtol=1e-4, atol=1e-4)
    engines[0].check([])


def test_a_pool_that_is_too_small_is_said(folders: list[str]) -> None:
    engine = load_engine("torch", path=folders[0], capacity_tokens=32)
    with pytest.raises(RuntimeError, match="KV pool of 32 tokens is too small"):
        Offline(single(), [engine], batch_size=6).decode(greedy(PROMPTS, 4))

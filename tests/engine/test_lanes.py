"""KV in one piece beside the pages: the same logits, whatever sequences do."""
from __future__ import annotations

import random

import pytest
import torch

from tests.engine.conftest import MakeModel
from tokenrouter.engine.base import EngineCounters, Row
from tokenrouter.engine.pages import PagePool
from tokenrouter.engine.torch import lanes as lanes_module
from tokenrouter.engine.torch.batch import Batch
from tokenrouter.engine.torch.engine import TorchEngine
from tokenrouter.engine.torch.lanes import Lanes
from tokenrouter.engine.torch.layout import build_batch
from tokenrouter.engine.torch.shape import LayerShape

CPU = torch.device("cpu")


class Sequences:
    """Sequences over a pool of pages of 4 tokens and lanes of 32 and one of 64, as an engine keeps them, without a
    model."""

    def __init__(self, lengths: list[int]) -> None:
        self.pool = PagePool(200, 4, copy=lambda source, target: None, counters=EngineCounters())
        self.lanes = Lanes([LayerShape(1, 4, 4)], [(8, 32), (1, 64)], torch.float32)
        self.pages = [torch.zeros(201, 4 * 8)]
        for n, length in enumerate(lengths):
            self.pool.open(str(n), [0])
            assert self.pool.allocate(str(n), length)
            self.pool.append(str(n), [0] * length)

    def step(self, counts: dict[int, int]) -> Batch:
        rows = [Row(str(n), [n] * count) for n, count in counts.items()]
        for row in rows:
            assert self.pool.allocate(row.rid, len(row.token_ids))
        batch = build_batch(rows, self.pool, CPU, self.lanes, self.pages)
        for row in rows:
            self.pool.append(row.rid, row.token_ids)
        return batch


def test_decodes_go_through_as_they_are() -> None:
    sequences = Sequences([5, 9, 7])
    batch = sequences.step({0: 1, 1: 1, 2: 1})
    (group,) = batch.groups
    assert group.lanes is not None and (group.size, group.kv_len) == (3, 10)
    assert group.queries is None and batch.order is None
    assert batch.lane_slots is not None and batch.lane_slots.tolist() == [5, 32 + 9, 64 + 7]
    batch = sequences.step({2: 1, 0: 1, 1: 1})  # laid out by lane, the logits in the order that was asked for
    assert batch.ids.tolist() == [0, 1, 2] and batch.logits_at is not None and batch.logits_at.tolist() == [2, 0, 1]


def test_a_lane_between_that_is_away() -> None:
    sequences = Sequences([5, 9, 7])
    sequences.step({0: 1, 1: 1, 2: 1})
    batch = sequences.step({0: 1, 2: 1})
    (group,) = batch.groups
    assert group.lanes is not None and group.size == 3
    assert group.queries is not None and group.queries.tolist() == [0, 0, 1]
    assert batch.order is not None and batch.order.tolist() == [0, 2]


def test_what_would_compute_too_much_is_parted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokenrouter.engine.torch.layout.PADDING_ALLOWED", 0)
    sequences = Sequences([20] * 6)
    assert sequences.step({n: 1 for n in range(6)}).groups[0].lanes is not None
    far = sequences.step({0: 1, 5: 1})
    assert [(group.lanes is not None, group.size) for group in far.groups] == [(True, 1), (True, 1)]
    assert sequences.step({0: 1, 1: 1}).groups[0].lanes is not None


def test_what_outgrows_its_lane_moves_to_a_longer_one_or_is_gathered() -> None:
    sequences = Sequences([31, 31, 9])
    (group,) = sequences.step({0: 1, 1: 1, 2: 1}).groups
    assert (group.size, group.kv_len) == (3, 32)
    batch = sequences.step({0: 1, 1: 1, 2: 1})
    assert [(group.lanes is not None, group.size) for group in batch.groups] == [(True, 1), (True, 1), (False, 1)]
    nowhere = sequences.lanes.nowhere
    assert batch.lane_slots is not None and batch.lane_slots.tolist() == [8 * 32 + 32, nowhere, 64 + 10]


def test_a_chunk_beside_decodes_and_an_append_to_a_lane() -> None:
    sequences = Sequences([5, 9, 0])
    batch = sequences.step({0: 1, 1: 1, 2: 6})
    assert [(group.lanes is not None, group.size, group.q_len) for group in batch.groups] == [
        (True, 2, 1), (False, 1, 6)]
    batch = sequences.step({0: 3, 1: 1})
    assert batch.lane_slots is not None and batch.lane_slots.tolist() == [6, 7, 8, 32 + 10]


def test_a_few_tokens_behind_many_are_not_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokenrouter.engine.torch.layout.PADDING_ALLOWED", 20)
    batch = Sequences([24, 30, 9]).step({0: 3, 1: 4, 2: 3})
    assert [(group.lanes is not None, group.q_len, group.kv_len) for group in batch.groups] == [
        (True, 3, 27), (True, 4, 34), (False, 3, 12)]
    assert batch.lane_slots is not None and batch.lane_slots.tolist()[:7] == [24, 25, 26, 286, 287, 288, 289]


def test_models_too_large_have_none() -> None:
    assert Lanes.fitting([LayerShape(1, lanes_module.MAX_BYTES, 0)], 32, torch.float32) is None
    small = Lanes.fitting([LayerShape(1, 4, 4), LayerShape(1, 2, 6)], 10**6, torch.float32)
    assert small is not None and len(small.layers) == 2
    assert {*small._lengths} == {lanes_module.MAX_TOKENS, 10**6} and len(small._of) == 0


@pytest.mark.parametrize(("family", "runner"), [("qwen3", "fast"), ("mistral", "fast"), ("deepseek_v3", "hf")])
@pytest.mark.parametrize("seed", range(4))
def test_the_same_logits_as_gathered(
    family: str, runner: str, seed: int, make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any mix of decodes, appends, pauses, forgotten drafts, evictions and ends, with few and short lanes."""
    monkeypatch.setattr(lanes_module, "MAX_LANES", 4)
    monkeypatch.setattr(lanes_module, "MAX_TOKENS", 40)
    monkeypatch.setattr("tokenrouter.engine.torch.layout.PADDING_ALLOWED", 12)
    path = make_model(family)
    engines = [TorchEngine(path, load_format="dummy", runner=runner, capacity_tokens=512, page_size=4, lanes=lanes)
               for lanes in (False, True)]
    rng = random.Random(seed)
    lengths: dict[str, int] = {}
    in_lanes = 0

    def both(call: str, *arguments: object) -> None:
        results = [getattr(engine, call)(*arguments) for engine in engines]
        assert results[0] == results[1]

    for _ in range(120):
        if len(lengths) < 6 and rng.random() < 0.5:
            rid = rng.choice([rid for rid in "abcdefgh" if rid not in lengths])
            prompt = [5, 6, 7, 8, 9, rng.randrange(1, 300)]  # what is cached of it is adopted
            lengths[rid] = 0
            both("open", rid, prompt)
            lengths[rid] = engines[0].kv_len(rid)
        rows = []
        for rid in lengths:
            if rng.random() < 0.7 and lengths[rid] < 60:
                count = rng.choice((1, 1, 1, 1, 2, 5))
                rows.append(Row(rid, [rng.randrange(1, 300) for _ in range(count)], rng.randint(0, 1)))
                both("allocate", rid, count)
        if rows:
            outputs = [engine.step(rows) for engine in engines]
            assert torch.allclose(outputs[0].logits, outputs[1].logits, atol=1e-4)
        for row in rows:
            lengths[row.rid] += len(row.token_ids)
        for rid in list(lengths):
            if rng.random() < 0.1:
                lengths[rid] = rng.choice((0, rng.randint(0, lengths[rid])))
                both("truncate", rid, lengths[rid])
            elif rng.random() < 0.05:
                both("free", rid, rng.choice(([], [5, 6, 7, 8])))
                del lengths[rid]
        in_lanes += len(engines[1]._kv.lanes._of)  # type: ignore[union-attr]
    assert in_lanes > 100
    for rid in lengths:
        both("free", rid)
    assert len(engines[1]._kv.lanes._free) == 8  # type: ignore[union-attr]

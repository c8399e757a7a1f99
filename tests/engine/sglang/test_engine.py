"""SGLang behind the Engine protocol: the tokens of transformers, and nothing lost of its pools."""
from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.engine.drive import append, decode, decode_ragged, generate, make_prompts
from tokenrouter.core import InputError
from tokenrouter.engine.base import Row
from tokenrouter.engine.sglang import runtime
from tokenrouter.engine.sglang.engine import SglangEngine
from zoo.models import path

COUNT, CAPACITY = 12, 128
with_sglang = pytest.mark.skipif(importlib.util.find_spec("sglang") is None, reason="needs `make sglang-cpu`")


@pytest.fixture(scope="module")
def opened() -> SglangEngine:
    """The only one: SGLang keeps one engine a process."""
    return SglangEngine(str(path("small")), capacity_tokens=CAPACITY, max_sequences=4)


@pytest.fixture
def engine(opened: SglangEngine) -> Iterator[SglangEngine]:
    yield opened
    try:
        opened.check([])
    finally:  # a test that failed leaves the next ones alone
        for rid in list(opened._sequences):
            opened.free(rid)
    opened.flush_cache()
    assert opened.capacity().free == CAPACITY


@pytest.fixture(scope="module")
def model() -> Any:
    return AutoModelForCausalLM.from_pretrained(path("small"), dtype=torch.float32).eval()


@with_sglang
def test_ragged_decoding_equals_transformers(engine: SglangEngine, model: Any) -> None:
    prompts = make_prompts((11, 3, 17))
    assert decode_ragged(engine, prompts, COUNT) == generate(model, prompts, COUNT)
    engine.check(["r0", "r1", "r2"])
    for n in range(3):
        engine.free(f"r{n}")


@with_sglang
def test_a_return_appends_the_missing_suffix_and_keeps_the_rest(engine: SglangEngine) -> None:
    prompt = make_prompts((9,))[0]
    engine.open("a", prompt)
    append(engine, "a", prompt)
    table = opened_slots(engine, "a")
    before = (engine.counters.tokens, engine.counters.prefix_lookups, engine.capacity().free)
    resumed = append(engine, "a", [5, 6, 7])
    after = (engine.counters.tokens, engine.counters.prefix_lookups, engine.capacity().free)
    assert [b - a for a, b in zip(before, after, strict=True)] == [3, 0, -3]
    assert opened_slots(engine, "a")[:9] == table
    engine.open("b", [*prompt, 5, 6, 7])
    assert torch.allclose(append(engine, "b", [*prompt, 5, 6, 7]), resumed, atol=1e-4)
    engine.free("a")
    engine.free("b")


def opened_slots(engine: SglangEngine, rid: str) -> list[int]:
    req = engine._sequences[rid].req
    slots: list[int] = engine._runtime._rows.req_to_token[req.kv.req_pool_idx, : engine.kv_len(rid)].tolist()
    return slots


@with_sglang
def test_logits_of_several_positions_and_of_none(engine: SglangEngine, model: Any) -> None:
    ids = make_prompts((10,))[0]
    engine.open("a", ids)
    single = torch.cat([append(engine, "a", [token]) for token in ids])
    engine.truncate("a", 2)
    assert engine.allocate("a", 8)
    none = engine.step([Row("a", ids[2:6], 0)])
    assert none.logits.shape == (0, engine.info.vocab_size) and none.hidden.shape == (0, engine.info.hidden_size)
    several = engine.step([Row("a", ids[6:], 3)])
    assert torch.allclose(several.logits, single[-3:], atol=1e-4)
    with torch.inference_mode():
        expected = model.get_output_embeddings()(several.hidden)
    assert torch.allclose(expected, several.logits, atol=1e-4)
    assert torch.equal(engine.embed(torch.tensor(ids)), model.get_input_embeddings().weight[ids])
    engine.free("a")


@with_sglang
def test_prefix_hits_and_truncation_into_a_shared_prefix(engine: SglangEngine) -> None:
    prompt = make_prompts((21,))[0]
    engine.open("a", prompt)
    tokens = decode(engine, "a", prompt, COUNT)
    engine.free("a", prompt)
    assert engine.open("b", prompt) == engine.open("c", prompt) == 20  # one id is left to give logits of
    engine.truncate("b", 18)
    assert engine.kv_len("b") == 18
    engine.check(["b", "c"])
    append(engine, "b", [1, 2, 3])
    assert decode(engine, "c", prompt, COUNT) == tokens
    engine.truncate("b", 18)
    assert decode(engine, "b", prompt, COUNT) == tokens
    engine.truncate("c", 0)
    assert decode(engine, "c", prompt, COUNT) == tokens
    engine.check(["b", "c"])
    engine.free("b", prompt)
    engine.free("c")


@with_sglang
def test_no_room_changes_nothing(engine: SglangEngine) -> None:
    a, b = make_prompts((CAPACITY - 20, 10))
    engine.open("a", a)
    engine.open("b", b)
    first = append(engine, "a", a)
    assert engine.capacity().free == 20
    assert not engine.allocate("b", 21)
    with pytest.raises(ValueError, match="no room was allocated"):
        engine.step([Row("b", b)])
    engine.free("a", a)
    assert engine.capacity().free == CAPACITY  # what only the prefix cache holds can be had
    assert engine.allocate("b", 40)
    assert engine.step([Row("b", b)]).logits.shape[0] == 1
    assert engine.capacity().free == CAPACITY - 40  # the rest of the promise stands
    engine.free("b")
    engine.flush_cache()
    engine.open("a", a)
    assert torch.allclose(append(engine, "a", a), first, atol=1e-5)
    engine.free("a")


@with_sglang
def test_a_prefix_that_is_promised_away_is_not_adopted(engine: SglangEngine) -> None:
    a, b = make_prompts((100, 90))
    engine.open("a", a)
    append(engine, "a", a)
    engine.free("a", a)
    engine.open("b", b)
    assert engine.allocate("b", len(b))  # from what the cache holds
    assert engine.open("c", a) == 0
    assert not engine.allocate("c", len(a))
    engine.step([Row("b", b)])
    engine.check(["b", "c"])
    engine.free("b")
    engine.free("c")


@with_sglang
def test_more_sequences_than_rows_wait(engine: SglangEngine) -> None:
    prompt = make_prompts((3,))[0]
    rids = [f"r{n}" for n in range(5)]
    for rid in rids:
        engine.open(rid, prompt)
    assert [engine.allocate(rid, 3) for rid in rids] == [True] * 4 + [False]
    for rid in rids:
        engine.free(rid)


@with_sglang
def test_sglangs_own_checks_see_a_leak(engine: SglangEngine) -> None:
    allocator = engine._runtime._slots
    lost = allocator.alloc(2)
    with pytest.raises(AssertionError, match="leak"):
        engine.check([])
    engine.open("a", [1, 2, 3])
    append(engine, "a", [1, 2, 3])
    with pytest.raises(AssertionError, match="Leak"):
        engine.check(["a"])
    engine.free("a")
    allocator.free(lost)


@with_sglang
@pytest.mark.parametrize("arguments", [{"model_path": "x"}, {"no_such": 1}])
def test_arguments_that_are_not_for_the_user(arguments: dict[str, Any], opened: SglangEngine) -> None:
    with pytest.raises(InputError, match=f"server_args.{next(iter(arguments))}="):
        SglangEngine(str(path("small")), server_args=arguments)


@pytest.mark.parametrize("found", [None, "0.5.20"])
def test_another_release_is_refused(found: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def version(name: str) -> str:
        if found is None:
            raise metadata.PackageNotFoundError(name)
        return found

    monkeypatch.setattr(runtime.metadata, "version", version)
    with pytest.raises(InputError, match=rf"needs sglang {runtime.VERSION}, found {found or 'none'}"):
        SglangEngine(str(tmp_path))

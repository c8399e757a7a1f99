"""The engine's tokens are those of transformers, however a sequence was chunked, paused, truncated or accompanied."""
from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.engine.conftest import MakeModel
from tests.engine.drive import append, decode, decode_ragged, generate, make_prompts, plain_model
from tokenrouter.engine.base import Row
from tokenrouter.engine.torch.engine import TorchEngine

FAST = ("qwen3", "qwen2", "llama", "mistral")
ANY = (*FAST, "gemma2", "phi3", "gpt2", "gpt_neox", "gpt_oss", "deepseek_v3")
COUNT = 12


def dummy(path: str, runner: str = "auto", capacity_tokens: int = 512, page_size: int = 4) -> TorchEngine:
    return TorchEngine(
        path, load_format="dummy", runner=runner, capacity_tokens=capacity_tokens, page_size=page_size
    )


@pytest.fixture(scope="module")
def qwen(make_model: MakeModel) -> TorchEngine:
    return dummy(make_model("qwen3"))


@pytest.fixture(autouse=True)
def left_clean(qwen: TorchEngine) -> None:
    qwen.check([])
    qwen.flush_cache()


@pytest.mark.parametrize(("family", "runner"), [(f, "hf") for f in ANY] + [(f, "fast") for f in FAST])
def test_ragged_decoding_equals_transformers(family: str, runner: str, make_model: MakeModel) -> None:
    path = make_model(family)
    prompts = make_prompts((11, 3, 17))
    expected = generate(plain_model(path), prompts, COUNT)
    engine = dummy(path, runner)
    assert decode_ragged(engine, prompts, COUNT) == expected
    assert len({token for tokens in expected for token in tokens}) > COUNT  # tokens that repeat would show nothing


def test_biases_and_untied_heads(make_model: MakeModel) -> None:
    path = make_model("llama", attention_bias=True, mlp_bias=True, tie_word_embeddings=False, head_dim=32)
    prompts = make_prompts((9, 5))
    assert decode_ragged(dummy(path, "fast"), prompts, 8) == generate(plain_model(path), prompts, 8)


def test_scaled_rotary_positions(make_model: MakeModel) -> None:
    rope = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=64, rope_theta=1e4)
    path = make_model("qwen3", rope_parameters=rope)
    prompts = make_prompts((80, 5))
    assert decode_ragged(dummy(path, "fast"), prompts, 8) == generate(plain_model(path), prompts, 8)


@pytest.mark.parametrize("runner", ["hf", "fast"])
def test_weights_from_safetensors(runner: str, make_model: MakeModel, tmp_path: Path) -> None:
    model = plain_model(make_model("qwen3", tie_word_embeddings=True), seed=5)
    model.save_pretrained(tmp_path)
    prompts = make_prompts((6,))
    engine = TorchEngine(str(tmp_path), runner=runner, capacity_tokens=64)
    assert decode_ragged(engine, prompts, 8) == generate(model, prompts, 8)


def test_lower_precision_stays_close(make_model: MakeModel) -> None:
    path = make_model("qwen3")
    prompt = make_prompts((12,))[0]
    logits = []
    for dtype in ("float32", "bfloat16"):
        for runner in ("hf", "fast"):
            engine = TorchEngine(path, load_format="dummy", dtype=dtype, runner=runner, capacity_tokens=64)
            engine.open("a", prompt)
            logits.append(append(engine, "a", prompt))
            assert logits[-1].dtype == torch.float32
    assert torch.allclose(logits[0], logits[1], atol=1e-4)
    assert torch.allclose(logits[0], logits[2], atol=0.3)
    assert torch.allclose(logits[0], logits[3], atol=0.3)


def test_a_row_does_not_depend_on_its_batch(qwen: TorchEngine) -> None:
    prompts = make_prompts((20, 5, 70, 9, 30))
    alone = []
    for n, prompt in enumerate(prompts):
        qwen.open(f"a{n}", prompt)
        alone.append(append(qwen, f"a{n}", prompt)[0])
        qwen.free(f"a{n}")
    rows = []
    for n, prompt in enumerate(prompts):
        qwen.open(f"b{n}", prompt)
        assert qwen.allocate(f"b{n}", len(prompt))
        if n % 2:  # these have but one token left
            append(qwen, f"b{n}", prompt[:-1], 0)
            prompt = prompt[-1:]
        rows.append(Row(f"b{n}", prompt))
    together = qwen.step(rows)
    assert torch.allclose(together.logits, torch.stack(alone), atol=1e-4)
    for n in range(len(prompts)):
        qwen.free(f"b{n}")


def test_logits_of_several_positions_and_of_none(qwen: TorchEngine) -> None:
    ids = make_prompts((10,))[0]
    qwen.open("a", ids)
    single = torch.cat([append(qwen, "a", [token]) for token in ids])
    qwen.truncate("a", 2)
    assert qwen.allocate("a", 8)
    none = qwen.step([Row("a", ids[2:6], 0)])
    assert none.logits.shape == (0, 300) and none.hidden.shape == (0, 64)
    several = qwen.step([Row("a", ids[6:], 3)])
    assert several.hidden.shape == (3, 64)
    assert torch.allclose(several.logits, single[-3:], atol=1e-4)
    qwen.free("a")


def test_hidden_states_are_what_the_head_reads(make_model: MakeModel) -> None:
    path = make_model("qwen3", tie_word_embeddings=True)
    head = plain_model(path).get_output_embeddings()
    prompt = make_prompts((10,))[0]
    for runner in ("hf", "fast"):
        engine = dummy(path, runner)
        engine.open("a", prompt)
        assert engine.allocate("a", 10)
        output = engine.step([Row("a", prompt, 10)])
        assert torch.allclose(head(output.hidden.clone()), output.logits, atol=1e-4)
        embedded = engine.embed(torch.tensor(prompt))
        assert torch.equal(embedded, head.weight[prompt])


def test_a_prefix_hit_gives_the_same_tokens(qwen: TorchEngine) -> None:
    prompt = make_prompts((21,))[0]
    assert qwen.open("a", prompt) == 0
    tokens = decode(qwen, "a", prompt, COUNT)
    qwen.free("a", [*prompt, *tokens])
    before = qwen.counters.prefix_hit_tokens
    assert qwen.open("b", prompt) == 20 == qwen.counters.prefix_hit_tokens - before
    assert decode(qwen, "b", prompt, COUNT) == tokens
    qwen.free("b")


def test_writing_behind_a_truncated_shared_prefix_leaves_others_alone(qwen: TorchEngine) -> None:
    prompt = make_prompts((21,))[0]
    qwen.open("a", prompt)
    tokens = decode(qwen, "a", prompt, COUNT)
    qwen.free("a", prompt)
    assert qwen.open("b", prompt) == qwen.open("c", prompt) == 20
    qwen.truncate("b", 18)
    with pytest.raises(ValueError, match="no room was allocated"):
        qwen.step([Row("b", [1])])  # there is room behind token 18, but c reads it too
    append(qwen, "b", [1, 2, 3])
    assert decode(qwen, "c", prompt, COUNT) == tokens
    qwen.truncate("b", 18)
    assert decode(qwen, "b", prompt, COUNT) == tokens
    qwen.check(["b", "c"])
    qwen.free("b")
    qwen.free("c")


def test_an_evicted_sequence_is_recomputed(qwen: TorchEngine) -> None:
    prompt = make_prompts((13,))[0]
    qwen.open("a", prompt)
    tokens = decode(qwen, "a", prompt, COUNT)
    qwen.free("a")
    ids = [*prompt, *tokens[:6]]
    qwen.open("a", ids)
    assert decode(qwen, "a", ids, COUNT - 6) == tokens[6:]
    qwen.free("a")


def test_no_room_changes_nothing(make_model: MakeModel) -> None:
    engine = dummy(make_model("llama"), capacity_tokens=32)
    a, b = make_prompts((18, 10))
    engine.open("a", a)
    engine.open("b", b)
    first = append(engine, "a", a)
    assert engine.capacity().free == 12 and engine.capacity().total == 32
    assert not engine.allocate("b", 13)
    assert engine.capacity().free == 12 and engine.kv_len("b") == 0
    with pytest.raises(ValueError, match="no room was allocated"):
        engine.step([Row("b", b)])
    engine.check(["a", "b"])
    engine.free("a", a)
    assert engine.capacity().free == 32  # the cached pages can be had
    assert engine.allocate("b", 32)
    assert engine.counters.pages_evicted == 4
    engine.free("b")
    engine.open("a", a)
    assert torch.allclose(append(engine, "a", a), first, atol=1e-5)


@pytest.mark.parametrize("row", [Row("a", [], 0), Row("a", [1], 2), Row("a", [1], -1)])
def test_rows_that_ask_for_what_they_do_not_append(row: Row, qwen: TorchEngine) -> None:
    qwen.open("a", [1, 2])
    assert qwen.allocate("a", 2)
    with pytest.raises(ValueError, match="logits of"):
        qwen.step([row])
    qwen.free("a")

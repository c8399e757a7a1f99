"""What an engine says of its model, and which models it refuses."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GenerationConfig

from tests.engine.conftest import MakeModel
from tokenrouter.core import InputError
from tokenrouter.engine import load_engine, parse_options
from tokenrouter.engine.options import check_device
from tokenrouter.engine.torch import attention, fast
from tokenrouter.engine.torch.batch import Batch
from tokenrouter.engine.torch.engine import TorchEngine


def load(path: str, **options: Any) -> TorchEngine:
    engine = load_engine("torch", path=path, load_format="dummy", **{"capacity_tokens": 64} | options)
    assert isinstance(engine, TorchEngine)
    return engine


def test_model_info(make_model: MakeModel) -> None:
    path = make_model("qwen3", eos_token_id=3)
    GenerationConfig(eos_token_id=[5, 3]).save_pretrained(path)
    info = load(path).info
    assert info.eos_token_ids == (3, 5)
    assert (info.vocab_size, info.hidden_size, info.context_length) == (300, 64, 256)
    assert info.bytes_per_token == 2 * 2 * (16 + 16) * 4  # layers, key heads, a key and a value, fp32
    assert info.engine == "torch" and info.name == Path(path).name


def test_both_runners_count_the_same_parameters(make_model: MakeModel) -> None:
    path = make_model("qwen2")
    one, other = load(path, runner="hf").info, load(path, runner="fast").info
    assert one.num_params == other.num_params
    assert one.bytes_per_token == other.bytes_per_token


def test_context_of_positions_that_change_with_length(make_model: MakeModel) -> None:
    rope = dict(rope_type="dynamic", factor=4.0, original_max_position_embeddings=64, rope_theta=1e4)
    assert load(make_model("llama", rope_parameters=rope)).info.context_length == 64


def test_seeds_make_different_models(make_model: MakeModel) -> None:
    path = make_model("qwen3")
    ids = torch.arange(4)
    assert torch.equal(load(path, seed=1).embed(ids), load(path, seed=1).embed(ids))
    assert not torch.equal(load(path, seed=1).embed(ids), load(path, seed=2).embed(ids))


def test_counters_start_at_zero_behind_the_self_test(make_model: MakeModel) -> None:
    engine = load(make_model("qwen3"))
    assert engine.counters.steps == engine.counters.pages_allocated == 0
    assert engine.capacity().free == 64


@pytest.mark.parametrize(
    ("family", "changes", "reason"),
    [
        ("falcon", {}, "0 calls of the attention in 2 layers"),
        ("bloom", {}, "0 calls of the attention in 2 layers"),
        ("lfm2", {}, "1 calls of the attention in 2 layers"),
        ("llama4_text", dict(num_local_experts=2, intermediate_size_mlp=64), "chunked_attention"),
    ],
)
def test_models_that_do_not_run_over_pages_are_refused(
    family: str, changes: dict[str, Any], reason: str, make_model: MakeModel
) -> None:
    path = make_model(family, **changes)
    with pytest.raises(InputError, match=reason) as error:
        load(path)
    assert Path(path).name in str(error.value)


@pytest.mark.parametrize("broken", ["position", "history"])
def test_the_self_test_sees_a_wrong_runner(
    broken: str, make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def attend(batch: Batch, *args: Any, **options: Any) -> torch.Tensor:
        if broken == "history":  # only the newest page is read
            for group in batch.groups:
                group.pages[: -group.size] = group.pages[-1]
        output = attention.attend(batch, *args, **options)
        return output if broken == "history" else output.roll(1, 0)

    monkeypatch.setattr(fast, "attend", attend)
    with pytest.raises(InputError, match=r"differ from transformers' by"):
        load(make_model("qwen3"), runner="fast", page_size=4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(dtype="int8"), "models.roles.*.dtype='int8': allowed is float32, bfloat16, float16"),
        (dict(load_format="pickle"), "models.load_format='pickle': allowed is auto, dummy"),
        (dict(runner="slow"), "engine.options.runner='slow': allowed is one of auto, fast, hf"),
        (dict(device="cuda:99"), "hardware.device='cuda:99': allowed on this machine is "),
        (dict(device="tpux"), "hardware.device='tpux': allowed on this machine is "),
        (dict(page_size=0), "engine.options.page_size=0: allowed is a whole number >= 1"),
        (dict(lane=True), "engine.options.lane=True: unknown; allowed is one of runner, page_size, "),
        (dict(capacity_tokens=15), "engine.capacity_tokens=15: allowed is a page"),
        (dict(path="/nowhere"), "models.roles.*.path='/nowhere'"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str, make_model: MakeModel) -> None:
    with pytest.raises(InputError) as error:
        load_engine("torch", **dict(path=make_model("qwen3"), load_format="dummy") | options)
    assert str(error.value).startswith(message)


def test_as_many_devices_as_a_model_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert check_device("cuda:2", 2).index == 2
    with pytest.raises(InputError, match=r"engine.options.tp_size: 3 devices are needed from cuda:2 on; allowed .* 2"):
        check_device("cuda:2", 3)
    nodes = {"tp_size": 6, "server_args": {"nnodes": 3, "dist_init_addr": "host:1"}}
    assert parse_options("sglang", nodes).devices == 2 and parse_options("torch", {}).devices == 1
    assert parse_options("sglang", nodes | {"tp_size": 1}).devices == 1  # the other model of that run


def test_fast_runner_for_another_family(make_model: MakeModel) -> None:
    with pytest.raises(InputError, match="model_type gpt2"):
        load(make_model("gpt2"), runner="fast")


def test_unknown_engine() -> None:
    with pytest.raises(InputError, match="engine='gguf': allowed is torch"):
        load_engine("gguf")

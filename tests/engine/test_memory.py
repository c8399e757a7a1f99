"""Joint KV capacity, against figures worked by hand."""
from __future__ import annotations

from pathlib import Path

import pytest
from transformers import Qwen3Config

from tests.engine.conftest import MakeModel
from tests.engine.drive import plain_model
from tokenrouter.cluster.placement import GB, plan_capacity
from tokenrouter.cluster.spec import ClusterSpec, EngineSpec, ModelSpec
from tokenrouter.core import InputError
from tokenrouter.engine.memory import Footprint, check_shards, footprint, joint_capacity
from tokenrouter.engine.torch.engine import TorchEngine

# Qwen3 of two layers: embeddings 300 x 64, tied; a layer has q 64 x 64, k and v 32 x 64, o 64 x 64, three of 96 x 64,
# norms of 64, 64, 16 and 16; the last norm has 64.
MATRICES = [300 * 64] + 2 * [64 * 64, 32 * 64, 32 * 64, 64 * 64, 96 * 64, 96 * 64, 96 * 64]
VECTORS = 2 * (64 + 64 + 16 + 16) + 64


def test_capacity_by_hand() -> None:
    small, large = Footprint(1_000_000, 300), Footprint(7_000_000, 700)
    # (10,000,000 - 8,000,000 - 500,000) / 1,000 = 1,500 tokens; one byte less, and the last of them has no room.
    assert joint_capacity(10_000_000, [small, large], reserve=500_000) == 1500
    assert joint_capacity(9_999_999, [small, large], reserve=500_000) == 1499
    assert joint_capacity(10_000_000, [small]) == 30_000


def test_paper_scale_by_hand() -> None:
    # 1.5B and 32B in 16 bits on 96 GB with 10 % reserved: Qwen2.5 shapes, 28 layers of 2 key heads, 64 of 8, heads of
    # 128. Per token 28 * 2 * 256 * 2 = 28,672 and 64 * 8 * 256 * 2 = 262,144 bytes, 290,816 together.
    models = [Footprint(3_087_428_608, 28_672), Footprint(65_527_752_704, 262_144)]
    assert joint_capacity(96 * 10**9, models, reserve=96 * 10**8) == 17_784_818_688 // 290_816 == 61_154


def test_too_small_a_budget_is_told_what_is_enough(make_model: MakeModel) -> None:
    path = make_model("qwen3")

    def planned(memory_gb: float) -> list[int]:
        engine = EngineSpec(memory_gb=memory_gb, reserve_gb=0.25, options={"page_size": 4})
        return plan_capacity(ClusterSpec(models=[ModelSpec(name="m", path=path)], algorithms=[], engine=engine))

    with pytest.raises(InputError, match=r"^engine\.memory_gb=0\.001: allowed is [\d.]+ or more, for ") as error:
        planned(0.001)
    enough = float(str(error.value).split("allowed is ")[1].split()[0])
    [capacity] = planned(enough)
    room = int(enough * GB) - int(0.25 * GB) - footprint(path, "float32").weight_bytes
    assert capacity % 4 == 0 and 4 <= capacity <= room // footprint(path, "float32").bytes_per_token < capacity + 4


@pytest.mark.parametrize(("dtype", "size"), [("float32", 4), ("bfloat16", 2)])
def test_footprint_of_a_config(dtype: str, size: int, make_model: MakeModel) -> None:
    path = make_model("qwen3", tie_word_embeddings=True)
    assert footprint(path, dtype) == (size * (sum(MATRICES) + VECTORS), size * 2 * 2 * 32)


def test_footprint_of_a_shard(make_model: MakeModel) -> None:
    path = make_model("qwen3", tie_word_embeddings=True)
    # Two key heads on two devices are one each; on four devices one each as well, kept twice.
    assert footprint(path, "float32", tp=2) == (4 * (sum(m // 2 for m in MATRICES) + VECTORS), 4 * 2 * 1 * 32)
    assert footprint(path, "float32", tp=4).bytes_per_token == 4 * 2 * 1 * 32


def test_footprint_from_headers_equals_what_is_loaded(make_model: MakeModel, tmp_path: Path) -> None:
    path = make_model("llama", tie_word_embeddings=False)
    plain_model(path).save_pretrained(tmp_path, max_shard_size="50KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    info = TorchEngine(str(tmp_path), runner="hf", capacity_tokens=64).info
    assert footprint(tmp_path, "float32") == (info.weight_bytes, info.bytes_per_token) == footprint(path, "float32")


@pytest.mark.parametrize("family", ["gpt2", "deepseek_v3", "gemma2"])
def test_bytes_per_token_are_the_engines(family: str, make_model: MakeModel) -> None:
    path = make_model(family)
    info = TorchEngine(path, load_format="dummy", runner="hf", capacity_tokens=64).info
    assert footprint(path, "float32").bytes_per_token == info.bytes_per_token


@pytest.mark.parametrize(("heads", "key_heads", "allowed"), [
    (4, 2, "1, 2, 4"), (3, 1, "1, 3"), (12, 4, "1, 2, 4, 12"), (12, 12, "1, 2, 3, 4, 6, 12")])
def test_heads_divide_evenly(tmp_path: Path, heads: int, key_heads: int, allowed: str) -> None:
    Qwen3Config(num_attention_heads=heads, num_key_value_heads=key_heads).save_pretrained(tmp_path)
    with pytest.raises(InputError, match=rf"tp=5: .* {heads} attention heads and {key_heads} key heads .* {allowed}$"):
        check_shards("tp", tmp_path, 5)
    for tp in map(int, allowed.split(", ")):
        check_shards("tp", tmp_path, tp)


def test_bad_values(make_model: MakeModel) -> None:
    path = make_model("qwen3")
    with pytest.raises(InputError, match=r"tp=3: allowed is a divisor of the 4 attention heads"):
        footprint(path, "float32", tp=3)
    with pytest.raises(InputError, match=r"dtype='fp8': allowed is"):
        footprint(path, "fp8")
    with pytest.raises(InputError, match=r"model='/nowhere'"):
        footprint("/nowhere", "float32")

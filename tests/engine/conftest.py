"""Tiny models of several families, as folders with nothing but a config."""
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING

COMMON: dict[str, Any] = dict(
    vocab_size=300, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=256, bos_token_id=None, eos_token_id=None, pad_token_id=0,
)  # fmt: skip
GPT2 = dict(n_embd=64, n_layer=2, n_head=4, n_positions=256, num_key_value_heads=4)
LATENT = dict(
    q_lora_rank=32, kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=16, v_head_dim=12, n_routed_experts=4,
    num_experts_per_tok=2, n_group=1, topk_group=1, moe_intermediate_size=32, first_k_dense_replace=1,
    num_key_value_heads=4, head_dim=8,
)  # fmt: skip
SPECIAL: dict[str, dict[str, Any]] = {
    "qwen3": dict(head_dim=16),
    "mistral": dict(sliding_window=8),
    "gemma2": dict(head_dim=16, sliding_window=8, attn_logit_softcapping=2.0, tie_word_embeddings=False),
    "gpt2": GPT2,
    "gpt_oss": dict(
        head_dim=16, sliding_window=8, num_local_experts=4, num_experts_per_tok=2,
        rope_parameters=dict(rope_type="default", rope_theta=1e4),
    ),
    "deepseek_v3": LATENT,
    "lfm2": dict(layer_types=["conv", "full_attention"]),
}

MakeModel = Callable[..., str]


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def make_model(tmp_path_factory: pytest.TempPathFactory) -> MakeModel:
    """A folder with the config of a tiny model of a family."""

    def make(family: str, **changes: Any) -> str:
        folder: Path = tmp_path_factory.mktemp(family)
        CONFIG_MAPPING[family](**COMMON | SPECIAL.get(family, {}) | changes).save_pretrained(folder)
        return str(folder)

    return make

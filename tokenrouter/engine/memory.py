"""How much KV the models that share a device may have, before any of them is loaded."""
from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tokenrouter.core import InputError

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


class Footprint(NamedTuple):
    """What one model takes of one device: bytes of weights, and of KV for each token."""

    weight_bytes: int
    bytes_per_token: int


def footprint(model: Any, dtype: str, tp: int = 1, revision: str | None = None) -> Footprint:
    """Of a model's folder, hub name (at `revision`) or transformers config; with `tp` > 1, of one of its
    tensor-parallel shards.

    Weights are counted from the headers of the folder's safetensors files, or else from the config; nothing is
    loaded. A shard holds its part of each matrix, a copy of each vector, and at least one key head.
    """
    if dtype not in DTYPE_BYTES:
        raise InputError(f"dtype={dtype!r}: allowed is {', '.join(DTYPE_BYTES)}")
    folder = Path(model) if isinstance(model, (str, Path)) else None
    config = _config(model, revision) if folder else model
    text = config.get_text_config()
    heads = text.num_attention_heads
    if tp < 1 or heads % tp:
        raise InputError(f"tp={tp}: allowed is a divisor of the {heads} attention heads")
    files = sorted(folder.glob("*.safetensors")) if folder else []
    shapes = [shape for file in files for shape in _shapes(file)] or _declared_shapes(config)
    size = DTYPE_BYTES[dtype]
    weights = sum(size * -(-math.prod(shape) // (tp if len(shape) > 1 else 1)) for shape in shapes)
    key_heads, key_dim, value_dim = _kv_shape(text)
    shard_heads = -(-key_heads // tp)
    return Footprint(weights, size * text.num_hidden_layers * shard_heads * (key_dim + value_dim))


def check_shards(field: str, model: str | Path, tp: int, revision: str | None = None) -> None:
    """InputError, in the name of `field`, unless the model's heads can be divided among `tp` shards: attention heads
    evenly, key heads evenly or each of them to as many shards."""
    text = _config(model, revision).get_text_config()
    heads, (key_heads, _, _) = text.num_attention_heads, _kv_shape(text)
    allowed = [n for n in range(1, heads + 1) if not heads % n and not (key_heads % n and n % key_heads)]
    if tp not in allowed:
        raise InputError(f"{field}={tp}: allowed for {str(model)!r} with {heads} attention heads and {key_heads} key "
                         f"heads is one of {', '.join(map(str, allowed))}")


def joint_capacity(budget: int, models: Sequence[Footprint], *, reserve: int = 0) -> int:
    """Tokens of KV for each of the models that share a device of `budget` bytes; below 0 if the weights do not fit.

    floor((budget - sum of weights - reserve) / sum of bytes per token): the same number for all, as a routed
    request holds KV at each of them.
    """
    weights = sum(model.weight_bytes for model in models)
    per_token = sum(model.bytes_per_token for model in models)
    return (budget - weights - reserve) // per_token


def _config(model: str | Path, revision: str | None) -> Any:
    from transformers import AutoConfig  # takes seconds to load

    try:
        return AutoConfig.from_pretrained(model, revision=revision)
    except (OSError, ValueError) as error:
        raise InputError(f"model={str(model)!r}: allowed is a folder with a config.json") from error


def _shapes(file: Path) -> Iterable[Sequence[int]]:
    """Of the tensors in a safetensors file: its first 8 bytes are the length of the JSON header behind them."""
    with file.open("rb") as stream:
        header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
    return [entry["shape"] for name, entry in header.items() if name != "__metadata__"]


def _declared_shapes(config: Any) -> list[Sequence[int]]:
    """Of the parameters of a model made on no device; tied ones come once."""
    import torch
    from transformers import AutoModelForCausalLM

    auto: Any = AutoModelForCausalLM
    with torch.device("meta"):
        return [parameter.shape for parameter in auto.from_config(config).parameters()]


def _kv_shape(config: Any) -> tuple[int, int, int]:
    """Key heads, numbers of a key, numbers of a value of one layer, in the embedded engine."""
    heads = config.num_attention_heads
    if getattr(config, "kv_lora_rank", None):  # latent attention, kept expanded
        return heads, config.qk_nope_head_dim + config.qk_rope_head_dim, config.v_head_dim
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    key_heads = getattr(config, "num_key_value_heads", None) or heads
    return key_heads, head_dim, head_dim

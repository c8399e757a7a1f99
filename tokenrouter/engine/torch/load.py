"""Models from disk, or random ones of a config."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig
from transformers.utils.logging import disable_progress_bar

from tokenrouter.core import InputError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
# Rotary embeddings whose frequencies change once a sequence is longer than they were made for: the tokens of one
# batch would not agree on them.
_CHANGING_ROPE = ("dynamic", "longrope")

_auto: Any = AutoModelForCausalLM  # without types, both
_hide_progress: Any = disable_progress_bar


def load_model(
    path: str, *, revision: str | None = None, dtype: str, device: torch.device, load_format: str, seed: int
) -> Any:
    """The transformers model in the folder (or of the hub name) `path`; `dummy`: random weights of its config.

    Weights are read from safetensors only.
    """
    if dtype not in DTYPES:
        raise InputError(f"models.roles.*.dtype={dtype!r}: allowed is {', '.join(DTYPES)}")
    if load_format not in ("auto", "dummy"):
        raise InputError(f"models.load_format={load_format!r}: allowed is auto, dummy")
    try:
        config = AutoConfig.from_pretrained(path, revision=revision)
        if load_format == "dummy":
            with torch.random.fork_rng(devices=[]), device:  # billions of numbers are slow to draw on a CPU
                torch.manual_seed(seed)
                model = _auto.from_config(config, dtype=DTYPES[dtype])
            if Path(path, "generation_config.json").exists():
                model.generation_config = GenerationConfig.from_pretrained(path)
            _randomize(model, seed)
        else:
            _hide_progress()  # of one subserver on top of the other's
            model = _auto.from_pretrained(path, revision=revision, dtype=DTYPES[dtype], use_safetensors=True)
    except (OSError, ValueError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            f"models.roles.*.path={path!r}: allowed is a causal language model's folder ({reason})") from error
    return model.eval().requires_grad_(False).to(device)


def eos_token_ids(model: Any) -> tuple[int, ...]:
    """Those of the config and of the generation config together."""
    ids: set[int] = set()
    for config in (model.config.get_text_config(), model.generation_config):
        eos = getattr(config, "eos_token_id", None)
        ids.update([] if eos is None else [eos] if isinstance(eos, int) else eos)
    return tuple(sorted(ids))


def context_length(config: Any) -> int:
    """The most tokens a sequence may have."""
    length: int = config.max_position_embeddings
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") in _CHANGING_ROPE:
        length = min(length, rope.get("original_max_position_embeddings") or length)
    return length


def _randomize(model: Any, seed: int) -> None:
    """Weights so large that a layer adds more than it is given: otherwise greedy tokens repeat their input."""
    embedding = model.get_input_embeddings().weight
    generator = torch.Generator(embedding.device).manual_seed(seed)
    for name, parameter in model.named_parameters():
        gain = 1.0 if parameter is embedding else 2.0
        scale = gain * parameter.shape[-1] ** -0.5 if parameter.dim() > 1 else 0.1 if name.endswith("bias") else 0.0
        if scale:
            numbers = torch.randn(parameter.shape, generator=generator, device=embedding.device)
            parameter.data.copy_(numbers.mul_(scale))

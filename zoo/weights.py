"""Router weights on disk: safetensors, whose metadata say which models they were trained for.

A path is taken as given or, where nothing is there, below the folder that holds the installed `zoo` package, like the
paths of the embedded models: `zoo/r2r/weights/small_large.safetensors` works from any working directory.
"""
from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from tokenrouter.core import InputError
from tokenrouter.interface import ModelContext
from tokenrouter.paths import resolve


def save(path: Path, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, Any]) -> None:
    """Write a file that is either complete or not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, partial,
              {"router": json.dumps(metadata, sort_keys=True)})
    partial.rename(path)


def load(path: str, kind: str) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Tensors and metadata of a router of that kind. InputError where there is none."""
    allowed = f"allowed is a safetensors file of a trained {kind} router"
    if not isinstance(path, str) or not resolve(path).is_file():  # configuration: it may be anything
        raise InputError(f"weights={path!r}: {allowed}; there is no such file")
    try:
        with safe_open(resolve(path), framework="pt") as opened:
            metadata = json.loads((opened.metadata() or {}).get("router", "{}"))
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 (not a mapping)
    except (OSError, SafetensorError, ValueError) as error:
        raise InputError(f"weights={path!r}: {allowed} ({error})") from None
    if metadata.get("kind") != kind:
        raise InputError(f"weights={path!r}: {allowed}; this one is {metadata.get('kind')!r}")
    return tensors, metadata


def describe(name: str, model: ModelContext) -> dict[str, Any]:
    """What `check_model` compares; goes into metadata["models"][role]."""
    return {"name": name, "vocab_size": model.vocab_size, "hidden_size": model.hidden_size,
            "fingerprint": fingerprint(model)}


def check_model(path: str, metadata: Mapping[str, Any], role: str, model: ModelContext) -> None:
    """Raise InputError unless `model` is the one that plays `role` in the pair that the weights were trained for."""
    trained = metadata["models"][role]
    for field, value in describe("", model).items():
        if field != "name" and value != trained[field]:
            raise InputError(
                f"models.{role}: its {field} is {value}; allowed is {trained['name']} ({field} {trained[field]}), for "
                f"which weights={path!r} were trained; python -m zoo.train trains a router for another pair"
            )


@torch.no_grad()
def fingerprint(model: ModelContext) -> str:
    """Of a model's first input embeddings; the same for its weights in fp32 and in bf16."""
    ids = torch.arange(min(model.vocab_size, 256), device=model.device)
    rows = model.embed(ids).to("cpu", torch.bfloat16).contiguous()
    return hashlib.blake2b(rows.view(torch.uint8).numpy().tobytes(), digest_size=8).hexdigest()

"""What must be known of models before any is started: where they are, how they spell, how long they read."""
from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import try_to_load_from_cache
from jinja2 import TemplateError
from safetensors import SafetensorError, safe_open
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig, PreTrainedTokenizerBase
from transformers.utils.hub import cached_file

from tokenrouter.core import InputError
from tokenrouter.engine.torch import load
from tokenrouter.interface import ModelContext
from tokenrouter.paths import resolve

_auto: Any = AutoModelForCausalLM  # without types, both
_generation: Any = GenerationConfig
_CHANGES_LOGITS = ("final_logit_softcapping", "logit_scale", "logits_scaling")
_ENDS = 1 << 20  # bytes at either end of a weight file that stand for all of it


def locate(field: str, path: str) -> str:
    """A model's folder, as given or below the installed package, or `path` itself as a hub id."""
    folder = resolve(path)
    if folder.is_dir():
        return str(folder.resolve())
    if path.count("/") != 1 or path.startswith((".", "/", "~")):
        raise InputError(f"{field}={path!r}: allowed is an existing folder, or a hub id like Qwen/Qwen3-0.6B")
    return path


def revision(path: str, given: str | None) -> str | None:
    """The commit that a hub's model was loaded at (None: it is not in the cache), or a digest of a local folder's
    configuration and weights (sizes and both ends)."""
    if not Path(path).is_dir():
        file = try_to_load_from_cache(path, "config.json", revision=given)
        return Path(file).parent.name if isinstance(file, str) else given
    digest = hashlib.sha256()
    for file in sorted([*Path(path).glob("config.json"), *Path(path).glob("*.safetensors")]):
        with file.open("rb") as data:
            size = file.stat().st_size
            digest.update(f"{file.name} {size} ".encode() + data.read(_ENDS))
            data.seek(max(0, size - _ENDS))
            digest.update(data.read(_ENDS))
    return digest.hexdigest()[:12]


def load_tokenizer(field: str, path: str, revision: str | None = None) -> PreTrainedTokenizerBase:
    tokenizer: PreTrainedTokenizerBase = _load(AutoTokenizer, field, path, revision)
    return tokenizer


def prompt_ids(path: str, tokenizer: PreTrainedTokenizerBase, messages: Sequence[Mapping[str, str]]) -> list[int]:
    """A conversation (role and content of each message) in the words of the chat template, up to where the answer
    begins. `path`: of the tokenizer, for the InputError where the template refuses."""
    conversation: Any = list(messages)
    try:
        ids: Any = tokenizer.apply_chat_template(conversation, add_generation_prompt=True, return_dict=False)
    except TemplateError as error:  # templates raise it about roles and their order
        roles, reason = ", ".join(dict.fromkeys(message["role"] for message in messages)), " ".join(str(error).split())
        raise InputError(f"models.tokenizer={path!r}: its chat template refuses {len(messages)} messages ({roles}): "
                         f"{reason}; allowed is one that takes them") from None
    return list(ids)


def context_length(field: str, path: str, revision: str | None) -> int:
    """The most tokens that a sequence may have."""
    return load.context_length(_load(AutoConfig, field, path, revision).get_text_config())


def _load(kind: Any, field: str, path: str, revision: str | None) -> Any:
    try:
        return kind.from_pretrained(path, revision=revision)
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(
            f"{field}={path!r}: cannot be loaded ({reason}); allowed is a model's folder or hub id") from None


def context(path: str, revision: str | None, *, download: bool = False) -> ModelContext | None:
    """What a router may ask about a model, read from its files without loading it; of embeddings, the rows asked for.

    None for a hub's model that is not in the cache, unless `download` says to fetch the file with its embeddings.
    Raises OSError, ValueError or KeyError where there is no model with weights in safetensors.
    """
    offline = not download and not Path(path).is_dir()
    options: Any = {"revision": revision, "local_files_only": offline,
                    "_raise_exceptions_for_missing_entries": not offline}
    if cached_file(path, "config.json", **options) is None:
        return None
    model = skeleton(path, revision, offline=offline)
    name = _stored_as(model, model.get_input_embeddings())
    if (file := _file_with(path, name, options)) is None:
        return None
    try:
        with safe_open(file, framework="pt") as opened:
            opened.get_slice(name)
    except SafetensorError as error:
        raise ValueError(f"{file}: {error}") from None

    def embed(ids: torch.Tensor) -> torch.Tensor:
        with safe_open(file, framework="pt") as opened:
            rows: torch.Tensor = opened.get_slice(name)[: int(ids.max()) + 1]
        return rows[ids]

    text = model.config.get_text_config()
    return ModelContext(torch.device("cpu"), text.vocab_size, text.hidden_size, load.eos_token_ids(model), embed)


def skeleton(path: str, revision: str | None, *, offline: bool = False) -> Any:
    """The model without weights, its configurations as they are on disk."""
    config = AutoConfig.from_pretrained(path, revision=revision, local_files_only=offline)
    with torch.device("meta"):
        model = _auto.from_config(config)
    with contextlib.suppress(OSError):  # not every model has one
        model.generation_config = _generation.from_pretrained(path, revision=revision, local_files_only=offline)
    return model


def output_table(path: str, revision: str | None) -> torch.Tensor:
    """[V, H] fp32 rows whose products with hidden states are the model's logits, read without loading the model.

    InputError where logits are more than that: capped, scaled or shifted.
    """
    model = skeleton(path, revision)
    head, text = model.get_output_embeddings(), model.config.get_text_config()
    more = [name for name in _CHANGES_LOGITS if getattr(text, name, None)]
    if more or getattr(head, "bias", None) is not None:
        raise InputError(f"models={path}: its logits are not its output embeddings' products with hidden states "
                         f"({', '.join(more) or 'bias'}); allowed are models without")
    name = _stored_as(model, head)
    file = _file_with(path, name, {"revision": revision})
    with safe_open(file, framework="pt") as opened:
        table: torch.Tensor = opened.get_tensor(name).float()
    return table


def _stored_as(model: Any, module: Any) -> str:
    """The name of its weight; one that is shared is stored once."""
    name: str = next(name for name, parameter in model.named_parameters() if parameter is module.weight)
    return name


def _file_with(path: str, name: str, options: Any) -> Any:
    """The safetensors file that holds a parameter; None if it is not in the cache and may be missing."""
    index = cached_file(path, "model.safetensors.index.json",
                        **options | {"_raise_exceptions_for_missing_entries": False})
    shard = json.loads(Path(index).read_text())["weight_map"][name] if index else "model.safetensors"
    return cached_file(path, shard, **options)


def check_vocabularies(named: Sequence[tuple[str, PreTrainedTokenizerBase]]) -> None:
    """InputError unless all tokenizers map the same tokens to the same ids; widths of embeddings may differ."""
    first, reference = named[0][0], named[0][1].get_vocab()
    for name, tokenizer in named[1:]:
        vocab = tokenizer.get_vocab()
        if vocab == reference:
            continue
        token = min(t for t in reference.keys() | vocab.keys() if reference.get(t) != vocab.get(t))
        raise InputError(f"models={first}, {name}: their vocabularies differ: {token!r} is {reference.get(token)} "
                         f"in the one and {vocab.get(token)} in the other; allowed are models with the same token ids")

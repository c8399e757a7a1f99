"""A router of this zoo out of an official R2R checkpoint: python -m zoo.r2r.convert CHECKPOINT out=FILE models=...

CHECKPOINT is a file that the official training wrote (github.com/thu-nics/R2R; `default_router.pt` of the hub's
nics-efc/R2R_router_collections), or its state_dict as safetensors. `models` and `models.roles...` name the pair that it
was trained for; of these models only configurations and the first input embeddings are read. Then

    python bench/run.py algo=r2r models=... algo.weights=FILE algo.threshold=...

The network is the same as zoo/r2r/network.py has it, so that tensors are renamed, not changed. Refused are the official
code's other networks, normalised inputs, position embeddings, blocks of different widths, and more than two classes.
"""
from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from tokenrouter.cluster.models import context
from tokenrouter.core import InputError
from tokenrouter.interface import ModelContext
from zoo import weights
from zoo.cli import convert, run, split_arguments
from zoo.r2r.network import R2RNetwork, Sizes
from zoo.r2r.router import KIND
from zoo.setup import Setup

NETWORK = "HiddenStatesTokenLMHeadLogitsClassifier"
EMBEDDINGS = "token_embeddings.weight"  # a copy of the small model's, which only a checkpoint named *_all.pt holds
_LAYERS = {
    "logits_projection": "logits", "combined_projection": "mix", "backbone.input_projection": "stem",
    "backbone.output_layer.0": "norm", "backbone.output_layer.1": "head",
}
_INPUTS = ["hidden_states", "logits", "token"]
_IN_BLOCK = {"layer_norm": "norm", "mlp.0": "up", "mlp.3": "down"}


class Options(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    out: str


class Checkpoint(msgspec.Struct):
    """`tensors` by their official names. `about`: what else the file says; empty for safetensors."""

    tensors: dict[str, torch.Tensor]
    about: dict[str, Any]


def read(file: Path) -> Checkpoint:
    """InputError for a file that holds anything but tensors and plain values."""
    allowed = "allowed is an official R2R checkpoint, or its state_dict as safetensors"
    if not file.is_file():
        raise InputError(f"checkpoint={str(file)!r}: {allowed}; there is no such file")
    try:
        if file.suffix == ".safetensors":
            return Checkpoint(load_file(file), {})
        # The published files are pickles, and there is nothing else to read. With weights_only=True no code in them is
        # run: anything that is not a tensor or a plain value is an error. Only this command reads such a file, once.
        loaded = torch.load(file, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, SafetensorError, pickle.UnpicklingError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InputError(f"checkpoint={str(file)!r}: {allowed} ({reason})") from None
    tensors = loaded.pop("state_dict", None) if isinstance(loaded, dict) else None
    if not isinstance(tensors, dict) or not all(isinstance(tensor, torch.Tensor) for tensor in tensors.values()):
        raise InputError(f"checkpoint={str(file)!r}: {allowed}; this one has no state_dict")
    return Checkpoint(dict(tensors), loaded)


def check_kind(about: Mapping[str, Any]) -> None:
    """InputError if the file says that its network is one that zoo/r2r/network.py has not."""
    given = about.get("init_args") or {}
    found = {
        "model_type": (about.get("model_type", NETWORK), NETWORK),
        "init_args.normalize_input": (given.get("normalize_input", False), False),
        "init_args.use_position_embedding": (given.get("use_position_embedding", False), False),
        "common_args.input_type": (sorted((about.get("common_args") or {}).get("input_type") or _INPUTS), _INPUTS),
    }
    for field, (value, supported) in found.items():
        if value != supported:
            raise InputError(f"{field}={value!r}: allowed is {supported!r}; the official code's other networks are "
                             "not supported")


def network_of(tensors: Mapping[str, torch.Tensor]) -> R2RNetwork:
    """The network with these weights, which bear their official names. InputError if it would be another one."""
    ours, unknown = {}, []
    for name, tensor in tensors.items():
        layer, _, kind = name.rpartition(".")
        block = layer.split(".", 3)
        if layer.startswith("backbone.blocks.") and len(block) == 4 and block[3] in _IN_BLOCK:
            ours[f"blocks.{block[2]}.{_IN_BLOCK[block[3]]}.{kind}"] = tensor.float()
        elif layer in _LAYERS:
            ours[f"{_LAYERS[layer]}.{kind}"] = tensor.float()
        elif name != EMBEDDINGS:
            unknown.append(name)
    if unknown:
        raise InputError(f"state_dict: holds {', '.join(sorted(unknown))}; allowed is what {NETWORK} has without "
                         "normalised inputs, position embeddings and changes of width")
    try:
        hidden, num_logits = ours["logits.weight"].shape
        width, inner = ours["stem.weight"].shape[0], ours["blocks.0.up.weight"].shape[0]
        classes = ours["head.weight"].shape[0]
    except KeyError as error:
        raise InputError(f"state_dict: lacks the layer that is {error} here; allowed is what {NETWORK} has") from None
    if classes != 1:
        raise InputError(f"state_dict: its last layer has {classes} outputs; allowed is 1")
    blocks = 1 + max(int(name.split(".")[1]) for name in ours if name.startswith("blocks."))
    network = R2RNetwork(Sizes(hidden, num_logits, width, inner // width, blocks))
    expected = network.state_dict()  # its mean and std stay 0 and 1: the official inputs are not standardised
    wrong = sorted(name for name in (ours.keys() | expected.keys()) - {"mean", "std"}
                   if name not in ours or name not in expected or ours[name].shape != expected[name].shape)
    if wrong:
        raise InputError(f"state_dict: missing, too many, or of another shape than blocks of one width have: "
                         f"{', '.join(wrong)} (names as here); allowed is what {NETWORK} has with equal hidden_dims")
    network.load_state_dict(ours, strict=False)
    return network.eval()


def model_context(setup: Setup, role: str) -> ModelContext:
    """What weights are tied to of a model, read without loading it: sizes, and rows of its input embeddings."""
    path, revision = setup.model_path(role), setup.revision(role)
    try:
        found = context(path, revision, download=True)
    except (OSError, ValueError, KeyError) as error:
        reason, allowed = " ".join(str(error).split())[:200], "allowed is a folder or hub id of a model in safetensors"
        raise InputError(f"models.roles.{role}.path={path!r}: {allowed} ({reason})") from None
    assert found is not None
    return found


def converted(
    checkpoint: Checkpoint, models: Mapping[str, tuple[str, ModelContext]]
) -> tuple[R2RNetwork, dict[str, Any]]:
    """The network, and the metadata of its file; `models`: role -> name and model. InputError if they do not fit."""
    check_kind(checkpoint.about)
    network = network_of(checkpoint.tensors)
    name, small = models["small"]
    if network.sizes.hidden_size != small.hidden_size:
        raise InputError(f"models.roles.small.path={name!r}: its hidden size is {small.hidden_size}; allowed is "
                         f"{network.sizes.hidden_size}, for which the checkpoint was trained")
    copied = checkpoint.tensors.get(EMBEDDINGS)
    if copied is not None:
        theirs = small._replace(embed=lambda ids: copied[ids])
        if copied.shape[1] != small.hidden_size or weights.fingerprint(theirs) != weights.fingerprint(small):
            raise InputError(f"models.roles.small.path={name!r}: allowed is the model whose input embeddings the "
                             "checkpoint holds")
    given, common = checkpoint.about.get("init_args") or {}, checkpoint.about.get("common_args") or {}
    return network, {
        "kind": KIND, "sizes": network.sizes._asdict(), "threshold": common.get("threshold"),
        "models": {role: weights.describe(name, model) for role, (name, model) in models.items()},
        "trained_with": given.get("pretrained_model_name"), "source": "an official R2R checkpoint",
    }


def main(arguments: list[str]) -> None:
    files = [argument for argument in arguments if "=" not in argument]
    overrides, own = split_arguments(argument for argument in arguments if "=" in argument)
    if len(files) != 1:
        raise InputError(f"arguments={arguments}: allowed is CHECKPOINT out=FILE models=...")
    out = Path(convert(own, Options).out)
    if out.suffix != ".safetensors":
        raise InputError(f"out={str(out)!r}: allowed is a file name that ends in .safetensors")
    checkpoint = read(Path(files[0]))
    setup = Setup.compose(["algo=r2r", *overrides])
    setup.check_vocabularies()
    models = {role: (setup.model_name(role), model_context(setup, role)) for role in ("small", "large")}
    network, about = converted(checkpoint, models)
    weights.save(out, network.state_dict(), about)
    sizes, threshold = network.sizes, about["threshold"]
    print(f"{out}: hidden size {sizes.hidden_size}, {sizes.num_logits} logits, {sizes.num_blocks} blocks of "
          f"{sizes.width}; trained with {about['trained_with'] or 'a model that the checkpoint does not name'}, tied "
          f"to {models['small'][0]} and {models['large'][0]}\nalgo.weights={out}"
          + (f" algo.threshold={threshold}" if threshold is not None else "; the checkpoint names no threshold"))


if __name__ == "__main__":
    run(main)

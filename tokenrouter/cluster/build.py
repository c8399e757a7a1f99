"""From the sections of a configuration to a cluster's parts, with nothing started."""
from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from tokenrouter.cluster.models import check_vocabularies, load_tokenizer, locate
from tokenrouter.cluster.spec import HardwareSpec, ModelSpec, usable_cores
from tokenrouter.config import EngineConfig, HardwareConfig, ModelsConfig
from tokenrouter.core import InputError


def model_specs(
    models: ModelsConfig, roles: Sequence[str], algorithm: str, engine: EngineConfig, device: str
) -> list[ModelSpec]:
    """The subservers' models, one for each of `roles`, which are those of `algorithm`."""
    sizes = engine.options.get("tp_size")
    for name, size in sizes.items() if isinstance(sizes, dict) else ():
        if name not in models.roles:
            raise InputError(f"engine.options.tp_size.{name}={size!r}: allowed are the roles of models={models.name}: "
                             f"{', '.join(models.roles)}")
    for role in roles:
        if role not in models.roles:
            raise InputError(f"models={models.name}: has no model for the role {role!r} of algo={algorithm}; allowed "
                             f"is a group with the roles {list(roles)}, this one has {list(models.roles)}")
    return [ModelSpec(name=role, path=_locate(models, role, engine.kind), revision=models.roles[role].revision,
                      device=device, dtype=models.roles[role].dtype, load_format=models.load_format) for role in roles]


def hardware_spec(hardware: HardwareConfig, subservers: int) -> HardwareSpec:
    return HardwareSpec(threads=hardware.threads, pin=_cores(hardware.pin, subservers), transport=hardware.transport,
                        addresses=hardware.addresses, link=hardware.link)


def shared_tokenizer(models: ModelsConfig, specs: Sequence[ModelSpec]) -> PreTrainedTokenizerBase:
    """The one tokenizer of all the models. InputError if they differ in it, or if it has no chat template."""
    field = "models.tokenizer"
    if models.tokenizer is None:
        raise InputError(f"{field}=None: allowed is a folder or hub id")
    tokenizer = load_tokenizer(field, locate(field, models.tokenizer))
    others = {(m.path, m.revision): m.name for m in specs}
    named = [(models.roles[role].path, load_tokenizer(f"models.roles.{role}.path", *key))
             for key, role in others.items()]
    check_vocabularies([(models.tokenizer, tokenizer), *named])
    if not tokenizer.chat_template:
        raise InputError(f"{field}={models.tokenizer!r}: has no chat template; allowed is a tokenizer with one")
    return tokenizer


def _locate(models: ModelsConfig, role: str, engine: str) -> str:
    """Where a role's model is; for the emulated engine its name in the engine's options."""
    field, model = f"models.roles.{role}", models.roles[role]
    found = model.path if engine == "emulated" else locate(f"{field}.path", model.path)
    if model.revision is not None and (engine == "emulated" or Path(found).is_dir()):
        raise InputError(f"{field}.revision={model.revision!r}: allowed with {field}.path={model.path!r} is null, as "
                         "only a hub id has revisions")
    return found


def _cores(pin: Any, subservers: int) -> list[int]:
    """`auto`: the first cores that this process may use, if each subserver can have one of its own."""
    if pin != "auto":
        return list(pin)
    mine = usable_cores()
    return mine[:subservers] if len(mine) >= subservers else []

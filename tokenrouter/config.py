"""What a resolved configuration may hold of the serving core, and how a mistake in one is told.

Every field is explained in the yaml that declares it; programs over the core add sections of their own.
"""
from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from hydra.errors import MissingConfigException, OverrideParseException
from msgspec import Meta, Struct

from tokenrouter.cluster.spec import BatchingSpec, EngineSpec, HardwareSpec
from tokenrouter.schema import convert, unknown

__all__ = [
    "AlgoConfig", "BatchingConfig", "EngineConfig", "HardwareConfig", "ModelConfig", "ModelsConfig", "Natural",
    "Positive", "PositiveFloat", "Seed", "Strict", "convert", "explain_composition",
]

Positive = Annotated[int, Meta(ge=1)]
Natural = Annotated[int, Meta(ge=0)]
Seed = Annotated[int, Meta(ge=0, le=2**63 - 1)]
PositiveFloat = Annotated[float, Meta(gt=0, le=1e9)]  # finite


class Strict(Struct, forbid_unknown_fields=True):
    """A section that has no fields but those it declares."""


class AlgoConfig(Struct, kw_only=True):
    """An algorithm's own settings beside these are for its yaml to interpolate."""

    name: str
    entry: str | dict[str, Any]
    roles: dict[str, dict[str, Any]]
    threshold: float | str | None = None


class ModelConfig(Strict, kw_only=True):
    path: str
    revision: str | None = None
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"


class ModelsConfig(Strict, kw_only=True):
    name: str
    embedded: bool = False
    tokenizer: str | None
    load_format: Literal["auto", "dummy"] = "auto"
    roles: dict[str, ModelConfig]


class EngineConfig(EngineSpec, kw_only=True, forbid_unknown_fields=True):
    kind: Literal["torch", "sglang", "emulated"]
    memory_gb: PositiveFloat
    reserve_gb: Annotated[float, Meta(ge=0, le=1e9)]
    capacity_tokens: Positive | None
    max_batch: Positive
    chunk_tokens: Positive


class BatchingConfig(BatchingSpec, kw_only=True, forbid_unknown_fields=True):
    B: list[Positive]
    max_wait_s: PositiveFloat
    slo_ms: PositiveFloat


class HardwareConfig(HardwareSpec, kw_only=True, forbid_unknown_fields=True):
    device: str
    threads: Positive
    pin: Literal["auto"] | list[Natural]  # type: ignore[assignment]


def explain_composition(error: Exception, schema: type, open_sections: frozenset[str] = frozenset()) -> str:
    """Hydra's and OmegaConf's own complaints about the command line, as one line."""
    text = " ".join(str(error).split())
    if isinstance(error, MissingConfigException) and error.options is not None:
        group, _, choice = str(error.missing_cfg_file).rpartition("/")
        return f"{group}={choice}: allowed is one of {', '.join(error.options)}"
    if isinstance(error, OverrideParseException):
        return f"{error.override}: not understood; allowed is group=choice or group.field=value"
    if appended := re.search(r"To append to your config use \+([^= ]+)(=.*)?", text):
        given, found = appended[1], str(getattr(error.__cause__, "full_key", ""))
        if found.startswith(f"{given}."):  # the field is there, and what it was given has one that is not
            return unknown(found.split("."), schema, open_sections)
        return unknown(given.split("."), schema, open_sections, appended[2] or "")
    return text

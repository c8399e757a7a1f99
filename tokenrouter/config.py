"""What a resolved configuration may hold of the serving core, and how a mistake in one is told.

Every field is explained in the yaml that declares it; programs over the core add sections of their own.
"""
from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from hydra.errors import MissingConfigException, OverrideParseException
from msgspec import Meta, Struct, inspect

from tokenrouter.cluster.spec import BatchingSpec, EngineSpec, HardwareSpec
from tokenrouter.core import InputError

Positive = Annotated[int, Meta(ge=1)]
Natural = Annotated[int, Meta(ge=0)]
PositiveFloat = Annotated[float, Meta(gt=0, le=1e9)]  # finite
Schema = TypeVar("Schema")


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
    reserve_gb: Annotated[float, Meta(ge=0)]
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


def convert(values: Mapping[str, Any], schema: type[Schema], open_sections: frozenset[str] = frozenset()) -> Schema:
    """Plain data -> `schema`; InputError for the first field that is missing, unknown, ill-typed or out of range.

    `open_sections`: those whose fields are what their yaml has, not what the schema says.
    """
    try:
        return msgspec.convert(values, schema)
    except msgspec.ValidationError as error:
        raise InputError(_explain_value(values, str(error), schema, open_sections)) from None


def explain_composition(error: Exception, schema: type, open_sections: frozenset[str] = frozenset()) -> str:
    """Hydra's and OmegaConf's own complaints about the command line, as one line."""
    text = " ".join(str(error).split())
    if isinstance(error, MissingConfigException) and error.options is not None:
        group, _, choice = str(error.missing_cfg_file).rpartition("/")
        return f"{group}={choice}: allowed is one of {', '.join(error.options)}"
    if isinstance(error, OverrideParseException):
        return f"{error.override}: not understood; allowed is group=choice or group.field=value"
    if appended := re.search(r"To append to your config use \+([^= ]+)(=.*)?", text):
        return _unknown(appended[1].split("."), schema, open_sections, appended[2] or "")
    return text


def _explain_value(values: Mapping[str, Any], message: str, schema: type, open_sections: frozenset[str]) -> str:
    """One line `field=value: allowed is ...` out of msgspec's `Expected ... - at `$.path``."""
    said, _, path = message.partition(" - at `$")
    keys = re.findall(r"[^.\[\]]+|\.\.\.", path.rstrip("`"))
    if unknown := re.match(r"Object contains unknown field `(.*)`", said):
        return _unknown([*keys, unknown[1]], schema, open_sections)
    if missing := re.match(r"Object missing required field `(.*)`", said):
        return f"{'.'.join([*keys, missing[1]])}: missing"
    allowed = f"allowed is {_describe(_at(keys, schema))}"
    if "..." in keys:  # a dictionary's key, which msgspec does not name
        return f"{'.'.join('*' if key == '...' else key for key in keys)}: {said}; {allowed}"
    value: Any = values
    for key in keys:
        value = value[int(key) if isinstance(value, list) else key]
    return f"{'.'.join(keys)}={value!r}: {allowed}"


def _describe(node: Any) -> str:
    """A type of the schema in words."""
    match node:
        case inspect.UnionType():
            return ", or ".join(_describe(option) for option in node.types)
        case inspect.LiteralType():
            return f"{'one of ' if len(node.values) > 1 else ''}{', '.join(map(str, node.values))}"
        case inspect.IntType() | inspect.FloatType():
            kind = "a whole number" if isinstance(node, inspect.IntType) else "a number"
            bounds = {">=": node.ge, ">": node.gt, "<=": node.le, "<": node.lt}
            limits = [f"{sign} {bound:g}" for sign, bound in bounds.items() if bound is not None]
            return f"{kind} {' and '.join(limits)}".rstrip()
        case inspect.ListType():
            return f"a list of: {_describe(node.item_type)}"
        case inspect.DictType() | inspect.StructType():
            return "a mapping"
        case inspect.BoolType():
            return "true or false"
        case inspect.NoneType():
            return "null"
        case _:
            return "text"


def _unknown(keys: list[str], schema: type, open_sections: frozenset[str], value: str = "") -> str:
    """One line on a field that the schema, or the yaml of an open section, does not have."""
    node = _at(keys[:-1], schema)
    optional = _option(node, inspect.StructType)
    if isinstance(optional, inspect.StructType) and keys[0] not in open_sections:
        names = [field.encode_name for field in optional.fields]
        allowed = f"one of {', '.join(names)}"
        if optional is not node and keys[-1] in names:  # Hydra does not enter what is null
            section = ".".join(keys[:-1])
            return f"{'.'.join(keys)}{value}: {section} is null; allowed is {section}={{{keys[-1]}: {value[1:]}}}"
    else:
        allowed = f"a field that the yaml in conf/{keys[0]}/ has"
    return f"{'.'.join(keys)}{value}: unknown; allowed is {allowed}"


def _at(keys: list[str], schema: type) -> Any:
    """msgspec's description of the type at a path of fields, None where the schema does not go."""
    node: Any = inspect.type_info(schema)
    for key in keys:
        node = _option(node, inspect.ListType if key.isdecimal() else inspect.StructType)
        if isinstance(node, inspect.StructType):
            node = next((field.type for field in node.fields if field.encode_name == key), None)
        elif isinstance(node, inspect.DictType):
            node = node.value_type
        elif isinstance(node, inspect.ListType):
            node = node.item_type
        else:
            return None
    return node


def _option(node: Any, kind: type) -> Any:
    """Of a union the option of this kind, or else the first that has parts; what is no union as it is."""
    if not isinstance(node, inspect.UnionType):
        return node
    parts = [option for option in node.types
             if isinstance(option, inspect.StructType | inspect.ListType | inspect.DictType)]
    return next((option for option in parts if isinstance(option, kind)), parts[0] if parts else None)

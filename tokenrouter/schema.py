"""Plain data as typed structures, and mistakes in it told in one line: the field, the value and what is allowed."""
from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from tokenrouter.core import InputError

Schema = TypeVar("Schema")
_ANY = "..."  # how msgspec writes a key of a dictionary, which it does not name


def convert(values: Any, schema: type[Schema], open_sections: frozenset[str] = frozenset(), at: str = "") -> Schema:
    """Plain data -> `schema`; InputError for the first field that is missing, unknown, ill-typed or out of range.

    `open_sections`: those whose fields are what their yaml has, not what the schema says. `at`: the field that `values`
    are, dotted; empty: the whole configuration.
    """
    try:
        return msgspec.convert(values, schema)
    except msgspec.ValidationError as error:
        raise InputError(_explain(values, str(error), schema, open_sections, at)) from None


def unknown(
    keys: list[str], schema: type, open_sections: frozenset[str] = frozenset(), value: str = "", at: str = ""
) -> str:
    """One line on a field that the schema, or the yaml of an open section, does not have. `value`: with its `=`."""
    node = _at(keys[:-1], schema)
    optional = _option(node, inspect.StructType)
    field, section = _dotted(at, *keys), _dotted(at, *keys[:-1])
    if isinstance(optional, inspect.StructType) and keys[0] not in open_sections:
        names = [part.encode_name for part in optional.fields]
        allowed = f"one of {', '.join(names)}"
        if optional is not node and keys[-1] in names:  # Hydra does not enter what is null
            return f"{field}{value}: {section} is null; allowed is {section}={{{keys[-1]}: {value[1:]}}}"
    else:
        allowed = f"a field that the yaml in conf/{keys[0]}/ has"
        if len(keys) > 2 and keys[0] not in open_sections:  # a dictionary's key, which Hydra adds where it is told to
            allowed += f", or +{field}{value or '=...'}"
    return f"{field}{value}: unknown; allowed is {allowed}"


def _explain(values: Any, message: str, schema: type, open_sections: frozenset[str], at: str) -> str:
    """One line `field=value: allowed is ...` out of msgspec's `Expected ... - at `$.path``."""
    said, _, path = message.partition("`$")
    said = said.partition(" - at ")[0]
    keys = re.findall(r"[^.\[\]]+|\.\.\.", path.rstrip("`"))
    while keys and keys[-1].isdecimal():  # an element is not given by itself, but its list is
        keys.pop()
    keys = _named(values, keys, message, schema)
    if found := re.match(r"Object contains unknown field `(.*)`", said):
        keys = [*keys, found[1]]
        return unknown(keys, schema, open_sections, f"={_value(values, keys)!r}", at)
    if found := re.match(r"Object missing required field `(.*)`", said):
        return f"{_dotted(at, *keys, found[1])}: missing"
    return f"{_dotted(at, *keys)}={_value(values, keys)!r}: allowed is {_describe(_at(keys, schema))}"


def _named(values: Any, keys: list[str], message: str, schema: type) -> list[str]:
    """The path with the names of dictionaries' keys: each is the first that by itself gives the same error."""
    keys = list(keys)
    for place, key in enumerate(keys):
        for name in _value(values, keys[:place]) if key == _ANY else ():
            alone = _only(values, keys[:place], name)
            try:
                msgspec.convert(alone, schema)
            except msgspec.ValidationError as error:
                if str(error) == message:
                    keys[place], values = name, alone
                    break
    return keys


def _only(values: Any, keys: list[str], name: str) -> Any:
    """A copy in which the dictionary at a path has no key but `name`."""
    if not keys:
        return {name: values[name]}
    first, *rest = keys
    if isinstance(values, list):
        return [_only(value, rest, name) if index == int(first) else value for index, value in enumerate(values)]
    return {**values, first: _only(values[first], rest, name)}


def _value(values: Any, keys: list[str]) -> Any:
    for key in keys:
        values = values[int(key) if isinstance(values, list) else key]
    return values


def _dotted(*keys: Any) -> str:
    return ".".join(str(key) for key in keys if key != "")


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
            limits = [f"{sign} {bound:g}" if isinstance(bound, float) else f"{sign} {bound}"
                      for sign, bound in bounds.items() if bound is not None]
            return f"{kind} {' and '.join(limits)}".rstrip()
        case inspect.ListType() | inspect.VarTupleType():
            return f"a list of{' one or more' if node.min_length else ''}: {_describe(node.item_type)}"
        case inspect.TupleType():
            return f"a list of {len(node.item_types)}: {', '.join(dict.fromkeys(map(_describe, node.item_types)))}"
        case inspect.DictType() | inspect.StructType():
            return "a mapping"
        case inspect.BoolType():
            return "true or false"
        case inspect.NoneType():
            return "null"
        case _:
            return "text"


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

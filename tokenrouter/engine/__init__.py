"""Engines: one model each, behind the protocol of base.py."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenrouter.core import InputError
from tokenrouter.engine.base import Engine
from tokenrouter.engine.options import FIELD, EngineOptions, check_device
from tokenrouter.schema import convert


def load_engine(kind: str, **options: Any) -> Engine:
    """The engine of that kind (torch, sglang, emulated); `options` are its constructor's arguments."""
    if kind == "torch":
        from tokenrouter.engine.torch.engine import TorchEngine  # loads transformers

        return TorchEngine(**options)
    if kind == "sglang":
        from tokenrouter.engine.sglang.engine import SglangEngine

        return SglangEngine(**options)
    if kind == "emulated":
        from tokenrouter.engine.emulated import EmulatedEngine

        return EmulatedEngine(**options)
    raise _unknown(kind)


def parse_options(kind: str, options: Mapping[str, Any]) -> EngineOptions:
    """`engine.options` of an engine of that kind. InputError for what its constructor would refuse; loads nothing."""
    return convert(dict(options), _options(kind), at=FIELD)


def check_machine(kind: str, device: str, needed: int) -> None:
    """InputError unless this machine has the device, as many more as are needed, and what else such an engine needs."""
    if kind != "emulated":  # whose devices are but names
        check_device(device, needed)
    if kind == "sglang":
        from tokenrouter.engine.sglang.runtime import check_version

        check_version()


def _options(kind: str) -> type[EngineOptions]:
    if kind == "torch":
        from tokenrouter.engine.torch.options import TorchOptions

        return TorchOptions
    if kind == "sglang":
        from tokenrouter.engine.sglang.options import SglangOptions

        return SglangOptions
    if kind == "emulated":
        from tokenrouter.engine.emulated import EmulatedOptions

        return EmulatedOptions
    raise _unknown(kind)


def _unknown(kind: str) -> InputError:
    return InputError(f"engine={kind!r}: allowed is torch, sglang, emulated")

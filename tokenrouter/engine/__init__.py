"""Engines: one model each, behind the protocol of base.py."""
from __future__ import annotations

from typing import Any

from tokenrouter.core import InputError
from tokenrouter.engine.base import Engine


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
    raise InputError(f"engine={kind!r}: allowed is torch, sglang, emulated")

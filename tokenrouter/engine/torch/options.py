"""engine.options of engine=torch."""
from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from tokenrouter.core import InputError
from tokenrouter.engine.options import FIELD, EngineOptions, Positive

_Sizes = Annotated[tuple[Positive, ...], Meta(min_length=1)]


class GraphRange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which shapes are recorded: every combination of at most `max_tokens` tokens. All lists rise.

    `batch_sizes`: rows. `tokens`: that a row appends, 1 is a decode. `contexts`: keys that a row can have.
    """

    batch_sizes: _Sizes = (1, 2, 4, 8, 16, 32)
    tokens: _Sizes = (1, 2, 4, 8, 16)
    contexts: _Sizes = (512, 2048, 8192)
    max_tokens: Positive = 128


class TorchOptions(EngineOptions, frozen=True, forbid_unknown_fields=True):
    """`runner`: fast (the Qwen and Llama family), hf (any model), auto (fast where it can). `lanes`: on a CPU, keep
    copies of decoding sequences' KV in one piece (lanes.py). `graphs`: off, auto (the usual shapes on CUDA with the
    fast runner, else off), or the shapes.
    """

    runner: Literal["auto", "fast", "hf"] = "auto"
    page_size: Positive = 16
    prefix_cache: bool = True
    lanes: bool = True
    graphs: Literal["auto", "off"] | GraphRange = "auto"

    @property
    def page(self) -> int:
        return self.page_size

    def check(self, role: str, path: str, device: str) -> None:
        if isinstance(self.graphs, str):
            return
        for name in ("batch_sizes", "tokens", "contexts"):
            values = list(getattr(self.graphs, name))
            if values != sorted(set(values)):
                raise InputError(f"{FIELD}.graphs.{name}={values}: allowed is a list of rising numbers")
        if not device.startswith("cuda"):
            raise InputError(f"{FIELD}.graphs={msgspec.to_builtins(self.graphs)}: allowed on {device} is auto, off")

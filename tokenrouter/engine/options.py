"""What an engine is told besides its model. The same rules hold when a run is planned and when the engine starts."""
from __future__ import annotations

from typing import Annotated

import msgspec
import torch
from msgspec import Meta

from tokenrouter.core import InputError

Positive = Annotated[int, Meta(ge=1)]
FIELD = "engine.options"


class EngineOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The options of one kind of engine; conf/engine/ explains them."""

    @property
    def page(self) -> int:
        """Tokens in a page: KV is given out in whole ones."""
        return 1

    @property
    def devices(self) -> int:
        """Of this machine, from the model's own on."""
        return 1

    def check(self, role: str, path: str, device: str) -> None:
        """InputError if they do not go together, or with a role's model or such a device. Nothing is loaded."""

    def pages(self, capacity_tokens: int) -> int:
        """How many pages there are in the room for that many tokens; InputError for none."""
        if capacity_tokens < self.page:
            raise InputError(f"engine.capacity_tokens={capacity_tokens}: allowed is a page ({self.page}) or more")
        return capacity_tokens // self.page


def check_device(name: str, needed: int = 1) -> torch.device:
    """The device of that name; InputError unless this machine has it, and as many as are needed from it on."""
    count = torch.cuda.device_count()  # 0 where torch is built for CPUs only, or there is no driver
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    left = count - (device.index or 0)
    if device.type == "cuda" and 0 < left < needed:
        raise InputError(f"{FIELD}.tp_size: {needed} devices are needed from {name} on; allowed on this machine is a "
                         f"size for {left}")
    if device.type == "cpu" or (device.type == "cuda" and left > 0):
        return device
    there = ", ".join(["cpu", *(f"cuda:{index}" for index in range(count))])
    raise InputError(f"hardware.device={name!r}: allowed on this machine is {'one of ' if count else ''}{there}")

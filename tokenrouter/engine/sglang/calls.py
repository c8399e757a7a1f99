"""What rank 0 tells the other ranks of its model, and how it gets there."""
from __future__ import annotations

from datetime import timedelta

import msgspec
import torch
from torch import distributed

from tokenrouter.engine.sglang.runtime import Options

MESSAGE_BYTES = 4096  # that are sent at once; most steps fit
IDLE = timedelta(days=365)  # there may be no requests for long


class _Call(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """One that rank 0 makes to its Runtime. A sequence goes by the id of its request."""


class Begin(_Call, frozen=True):
    options: Options


class Open(_Call, frozen=True):
    rid: str


class Adopt(_Call, frozen=True):
    """`ids`: those that rank 0 found in its prefix cache."""

    rid: str
    ids: list[int]


class Forward(_Call, frozen=True):
    appends: list[tuple[str, list[int], int]]  # request, ids, number of logits


class Truncate(_Call, frozen=True):
    rid: str
    length: int


class Release(_Call, frozen=True):
    rid: str
    committed: int


class Embed(_Call, frozen=True):
    """The ids come by the device's own broadcast."""

    shape: list[int]


class Flush(_Call, frozen=True):
    pass


class Check(_Call, frozen=True):
    rids: list[str]


Call = Begin | Open | Adopt | Forward | Truncate | Release | Embed | Flush | Check


class Channel:
    """From rank 0 to the others, on whichever machines. All make it at once, when SGLang has made its own groups."""

    def __init__(self) -> None:
        self._group = distributed.new_group(backend="gloo", timeout=IDLE)
        self._buffer = torch.zeros(MESSAGE_BYTES, dtype=torch.uint8)
        self._decoder = msgspec.msgpack.Decoder(list[Call])

    def send(self, calls: list[Call]) -> None:
        data = bytearray(msgspec.msgpack.encode(calls))
        data[:0] = len(data).to_bytes(8, "little")
        first = torch.frombuffer(data, dtype=torch.uint8)[:MESSAGE_BYTES]
        self._buffer[: len(first)] = first
        self._broadcast(self._buffer)
        if len(data) > MESSAGE_BYTES:
            self._broadcast(torch.frombuffer(data[MESSAGE_BYTES:], dtype=torch.uint8))

    def receive(self) -> list[Call]:
        """Waits. RuntimeError if rank 0 is gone."""
        self._broadcast(self._buffer)
        data = self._buffer.numpy().tobytes()
        end = 8 + int.from_bytes(data[:8], "little")
        if end > MESSAGE_BYTES:
            rest = torch.empty(end - MESSAGE_BYTES, dtype=torch.uint8)
            self._broadcast(rest)
            data += rest.numpy().tobytes()
        return self._decoder.decode(data[8:end])

    def _broadcast(self, data: torch.Tensor) -> None:
        distributed.broadcast(data, src=0, group=self._group)

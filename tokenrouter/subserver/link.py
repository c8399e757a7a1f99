"""A link between machines, emulated between processes of one: what is sent over it is there later."""
from __future__ import annotations

import heapq
import struct
import time
from collections.abc import Iterator

from tokenrouter.cluster.spec import LinkSpec

_DUE = struct.Struct("<d")


class Link:
    """Both ends of one process's links to its peers. `due` is perf_counter's, which processes of a host share.

    The sender says when a message is there, the receiver lets nobody see it before. Between any two processes the order
    is kept, as each message occupies the link until it has gone out.
    """

    def __init__(self, spec: LinkSpec) -> None:
        self._delay_s, self._bytes_per_s = spec.delay_ms / 1e3, spec.gbytes_per_s * 1e9
        self._free: dict[int, float] = {}  # when the link to a peer has sent all that was given to it
        self._under_way: list[tuple[float, int, bytes]] = []
        self._count = 0

    def stamp(self, destination: int, data: bytes) -> bytes:
        """What travels with `data`, which goes out now: when it is there."""
        start = max(time.perf_counter(), self._free.get(destination, 0.0))
        self._free[destination] = sent = start + len(data) / self._bytes_per_s
        return _DUE.pack(sent + self._delay_s)

    def put(self, data: bytes, stamp: bytes) -> None:
        self._count += 1
        heapq.heappush(self._under_way, (*_DUE.unpack(stamp), self._count, data))

    def arrived(self) -> Iterator[bytes]:
        while self._under_way and self._under_way[0][0] <= time.perf_counter():
            yield heapq.heappop(self._under_way)[2]

    def next_s(self) -> float:
        """How soon the next of those under way is there; infinite where there is none."""
        return max(self._under_way[0][0] - time.perf_counter(), 0.0) if self._under_way else float("inf")

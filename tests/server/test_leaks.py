"""A thousand requests, most of whose clients leave in one way or another: nothing of them stays."""
from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import random
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.server.local import NEVER_ENDS, LocalServer, serving
from tokenrouter.subserver import lifecycle

REQUESTS, CONCURRENCY = 1000, 64
WAYS = ("whole", "stream", "leave", "reset", "silent", "half", "abort")


class Crowd:
    """Clients over bare sockets, so that they can go at any byte. `done`: how each request ended, by its way."""

    def __init__(self, local: LocalServer) -> None:
        self._host, port = local.url.removeprefix("http://").split(":")
        self._port, self.done = int(port), Counter[str]()

    def send(self, first: int, count: int) -> None:
        """Requests number `first` to `first + count - 1`, CONCURRENCY at a time."""

        async def all_of_them() -> None:
            numbers = iter(range(first, first + count))

            async def client() -> None:
                for number in numbers:
                    await asyncio.wait_for(self._request(random.Random(number)), 60)

            await asyncio.gather(*(client() for _ in range(CONCURRENCY)))

        asyncio.run(all_of_them())

    async def _request(self, rng: random.Random) -> None:
        way = rng.choice(WAYS)
        body = {"prompt": [rng.choice([rng.randrange(3, 290), NEVER_ENDS]) for _ in range(rng.randint(1, 12))],
                "model": rng.choice(["toy", "entropy", "slm_only", "llm_only"]), "max_tokens": rng.randint(1, 24),
                "stream": way != "whole", "n": rng.choice([1, 1, 1, 2])}
        reader, writer = await asyncio.open_connection(self._host, self._port)
        data = message("/v1/completions", body)
        writer.write(data[: len(data) - 10] if way == "half" else data)
        try:
            if way in ("whole", "stream"):
                text = await reader.read()
                assert text.startswith(b"HTTP/1.1 200") and (way == "whole" or b"data: [DONE]" in text)
            elif way in ("leave", "reset"):
                for _ in range(rng.randint(0, 30)):
                    await reader.readline()
            elif way == "abort":
                while not (line := await reader.readline()).startswith(b"data: {"):
                    assert line
                await self._abort(json.loads(line[6:])["id"])
                assert b"data: [DONE]" in await reader.read()
            else:
                await asyncio.sleep(rng.random() * 0.02)
        finally:
            if way in ("reset", "silent"):
                writer.transport.abort()
            writer.close()
        self.done[way] += 1

    async def _abort(self, rid: str) -> None:
        reader, writer = await asyncio.open_connection(self._host, self._port)
        writer.write(message("/abort_request", {"rid": rid}))
        assert (await reader.read()).startswith(b"HTTP/1.1 200")
        writer.close()


def message(path: str, body: dict[str, Any]) -> bytes:
    content = json.dumps(body).encode()
    return (f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
            f"Content-Length: {len(content)}\r\n\r\n").encode() + content


def descriptors() -> Counter[str]:
    """Open files of this process, which is client and server, by kind."""
    kinds: Counter[str] = Counter()
    for entry in os.listdir("/proc/self/fd"):
        try:
            kinds[os.readlink(f"/proc/self/fd/{entry}").partition(":")[0]] += 1
        except FileNotFoundError:  # the one that lists
            continue
    return kinds


def objects() -> Counter[str]:
    """Live objects of the project's own types."""
    return Counter(f"{kind.__module__}.{kind.__qualname__}" for kind in map(type, gc.get_objects())
                   if kind.__module__.startswith("tokenrouter."))


def resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def at_rest(local: LocalServer) -> tuple[Counter[str], Counter[str], int, int, float]:
    """Once nobody knows of any request: open files, objects, threads, allocated blocks, resident memory."""
    assert local.settled(10.0)
    connections, deadline = local.http.server_state.connections, time.monotonic() + 10.0
    while local.call(lambda: len(connections)) and time.monotonic() < deadline:
        time.sleep(0.02)
    for command in ("reset_stats", "flush_cache"):  # what is kept on purpose, until it is reported or room is needed
        local.ask(command)
    for _ in range(3):
        gc.collect()
    return descriptors(), objects(), threading.active_count(), sys.getallocatedblocks(), resident_mb()


def test_nothing_is_left_of_a_thousand_requests_however_their_clients_leave(
        monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.WARNING, "tokenrouter.server")  # pytest keeps what is logged
    monkeypatch.setattr(lifecycle, "REMEMBERED_ENDS", 100)  # as many as there will be before it is measured
    with serving("server.observe_s=0.2") as local:
        crowd = Crowd(local)
        crowd.send(0, 150)  # what is made once, and kept, is made now
        before = at_rest(local)
        crowd.done.clear()
        crowd.send(150, REQUESTS)
        after = at_rest(local)
        assert crowd.done.total() == REQUESTS and min(crowd.done[way] for way in WAYS) > REQUESTS / 10
        for name, was, now in zip(("files", "objects", "threads"), before, after, strict=False):
            assert now <= was, name  # fewer where something of another test's has ended meanwhile
        assert after[3] - before[3] < REQUESTS, "less than one block of memory a request"
        assert after[4] - before[4] < 64
        assert all(engine.capacity().free == engine.capacity().total for engine in local.engines)
        assert "sglang:num_running_reqs 0.0" in local.server.metrics.text().decode()
        print(f"\n{dict(crowd.done)}; blocks {after[3] - before[3]:+}; resident {after[4] - before[4]:+.1f} MB")

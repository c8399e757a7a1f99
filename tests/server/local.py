"""A server in this process: real front end, real subserver loops over real sockets, each in a thread; a toy model.

The models write bytes at random, keyed by all that was before: much of it is no UTF-8, and any lost, doubled or
misplaced token shows in what follows.
"""
from __future__ import annotations

import asyncio
import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
import torch
import uvicorn

import tokenrouter.engine
from tests.toy import ToyEngine, toss, toy_algorithm
from tokenrouter.cluster.build import shared_tokenizer
from tokenrouter.cluster.spec import AlgorithmSpec, ClusterSpec, EngineSpec, ModelSpec, SubserverSpec
from tokenrouter.engine.base import EngineOutput, ModelInfo, Row
from tokenrouter.server.app import Server
from tokenrouter.server.frontend import Frontend
from tokenrouter.server.settings import ServeConfig, read
from tokenrouter.subserver import __main__ as process
from tokenrouter.subserver import messages as m
from tokenrouter.subserver.mailbox import Mailbox

VOCAB, EOS, CONTEXT = 512, 2, 2000
NEVER_ENDS = 300  # a prompt that begins with this token is answered without an end of sequence
ALGORITHMS = [toy_algorithm(2), AlgorithmSpec(name="entropy", roles=["m0", "m1"], entry="m0", models=[0, 1], routers={
    "m0": {"_target_": "zoo.entropy.router.EntropySmall", "threshold": 0.5},
    "m1": {"_target_": "tokenrouter.interface.ReturnAfterOne"},
})] + [AlgorithmSpec(name=name, roles=[role], entry=role, models=[index], routers={
    role: {"_target_": "tokenrouter.interface.StayRouter"}}) for name, role, index in (
        ("slm_only", "m0", 0), ("llm_only", "m1", 1))]


def next_token(model: int, ids: Sequence[int]) -> int:
    """EOS about once in 60 tokens."""
    draw = toss(model, *ids)
    return EOS if draw % 60 == 0 and ids[0] != NEVER_ENDS else 3 + draw % (VOCAB - 3)


class ByteEngine(ToyEngine):
    """`step_s`: how long a step takes."""

    def __init__(self, model: int, step_s: float = 0.0) -> None:
        super().__init__(model, pages=1000, page_size=4)
        self.info = ModelInfo(f"m{model}", VOCAB, 4, CONTEXT, (EOS,), 1, "float32", 4, 4, "toy")
        self.step_s = step_s

    def step(self, rows: Sequence[Row]) -> EngineOutput:
        time.sleep(self.step_s)
        logits = []
        for row in rows:
            self._pool.append(row.rid, row.token_ids)
            if row.num_logits:
                ids = self._pool[row.rid].ids
                out = torch.zeros(VOCAB)
                out[next_token(self.model, ids)] = 9.0
                out[3 + toss(7, *ids[-1:]) % (VOCAB - 3)] += toss(8, *ids) % 9  # less or more sure
                logits.append(out)
        stacked = torch.stack(logits) if logits else torch.zeros(0, VOCAB)
        return EngineOutput(stacked, torch.zeros(len(logits), 4), lambda: 0.0)


class LocalServer:
    """`url`: where it listens. `call(f)`: f on the server's own thread, the only one that may touch it."""

    def __init__(self, server: Server, http: uvicorn.Server, loop: asyncio.AbstractEventLoop, url: str,
                 engines: list[ByteEngine]) -> None:
        self.server, self.http, self.url, self.engines, self._loop = server, http, url, engines, loop
        self.client = httpx.Client(base_url=url, timeout=60)

    def call(self, function: Callable[[], Any]) -> Any:
        async def run() -> Any:
            return function()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(60)

    def ask(self, command: str) -> list[dict[str, Any]]:
        future = asyncio.run_coroutine_threadsafe(self.server.dispatcher.ask(command), self._loop)
        return future.result(60)

    def settled(self, seconds: float = 10.0) -> bool:
        """Whether within that time no subserver knows any request any more."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if not any(report["active"] or report["requests"] for report in self.ask("check")):
                return not self.call(lambda: self.server.frontend.num_open)
            time.sleep(0.02)
        return False


def settings(*overrides: str) -> ServeConfig:
    return read(["algo=slm_only", "server.port=0", "sampling.temperature=0", "server.log=false", *overrides])[0]


@contextmanager
def serving(*overrides: str, step_s: float = 0.0) -> Iterator[LocalServer]:
    """Start everything; at the end all subservers must be idle and stop."""
    config = settings(*overrides)
    spec = ClusterSpec(models=[ModelSpec(name=f"m{i}", path=str(i)) for i in range(2)], algorithms=ALGORITHMS,
                       engine=EngineSpec(capacity_tokens=4000))
    tokenizer = shared_tokenizer(config.models, [])
    engines = [ByteEngine(i, step_s) for i in range(2)]
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenrouter.engine, "load_engine", lambda kind, path, **_: engines[int(path)])
        addresses = {i: f"ipc://{folder}/{i}" for i in range(-1, 2)}

        def mailbox(index: int) -> Mailbox:
            return Mailbox(index, 1, addresses[index], {i: a for i, a in addresses.items() if i != index})

        def subserver(index: int) -> None:
            box = mailbox(index)
            process._serve(SubserverSpec(index=index, epoch=1, parent=os.getppid(), core=None, capacity_tokens=4000,
                                         addresses=addresses, cluster=spec), box)
            box.close()

        front = mailbox(m.FRONT_END)
        threads = [threading.Thread(target=subserver, args=(i,)) for i in range(2)]
        for thread in threads:
            thread.start()
        frontend = Frontend(front, spec, lambda: None)
        frontend.wait_ready(60)
        started: list[Any] = []
        ready = threading.Event()
        listener = socket.create_server(("127.0.0.1", 0))

        async def serve() -> None:
            server = Server(config, frontend, tokenizer)
            http = uvicorn.Server(uvicorn.Config(server.app, log_config=None, timeout_graceful_shutdown=1))
            started.extend((server, http, asyncio.get_running_loop()))
            ready.set()
            await http._serve([listener])  # without signal handlers, which are the main thread's

        runner = threading.Thread(target=asyncio.run, args=(serve(),))
        runner.start()
        ready.wait(60)
        local = LocalServer(*started, f"http://127.0.0.1:{listener.getsockname()[1]}", engines)
        try:
            yield local
            assert local.settled(), "requests were left behind"
        finally:
            local.client.close()
            local.http.should_exit = True
            runner.join(20)
            for index in range(2):
                front.post(index, m.Control("stop"))
            front.flush()
            for thread in threads:
                thread.join(20)
            front.close()
            assert not any(thread.is_alive() for thread in [runner, *threads])

"""A host in a process of its own: behind a pipe, or behind an HTTP server that batches what comes together."""
from __future__ import annotations

import gc
import http.client
import multiprocessing
import os
import queue
import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import msgspec

from baselines.host import Ask, Host, Reply, joined
from baselines.styles import Style
from tokenrouter.cluster.placement import plan_capacity
from tokenrouter.cluster.spec import ClusterSpec
from tokenrouter.core import InputError
from tokenrouter.engine.base import ModelInfo
from tokenrouter.subserver.idle import SPIN_S, own_core, spin


class _Command(msgspec.Struct, array_like=True, tag=True):
    pass


class _Start(_Command):
    vocab_size: int
    eos_token_ids: list[int]


class _Step(_Command):
    asks: list[Ask]


class _Append(_Command):
    asks: list[Ask]


class _End(_Command):
    rids: list[str]


class _Ready(msgspec.Struct):
    """The first message from a host's process: what it has, or why it has nothing."""

    info: ModelInfo | None = None
    capacity: int = 0
    port: int = 0
    error: str = ""
    bad_input: bool = False


_Commands = _Start | _Step | _Append | _End
LOCALHOST = "127.0.0.1"


class RemoteHost:
    """`Steps` in another process, which is started at once; `ready` waits for the model."""

    def __init__(self, spec: ClusterSpec, role: int, style: Style) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process: BaseProcess = context.Process(
            target=_run, args=(theirs, msgspec.json.encode(spec), role, msgspec.json.encode(style)), daemon=True,
            name=f"host-{role}")
        self._process.start()
        theirs.close()  # so that its death ends the pipe
        self._awake = _awake(spec, 0, style)  # who waits is where the first model is
        self.info: ModelInfo
        self.capacity, self.port = 0, 0

    def ready(self) -> RemoteHost:
        ready = msgspec.msgpack.decode(self._pipe.recv_bytes(), type=_Ready)
        if ready.info is None:
            raise InputError(ready.error) if ready.bad_input else RuntimeError(ready.error)
        self.info, self.capacity, self.port = ready.info, ready.capacity, ready.port
        return self

    def start(self, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        self._send(_Start(vocab_size, list(eos_token_ids)))

    def step(self, asks: Sequence[Ask]) -> Reply:
        self._send(_Step(list(asks)))
        return msgspec.msgpack.decode(_receive(self._pipe, self._awake), type=Reply)

    def append(self, asks: Sequence[Ask]) -> None:
        self._send(_Append(list(asks)))
        _receive(self._pipe, self._awake)

    def end(self, rids: Sequence[str]) -> None:
        self._send(_End(list(rids)))

    def _send(self, command: _Command) -> None:
        self._pipe.send_bytes(msgspec.msgpack.encode(command))


class HttpHost:
    """`Steps` over HTTP, as clients in many threads use it; the server is in `remote`'s process."""

    def __init__(self, remote: RemoteHost) -> None:
        self.info, self.capacity = remote.info, remote.capacity
        self._remote, self._port, self._own = remote, remote.port, threading.local()

    def start(self, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        self._remote.start(vocab_size, eos_token_ids)

    def step(self, asks: Sequence[Ask]) -> Reply:
        return msgspec.json.decode(self._post(_Step(list(asks))), type=Reply)

    def append(self, asks: Sequence[Ask]) -> None:
        self._post(_Append(list(asks)))

    def end(self, rids: Sequence[str]) -> None:
        self._post(_End(list(rids)))

    def _post(self, command: _Command) -> bytes:
        if not hasattr(self._own, "connection"):
            self._own.connection = http.client.HTTPConnection(LOCALHOST, self._port)
        self._own.connection.request("POST", "/", msgspec.json.encode(command))
        response = self._own.connection.getresponse()
        body: bytes = response.read()
        if response.status != 200:
            raise RuntimeError(body.decode())
        return body


def make_host(spec: ClusterSpec, role: int, style: Style) -> Host:
    """The host of a role, in this process: loads its model."""
    from tokenrouter.engine import load_engine

    model, engine = spec.models[role], spec.engine
    options = {**engine.options_of(model.name), "prefix_cache": style.prefix_cache}
    if "lanes" in options:  # they would be filled anew at each call
        options["lanes"] = options["lanes"] and style.keeps(role)
    loaded = load_engine(
        engine.kind, path=model.path, revision=model.revision, device=model.device, dtype=model.dtype,
        load_format=model.load_format, capacity_tokens=plan_capacity(spec)[role], **options)
    algorithm = spec.algorithms[0].build()
    host = Host(loaded, algorithm.router(algorithm.roles[role]), keep=style.keeps(role), logprobs=style.logprobs,
                chunk_tokens=engine.chunk_tokens)
    gc.collect()
    gc.freeze()  # as in a subserver
    return host


def settle_in(spec: ClusterSpec, role: int) -> None:
    """This process is the role's: its core, its threads; Ctrl-C is the driver's to handle."""
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(spec.hardware.threads)
    if spec.hardware.pin:
        os.sched_setaffinity(0, {spec.hardware.pin[role % len(spec.hardware.pin)]})


def failure(error: Exception) -> _Ready:
    bad = isinstance(error, InputError)
    return _Ready(error=str(error) if bad else f"{type(error).__name__}: {error}", bad_input=bad)


def _run(pipe: Connection, spec_json: bytes, role: int, style_json: bytes) -> None:
    """The process's main."""
    spec, style = msgspec.json.decode(spec_json, type=ClusterSpec), msgspec.json.decode(style_json, type=Style)
    server = None
    try:
        settle_in(spec, role)
        host = make_host(spec, role, style)
        if style.hosts == "http":
            server = _Server(host, spec.engine.max_batch)
        ready = _Ready(host.info, host.capacity, server.port if server else 0)
    except Exception as error:
        pipe.send_bytes(msgspec.msgpack.encode(failure(error)))
        return
    pipe.send_bytes(msgspec.msgpack.encode(ready))
    act: Callable[[Any], Reply | None] = server.act if server else lambda command: _act(host, command)
    awake = _awake(spec, role, style)
    while True:
        try:
            command = msgspec.msgpack.decode(_receive(pipe, awake), type=_Commands)
        except (EOFError, OSError):
            return
        reply = act(command)
        if isinstance(command, (_Step, _Append)):
            pipe.send_bytes(msgspec.msgpack.encode(reply))


def _awake(spec: ClusterSpec, role: int, style: Style) -> bool:
    """Whether the process of this role waits without sleeping, as a subserver does; not where threads serve HTTP."""
    alone = own_core(spec.hardware.pin, role, len(spec.models))
    return alone and style.hosts == "apart" and spec.engine.kind != "emulated"


def _receive(pipe: Connection, awake: bool) -> bytes:
    if awake:
        spin(pipe.poll, SPIN_S)
    return pipe.recv_bytes()


def _act(host: Host, command: Any) -> Reply | None:
    match command:
        case _Step():
            return host.step(command.asks)
        case _Append():
            host.append(command.asks)
        case _End():
            host.end(command.rids)
        case _Start():
            host.start(command.vocab_size, command.eos_token_ids)
    return None


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 1024  # all clients may connect at once


class _Server:
    """HTTP threads that hand what they got to the one thread that steps: all that has come, at once."""

    def __init__(self, host: Host, max_batch: int) -> None:
        self._host, self._max_batch = host, max_batch
        self._arrived: queue.SimpleQueue[tuple[Any, Future[Reply | None]]] = queue.SimpleQueue()
        server = _Http((LOCALHOST, 0), self._handler())
        self.port: int = server.server_address[1]
        threading.Thread(target=server.serve_forever, daemon=True, name="http").start()
        threading.Thread(target=self._work, daemon=True, name="steps").start()

    def act(self, command: Any) -> Reply | None:
        done: Future[Reply | None] = Future()
        self._arrived.put((command, done))
        return done.result()

    def _work(self) -> None:
        steps: list[tuple[_Step, Future[Reply | None]]] = []  # under way
        made: dict[str, Reply] = {}
        while True:
            taken = [] if steps else [self._arrived.get()]
            while not self._arrived.empty() and len(taken) + len(steps) < self._max_batch:
                taken.append(self._arrived.get())
            try:
                for command, done in taken:
                    if isinstance(command, _Step):
                        for ask in command.asks:
                            self._host.begin(ask)
                        steps.append((command, done))
                    else:
                        done.set_result(_act(self._host, command))
                if steps:
                    made |= self._host.turn()
                for command, done in steps:
                    if all(ask.rid in made for ask in command.asks):
                        done.set_result(joined([made.pop(ask.rid) for ask in command.asks]))
            except Exception as error:
                for _, done in [*taken, *steps]:
                    if not done.done():
                        done.set_exception(error)
                self._host.give_up()
                made.clear()
            steps = [(command, done) for command, done in steps if not done.done()]

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        act = self.act

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True
            wbufsize = -1

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                try:
                    code, answer = 200, msgspec.json.encode(act(msgspec.json.decode(body, type=_Commands)))
                except Exception as error:
                    code, answer = 500, f"{type(error).__name__}: {error}".encode()
                self.send_response(code)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, format: str, *arguments: Any) -> None:
                """Not one line a token."""

        return Handler

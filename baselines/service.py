"""An official execution as a service: submit, poll, stats, like the front end of tokenrouter/server/frontend.py."""
from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import msgspec

from baselines.calls import Calls
from baselines.clients import Clients
from baselines.course import Course, Ended, Tokens
from baselines.host import Steps
from baselines.lockstep import Emit, Lockstep
from baselines.remote import HttpHost, RemoteHost, failure, make_host, settle_in
from baselines.served import ServedHost, ServerAt
from baselines.styles import CLIENTS, Style
from tokenrouter.cluster.spec import ClusterSpec
from tokenrouter.core import FinishReason, InputError, SamplingParams
from tokenrouter.engine.base import ModelInfo
from tokenrouter.server import frontend
from tokenrouter.subserver.loop import TELL_S

_STOP_S = 5.0


class _Message(msgspec.Struct, array_like=True, tag=True):
    pass


class _Submit(_Message):
    rid: str
    prompt_ids: list[int]
    sampling: SamplingParams
    params: dict[str, Any]


class _Abort(_Message):
    rid: str


class _Control(_Message):
    command: str


class _Ready(_Message):
    infos: list[ModelInfo]


class _Report(_Message):
    reports: list[dict[str, Any]]


class _Failed(_Message):
    error: str
    bad_input: bool


_Asked = _Submit | _Abort | _Control
_Told = _Ready | _Report | _Failed | Tokens | Ended


class OfficialService:
    """The driver's side. What executes is in a process of its own, as the driver must not slow it.

    `clients`: how many requests can be expected at once. `servers`: one a role, where other programs host the models;
    `watch` raises RuntimeError when one of them has ended.
    """

    def __init__(
        self, spec: ClusterSpec, style: Style, clients: int, servers: Sequence[ServerAt] = (),
        watch: Callable[[], None] = lambda: None,
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        # Not a daemon, which could have no children; it ends with the pipe.
        self._process: BaseProcess = context.Process(
            target=_run, name="official",
            args=(theirs, msgspec.json.encode(spec), msgspec.json.encode(style), clients, list(servers)))
        self._process.start()
        theirs.close()
        self._count, self._watch = 0, watch
        self._events: list[frontend.Event] = []
        self._reports: list[dict[str, Any]] | None = None
        self.models: list[ModelInfo] = []
        while not self.models:
            self._receive(None)

    def submit(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, algorithm: str,
        params: Mapping[str, Any] | None = None,
    ) -> str:
        rid = f"r{self._count}"
        self._count += 1
        self._send(_Submit(rid, list(prompt_ids), sampling, dict(params or {})))
        return rid

    def abort(self, rid: str, reason: FinishReason = FinishReason.ABORT) -> None:
        self._send(_Abort(rid))

    def poll(self, timeout_s: float) -> list[frontend.Event]:
        self._watch()
        if not self._events:
            self._receive(timeout_s)
        events, self._events = self._events, []
        return events

    def reset_stats(self) -> None:
        self._send(_Control("reset_stats"))

    def stats(self) -> list[dict[str, Any]]:
        self._reports = None
        self._send(_Control("stats"))
        while self._reports is None:
            self._receive(None)
        return self._reports

    def close(self) -> None:
        self._pipe.close()
        self._process.join(_STOP_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def _send(self, message: _Message) -> None:
        try:
            self._pipe.send_bytes(msgspec.msgpack.encode(message))
        except OSError:
            self._receive(0.0)  # it says why it ended, if it could
            raise RuntimeError("the official execution's process has ended") from None

    def _receive(self, timeout_s: float | None) -> None:
        if not self._pipe.poll(timeout_s):
            return
        try:
            messages = msgspec.msgpack.decode(self._pipe.recv_bytes(), type=list[_Told])
        except (EOFError, OSError):
            raise RuntimeError("the official execution's process has ended") from None
        now = time.perf_counter()
        for message in messages:
            match message:
                case Tokens():
                    self._events.append(
                        frontend.TokenEvent(message.rid, message.position, message.token_ids, message.role, now))
                case Ended():
                    self._events.append(frontend.EndEvent(
                        message.rid, message.reason, message.num_output, message.handoffs, message.discarded,
                        message.error, now))
                case _Ready():
                    self.models = message.infos
                case _Report():
                    self._reports = message.reports
                case _Failed():
                    raise InputError(message.error) if message.bad_input else RuntimeError(message.error)


@contextmanager
def serve(
    spec: ClusterSpec, style: Style, clients: int, servers: Sequence[ServerAt] = (),
    watch: Callable[[], None] = lambda: None,
) -> Iterator[OfficialService]:
    """Arguments as OfficialService's."""
    refuse_drafts(spec)
    service = OfficialService(spec, style, clients, servers, watch)
    try:
        yield service
    finally:
        service.close()


def refuse_drafts(spec: ClusterSpec) -> None:
    algorithm = spec.algorithms[0].build()
    if any(algorithm.router(role).drafts for role in algorithm.roles):
        raise InputError(f"algo={algorithm.name}: makes drafts; allowed with this system are algorithms that decide "
                         "about each token by itself")


def _run(pipe: Connection, spec_json: bytes, style_json: bytes, clients: int, servers: Sequence[ServerAt]) -> None:
    """The executing process's main."""

    send = _Outbox(pipe).send
    try:
        spec, style = msgspec.json.decode(spec_json, type=ClusterSpec), msgspec.json.decode(style_json, type=Style)
        _Execution(spec, style, clients, servers, send).run(pipe)
    except (EOFError, OSError):  # the driver is gone
        pass
    except Exception as error:
        why = failure(error)
        send([_Failed(why.error, why.bad_input)])


class _Outbox:
    """To the driver. As a subserver's: tokens that follow others within TELL_S wait for the next ones of any request,
    as each sending wakes the driver's threads; none waits beyond its request's end."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe, self._one = pipe, threading.Lock()
        self._waiting: list[Any] = []
        self._sent = 0.0

    def send(self, messages: Sequence[Any]) -> None:
        with self._one:
            self._waiting += messages
            now = time.perf_counter()
            if now - self._sent >= TELL_S or any(not isinstance(m, Tokens) or m.position == 0 for m in messages):
                self._pipe.send_bytes(msgspec.msgpack.encode(self._waiting))
                self._waiting, self._sent = [], now


class _Execution:
    def __init__(
        self, spec: ClusterSpec, style: Style, clients: int, servers: Sequence[ServerAt], send: Any
    ) -> None:
        # A dispatcher too: it mostly waits for the first model, and free to run anywhere it is a sixth slower.
        settle_in(spec, 0)
        self._send = send
        self._algorithm = spec.algorithms[0].build()
        self._hosts = _hosts(spec, style, servers)
        infos = [host.info for host in self._hosts]
        vocab_size = min(info.vocab_size for info in infos)
        self._eos = frozenset(token for info in infos for token in info.eos_token_ids)
        for host in self._hosts:
            host.start(vocab_size, sorted(self._eos))
        self._context = min(min(info.context_length for info in infos), min(host.capacity for host in self._hosts))
        self._routers = [self._algorithm.router(role) for role in self._algorithm.roles]  # for what they send
        self._stats = [Calls() for _ in infos]
        self._executor = make_executor(self._hosts, style, self._stats, send, spec.engine.max_batch, clients)
        send([_Ready(infos)])

    def run(self, pipe: Connection) -> None:
        due = None
        while True:
            while pipe.poll(due):
                self._handle(msgspec.msgpack.decode(pipe.recv_bytes(), type=_Asked))
                due = 0.0
            due = self._executor.turn()

    def _handle(self, message: Any) -> None:
        match message:
            case _Submit():
                self._submit(message)
            case _Abort():
                self._executor.abort(message.rid)
            case _Control(command="reset_stats"):
                for stats in self._stats:
                    stats.__init__()  # type: ignore[misc]
            case _Control():
                self._send([_Report([self._report(role) for role in range(len(self._stats))])])

    def _submit(self, message: _Submit) -> None:
        try:
            course = Course(
                message.rid, message.prompt_ids, message.sampling, message.params, self._algorithm, self._routers,
                self._stats, eos=self._eos, context=self._context)
        except InputError as error:
            self._send([Ended(message.rid, FinishReason.ABORT, 0, 0, 0, str(error))])
        else:
            self._executor.submit(course)

    def _report(self, role: int) -> dict[str, Any]:
        """What a subserver reports (tokenrouter/subserver/stats.py); nothing is evicted here, and nobody waits."""
        return self._stats[role].report() | {
            "role": {self._algorithm.name: role}, "threshold_B": 1, "timeouts": 0, "evictions": 0, "preemptions": 0,
            "engine": {},
        }


def make_executor(
    hosts: Sequence[Steps], style: Style, stats: Sequence[Calls], emit: Emit, max_batch: int, clients: int
) -> Lockstep | Clients:
    if style.hosts == "http":
        return Clients(hosts, style, stats, emit, clients=CLIENTS if style.logprobs else clients)
    return Lockstep(hosts, style, stats, emit, max_batch=max_batch, clients=clients)


def _hosts(spec: ClusterSpec, style: Style, servers: Sequence[ServerAt]) -> list[Steps]:
    if servers:
        return [ServedHost(spec, role, at, keep=style.keeps(role)) for role, at in enumerate(servers)]
    roles = range(len(spec.algorithms[0].roles))
    if style.hosts == "together":
        return [make_host(spec, role, style) for role in roles]
    others = {role: RemoteHost(spec, role, style) for role in roles if role or style.hosts == "http"}
    first = [] if style.hosts == "http" else [make_host(spec, 0, style)]
    ready = [others[role].ready() for role in others]
    return [HttpHost(host) for host in ready] if style.hosts == "http" else [*first, *ready]

"""load.via=http: the runtime behind its HTTP server, in a process of its own, and a client that streams from it."""
from __future__ import annotations

import asyncio
import json
import logging
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import httpx
import msgspec

from bench.systems import Service
from tokenrouter.cluster.build import shared_tokenizer
from tokenrouter.cluster.cluster import Cluster
from tokenrouter.cluster.spec import ClusterSpec
from tokenrouter.config import ModelsConfig
from tokenrouter.core import FinishReason, InputError, SamplingParams
from tokenrouter.engine.base import ModelInfo
from tokenrouter.server.app import Server
from tokenrouter.server.frontend import EndEvent, Event, TokenEvent
from tokenrouter.server.serve import listen
from tokenrouter.server.serve import serve as serve_app
from tokenrouter.server.settings import read
from tokenrouter.subserver.process import die_with_parent

STOP_S = 20.0


class HttpService:
    """Streams /v1/completions on a thread of its own; times are those at which chunks reached this client."""

    def __init__(self, url: str, models: list[ModelInfo]) -> None:
        logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs every request
        self.models = models
        self._events: queue.SimpleQueue[Event | Exception] = queue.SimpleQueue()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._count = 0
        self._loop = asyncio.new_event_loop()
        self._client = httpx.AsyncClient(base_url=url, timeout=None, limits=httpx.Limits(max_connections=None))
        client = threading.Thread(target=self._loop.run_forever, daemon=True, name="http client")
        client.start()
        assert client.ident is not None
        self._clock = time.pthread_getcpuclockid(client.ident)

    def client_cpu_s(self) -> float:
        """That reading the streams has taken: the load client's work, though not in the caller's thread."""
        return time.clock_gettime(self._clock)

    def submit(self, prompt_ids: Sequence[int], sampling: SamplingParams, algorithm: str) -> str:
        rid = f"r{self._count}"
        self._count += 1
        fields = msgspec.to_builtins(msgspec.structs.asdict(sampling))
        body = {**fields, "stop_token_ids": list(sampling.stop_token_ids), "logprobs": None, "model": algorithm,
                "prompt": [list(prompt_ids)], "stream": True, "return_routing": True,
                "stream_options": {"include_usage": True}}

        async def start() -> None:
            self._tasks[rid] = asyncio.create_task(self._follow(rid, body))

        self._run(start())
        return rid

    def abort(self, rid: str, reason: FinishReason = FinishReason.ABORT) -> None:
        self._loop.call_soon_threadsafe(lambda: rid in self._tasks and self._tasks[rid].cancel())

    def poll(self, timeout_s: float) -> list[Event]:
        events: list[Event] = []
        try:
            item = self._events.get(timeout=timeout_s)
            while True:
                if isinstance(item, Exception):
                    raise RuntimeError(f"the HTTP server failed: {item}") from item
                events.append(item)
                item = self._events.get_nowait()
        except queue.Empty:
            return events

    def reset_stats(self) -> None:
        self._run(self._client.post("/reset_stats"))

    def stats(self) -> list[dict[str, Any]]:
        reports: list[dict[str, Any]] = self._run(self._client.get("/stats")).json()
        return reports

    def close(self) -> None:
        self._run(self._client.aclose())
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _follow(self, rid: str, body: dict[str, Any]) -> None:
        position = 0
        end: dict[str, Any] = {}
        reason, error = FinishReason.ABORT, None
        try:
            async with self._client.stream("POST", "/v1/completions", json=body) as response:
                if response.status_code != 200:
                    error = (await response.aread()).decode()
                async for line in response.aiter_lines():
                    if not line.startswith("data: {"):
                        continue
                    now, chunk = time.perf_counter(), json.loads(line[6:])
                    if "error" in chunk:
                        error = chunk["error"]["message"]
                    for choice in chunk.get("choices", []):
                        for event in _tokens(rid, position, choice["routing"], now):
                            self._events.put(event)
                            position += len(event.token_ids)
                        if choice["finish_reason"]:
                            reason, end = FinishReason(choice["finish_reason"]), choice["routing"]
        except asyncio.CancelledError:
            pass  # aborted: leaving the stream has told the server
        except httpx.HTTPError as failure:
            self._events.put(failure)
            return
        finally:
            self._tasks.pop(rid, None)
        self._events.put(EndEvent(rid, reason, position, end.get("handoffs", 0), end.get("discarded", 0), error,
                                  time.perf_counter()))


def _tokens(rid: str, position: int, routing: dict[str, Any], now: float) -> Iterator[TokenEvent]:
    fields = (routing.get(name, []) for name in ("token_models", "token_ids", "signals"))
    for role, token, signal in zip(*fields, strict=True):
        yield TokenEvent(rid, position, [token], role, now, signal=signal)
        position += 1


class _Hosted(msgspec.Struct):
    """What the server's process is told."""

    spec: ClusterSpec
    models: ModelsConfig


def host() -> None:
    """The server's process: reads what to serve, prints its port and what its models are, or why there are none."""
    told = msgspec.json.decode(sys.stdin.buffer.readline(), type=_Hosted)
    die_with_parent()
    config = read(["server.port=0", "server.log=false", "server.max_requests=100000", "server.timeout_s=86400",
                   "server.drain_s=1", "server.observe_s=null"])[0]
    tokenizer = shared_tokenizer(told.models, told.spec.models)
    try:
        with Cluster(told.spec) as cluster, listen(config.server) as listener:
            server = Server(config, cluster.frontend, tokenizer)
            answer = _Serving(listener.getsockname()[1], cluster.frontend.models)
            print(msgspec.json.encode(answer).decode(), flush=True)
            asyncio.run(serve_app(server, listener))
    except (RuntimeError, InputError) as error:
        print(msgspec.json.encode(_Serving(0, [], str(error))).decode(), flush=True)


class _Serving(msgspec.Struct):
    """What the server's process answers."""

    port: int
    models: list[ModelInfo]
    error: str | None = None


def serve(spec: ClusterSpec, models: ModelsConfig) -> AbstractContextManager[Service]:
    if models.tokenizer is None:
        raise InputError("load.via=http: allowed with models that have a tokenizer; inproc with all")
    return _hosted(spec, models)


@contextmanager
def _hosted(spec: ClusterSpec, models: ModelsConfig) -> Iterator[Service]:
    process = subprocess.Popen([sys.executable, "-m", "bench.systems.http"], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE,
                               env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)})
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdin.write(msgspec.json.encode(_Hosted(spec, models)) + b"\n")
        process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            raise RuntimeError("the HTTP server ended while it was starting")
        serving = msgspec.json.decode(line, type=_Serving)
        if serving.error is not None:
            raise RuntimeError(serving.error)
        service = HttpService(f"http://127.0.0.1:{serving.port}", serving.models)
        yield service
        service.close()
    finally:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


if __name__ == "__main__":
    host()

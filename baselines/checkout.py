"""A checkout of an algorithm's released code, run as a subprocess behind an adapter that its user writes.

`command` is started in the checkout's folder. It reads one JSON object a line from its standard input and writes one a
line to its standard output (to standard error it may write what it likes):

    first, from here    {"models": {"small": "FOLDER OR HUB ID", ...}, "roles": ["small", ...], "routers": {...}}
    when it can begin   {"ready": true}
    a request           {"rid": "r0", "prompt_ids": [...], "max_tokens": 512, "temperature": 0.0, "seed": 1, ...}
    tokens of it        {"rid": "r0", "token_ids": [...], "role": 0}
    and its end         {"rid": "r0", "finish_reason": "stop", "handoffs": 3, "discarded": 3}
    a request given up  {"abort": "r0"}

`role` indexes roles; finish_reason is stop, length or abort; handoffs and discarded may be left out. It ends when its
input does.
"""
from __future__ import annotations

import json
import queue
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from tokenrouter.cluster.spec import ClusterSpec
from tokenrouter.core import FinishReason, InputError, SamplingParams
from tokenrouter.engine.base import ModelInfo
from tokenrouter.server.frontend import EndEvent, Event, TokenEvent

_STOP_S = 10.0


class CheckoutService:
    """Submit and poll as the front end has them; there are no stats."""

    def __init__(self, spec: ClusterSpec, folder: Path, command: Sequence[str]) -> None:
        try:
            self._process = subprocess.Popen(
                list(command), cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        except (OSError, IndexError) as error:
            raise InputError(f"official.command={list(command)}: cannot be started ({error})") from None
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True, name="checkout").start()
        self._counts: dict[str, int] = {}
        self.models = [_unknown(model.name) for model in spec.models]
        algorithm = spec.algorithms[0]
        self._write({"models": {model.name: model.path for model in spec.models}, "roles": algorithm.roles,
                     "routers": algorithm.routers})
        if not self._next(None).get("ready"):
            raise RuntimeError('the checkout\'s first line is not {"ready": true}')

    def submit(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, algorithm: str,
        params: Mapping[str, Any] | None = None,
    ) -> str:
        rid = f"r{len(self._counts)}"
        self._counts[rid] = 0
        self._write({"rid": rid, "prompt_ids": list(prompt_ids), **msgspec.structs.asdict(sampling)})
        return rid

    def abort(self, rid: str, reason: FinishReason = FinishReason.ABORT) -> None:
        self._write({"abort": rid})

    def poll(self, timeout_s: float) -> list[Event]:
        try:
            events = [self._event(self._next(timeout_s))]
            while not self._lines.empty():
                events.append(self._event(self._next(0.0)))
            return events
        except queue.Empty:
            return []

    def reset_stats(self) -> None:
        """Nothing is counted."""

    def stats(self) -> list[dict[str, Any]]:
        return []

    def close(self) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            self._process.wait(_STOP_S)
        except (OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()

    def _event(self, line: dict[str, Any]) -> Event:
        now = time.perf_counter()
        try:
            rid = line["rid"]
            position = self._counts[rid]
            if "token_ids" in line:
                self._counts[rid] += len(line["token_ids"])
                return TokenEvent(rid, position, line["token_ids"], line["role"], now)
            return EndEvent(rid, FinishReason(line["finish_reason"]), position, line.get("handoffs", 0),
                            line.get("discarded", 0), line.get("error"), now)
        except (KeyError, ValueError) as error:
            raise RuntimeError(f"the checkout wrote {line}: not understood ({error!r})") from None

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def _next(self, timeout_s: float | None) -> dict[str, Any]:
        line = self._lines.get(timeout=timeout_s)
        if line is None:
            self._lines.put(None)  # for whoever asks again
            raise RuntimeError(f"the checkout's process has ended, exit code {self._process.wait()}")
        try:
            parsed = json.loads(line)
            if isinstance(parsed, dict):
                return parsed
        except ValueError:
            pass
        raise RuntimeError(f"the checkout wrote {line.rstrip()[:80]!r}: allowed is one JSON object a line")

    def _write(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
        except OSError:
            raise RuntimeError(f"the checkout's process has ended, exit code {self._process.wait()}") from None


def _unknown(name: str) -> ModelInfo:
    return ModelInfo(name=name, vocab_size=0, hidden_size=0, context_length=0, eos_token_ids=(), num_params=0, dtype="",
                     weight_bytes=0, bytes_per_token=0, engine="released code")


def serve(spec: ClusterSpec, path: str, command: Sequence[str]) -> AbstractContextManager[CheckoutService]:
    folder = Path(path).resolve()
    if not folder.is_dir():
        raise InputError(f"official.path={path!r}: allowed is the folder of a checkout of the released code")
    return _running(spec, folder, command)


@contextmanager
def _running(spec: ClusterSpec, folder: Path, command: Sequence[str]) -> Iterator[CheckoutService]:
    service = CheckoutService(spec, folder, command)
    try:
        yield service
    finally:
        service.close()

"""Processes of other programs' servers: started, waited for, watched and ended."""
from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import httpx

from baselines.become import become
from baselines.served import ServerAt
from baselines.servers import Sizes, flags, server_of
from tokenrouter.cluster.models import skeleton
from tokenrouter.cluster.placement import plan_capacity
from tokenrouter.cluster.spec import ClusterSpec
from tokenrouter.core import InputError
from tokenrouter.engine.torch.load import context_length

STOP_S = 10.0
_LOOK_S = 0.5
_TAIL, _ERRORS = 15, 3  # lines of a log that are shown: the last ones, and the first errors before them


class Process:
    """One server: its whole process group ends with it."""

    def __init__(self, name: str, command: list[str], environment: Mapping[str, str], core: int | None, log: Path,
                 url: str) -> None:
        self.name, self.url, self._log = name, url, log
        # By a Python of ours that becomes the server: it settles in first, and no threads of this process are copied.
        self._process: BaseProcess = multiprocessing.get_context("spawn").Process(
            target=become, args=(command, dict(environment), core, str(log), os.getpid()), daemon=True, name=name)
        self._process.start()

    def check(self) -> None:
        """RuntimeError with what its log says if it has ended."""
        if not self._process.is_alive():
            lines = self._log.read_text(errors="replace").splitlines() if self._log.exists() else []
            errors = [line for line in lines[:-_TAIL] if re.search(r"\w(Error|Exception): ", line)]
            ended = f"the server of {self.name} has ended, exit code {self._process.exitcode}; the end of its log:"
            raise RuntimeError("\n  ".join([ended, *dict.fromkeys(errors[:_ERRORS]), *lines[-_TAIL:]]))

    def healthy(self, client: httpx.Client) -> bool:
        try:
            return client.get(f"{self.url}/health").status_code == 200
        except httpx.HTTPError:
            return False

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def close(self, until: float) -> None:
        """Wait for it until that time (monotonic seconds), then end what is left of its group."""
        self._process.join(max(0.0, until - time.monotonic()))
        self._signal(signal.SIGKILL)
        self._process.join()

    def _signal(self, number: int) -> None:
        assert self._process.pid is not None
        with contextlib.suppress(ProcessLookupError):  # nobody is left, or it does not lead a group yet
            os.killpg(self._process.pid, number)
            return
        if self._process.is_alive():
            os.kill(self._process.pid, number)


class Processes:
    """The servers of a run, all of one kind."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._processes: list[Process] = []

    def add(self, process: Process) -> None:
        self._processes.append(process)

    @property
    def at(self) -> list[ServerAt]:
        return [ServerAt(self._kind, process.url) for process in self._processes]

    def check(self) -> None:
        """RuntimeError if one has ended."""
        for process in self._processes:
            process.check()

    def wait(self, limit_s: float) -> None:
        """Until all answer; RuntimeError if one ends or `limit_s` passes."""
        logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs every request
        waiting = list(self._processes)
        began = time.monotonic()
        with httpx.Client(timeout=2.0, verify=False) as client:  # not verify: certificates, which take long to load
            while waiting := [process for process in waiting if not process.healthy(client)]:
                self.check()
                if time.monotonic() - began > limit_s:
                    names = ", ".join(process.name for process in waiting)
                    raise RuntimeError(f"no answer in {limit_s:g} s (system.options.start_s) by the server of {names}")
                time.sleep(_LOOK_S)

    def close(self) -> None:
        for process in self._processes:
            process.terminate()
        until = time.monotonic() + STOP_S
        for process in self._processes:
            process.close(until)


def running(
    spec: ClusterSpec, kind: str, python: str | None, server_args: Mapping[str, Any], start_s: float
) -> AbstractContextManager[Processes]:
    """A server a role, each on the core of its model, from when the context is entered. InputError at once if the
    Python has none. Fields: conf/system/std_sglang.yaml."""
    return _started(spec, kind, _interpreter(python, kind), server_args, start_s)


@contextmanager
def _started(
    spec: ClusterSpec, kind: str, interpreter: str, server_args: Mapping[str, Any], start_s: float
) -> Iterator[Processes]:
    with tempfile.TemporaryDirectory(prefix="tokenrouter-") as folder:
        servers = Processes(kind)
        try:
            for role in range(len(spec.models)):
                servers.add(_start(spec, role, kind, interpreter, server_args, Path(folder)))
            servers.wait(start_s)
            yield servers
        finally:
            servers.close()


def _start(
    spec: ClusterSpec, role: int, kind: str, python: str, server_args: Mapping[str, Any], folder: Path
) -> Process:
    model, algorithm = spec.models[role], spec.algorithms[0].build()
    hidden = "hidden_states" in algorithm.router(algorithm.roles[role]).needs
    pin, threads, port = spec.hardware.pin, spec.hardware.threads, _free_port()
    core = pin[role % len(pin)] if pin else None
    config = skeleton(model.path, model.revision).config.get_text_config()
    sizes = Sizes(plan_capacity(spec)[role], context_length(config), config.vocab_size)
    launch = server_of(kind).launch(model, spec.engine, sizes, port, hidden=hidden, core=core)
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)} | launch.environment
    return Process(model.name, [python, *launch.arguments, *flags(server_args)], environment, core,
                   folder / f"{role}.log", f"http://127.0.0.1:{port}")


def _interpreter(python: str | None, kind: str) -> str:
    """The Python that has the server; InputError if it has not."""
    found = python or sys.executable
    looks = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({kind!r}) is None)"
    try:
        missing = subprocess.run([found, "-c", looks], stderr=subprocess.DEVNULL).returncode
    except OSError as error:
        raise InputError(f"system.options.python={found!r}: cannot be started ({error})") from None
    if missing:
        raise InputError(f"system.options.python={found!r}: has no {kind}; allowed is the Python of an environment "
                         "with it (docs/standard-serving.md)")
    return found


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
    return port

"""Starting, placing, watching and ending the subservers of one run."""
from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Literal

import msgspec

from tokenrouter.cluster.placement import plan_capacity
from tokenrouter.cluster.spec import ClusterSpec, SubserverSpec
from tokenrouter.server.frontend import Frontend
from tokenrouter.subserver import messages as m
from tokenrouter.subserver.curve import Keys
from tokenrouter.subserver.mailbox import Mailbox

log = logging.getLogger("tokenrouter.cluster")
START_TIMEOUT_S = 600.0  # a large model from a slow disk
STOP_TIMEOUT_S = 3.0
WATCH_EVERY_S = 0.2


class SubserverDied(RuntimeError):
    """A subserver ended by itself. The message names it, how it ended, and the last lines of its log."""


class Cluster:
    """The subserver processes of `spec` and the front end that speaks to them.

    Use as a context manager: on entry everything is checked, started and ready; on exit nothing is left. Raises
    InputError before anything is started, or when a model turns out to be unfit; SubserverDied if a process dies, with
    `on_death="restart"` only after `max_restarts` of them.
    """

    frontend: Frontend

    def __init__(self, spec: ClusterSpec, *, on_death: Literal["fail", "restart"] = "fail",
                 max_restarts: int = 3) -> None:
        spec.check()
        self.spec = spec
        self.restarts = 0
        self._max_restarts = max_restarts if on_death == "restart" else 0
        self._capacity = plan_capacity(spec)
        spec.check_machine()
        self._folder = tempfile.TemporaryDirectory(prefix="tokenrouter-")  # mode 0700: sockets and logs are ours
        self._keys = Keys.generate() if spec.hardware.transport == "tcp" else None
        self._processes: list[subprocess.Popen[bytes]] = []
        self._next_watch = 0.0
        self._due: dict[int, float] = {}  # when one that was started anew must be there
        self._ready = False  # all have been

    def __enter__(self) -> Cluster:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def _start(self) -> None:
        self._at = addresses = self._addresses()
        self._mailbox = Mailbox(m.FRONT_END, 1, addresses[m.FRONT_END],
                                {i: a for i, a in addresses.items() if i != m.FRONT_END}, self._keys)
        for index in range(len(self.spec.models)):
            self._processes.append(self._spawn(index, epoch=1))
        self.frontend = Frontend(self._mailbox, self.spec, self.watch, self._spare)
        self.frontend.wait_ready(START_TIMEOUT_S)
        self._ready = True

    def _spawn(self, index: int, epoch: int) -> subprocess.Popen[bytes]:
        pin = self.spec.hardware.pin
        spec = SubserverSpec(
            index=index, epoch=epoch, parent=os.getpid(), cluster=self.spec,
            core=pin[index % len(pin)] if pin else None, capacity_tokens=self._capacity[index],
            addresses=self._at, keys=self._keys)
        path = Path(self._folder.name, f"subserver{index}.json")  # holds the keys: the folder is ours alone
        path.write_bytes(msgspec.json.encode(spec))
        threads = str(self.spec.hardware.threads)
        with open(self._log(index), "ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "tokenrouter.subserver", str(path)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env=os.environ | {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads,
                                  # Whatever router this process can import, the subserver can.
                                  "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)})

    def _addresses(self) -> dict[int, str]:
        hardware, count = self.spec.hardware, len(self.spec.models)
        if hardware.addresses:
            return dict(zip(range(-1, count), hardware.addresses, strict=True))
        if hardware.transport == "ipc":
            return {i: f"ipc://{self._folder.name}/{'frontend' if i < 0 else i}" for i in range(-1, count)}
        return {i: f"tcp://127.0.0.1:{_free_port()}" for i in range(-1, count)}

    def _log(self, index: int) -> Path:
        return Path(self._folder.name, f"subserver{index}.log")

    def watch(self) -> None:
        """Restart one that has ended, or raise SubserverDied. Cheap: looks at most every WATCH_EVERY_S seconds."""
        if (now := time.monotonic()) < self._next_watch:
            return
        self._next_watch = now + WATCH_EVERY_S
        for index, process in enumerate(self._processes):
            if (code := process.poll()) is not None:
                how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
                tail = self._log(index).read_text(errors="replace").strip().splitlines()[-5:]
                died = (f"subserver {index} ({self.spec.models[index].name}) died: {how}"
                        + "".join(f"\n  | {line}" for line in tail))
                if not self._may_restart:
                    raise SubserverDied(died)
                self.restarts += 1
                log.warning("%s\n  it is started anew (%d of %d times)", died, self.restarts, self._max_restarts)
                self._processes[index] = self._spawn(index, epoch=1 + self.restarts)
                self._due[index] = now + START_TIMEOUT_S
                self.frontend.lost(index)
            elif index in self.frontend.down and now > self._due[index]:
                log.warning("subserver %d is not there after %g s", index, START_TIMEOUT_S)
                process.kill()  # found at the next look

    @property
    def _may_restart(self) -> bool:
        return self._ready and self.restarts < self._max_restarts

    def _spare(self, index: int) -> bool:
        """Whether a subserver that has failed is started anew; then it is ended, for `watch` to find."""
        if self._may_restart:
            self._processes[index].kill()
        return self._may_restart

    def close(self) -> None:
        """Stop everything: asked first, then told, then killed."""
        if hasattr(self, "_mailbox"):
            for index in range(len(self._processes)):
                self._mailbox.post(index, m.Control("stop"))
            self._mailbox.flush()
        deadline = time.monotonic() + STOP_TIMEOUT_S
        for process in self._processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()  # also reaches one that is stopped (SIGSTOP)
                process.wait()
        if hasattr(self, "_mailbox"):
            self._mailbox.close()
        self._folder.cleanup()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

"""A model in several processes: rank 0 has the loop, and the others repeat what it does to SGLang.

Sampling, routing and promises of room are rank 0's alone. What it does to sequences is told to the followers in order,
together with the next pass over the layers, for which they have to be in time.
"""
from __future__ import annotations

import atexit
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
import torch

from tokenrouter.engine.memory import check_shards
from tokenrouter.engine.sglang import calls as c
from tokenrouter.engine.sglang.follower import FollowerSpec
from tokenrouter.engine.sglang.options import nodes
from tokenrouter.engine.sglang.runtime import Append, Options, Runtime, Shard, check_version

GRACE_S = 2.0  # in which rank 0 may say by itself why it ends, when a follower has died
LOADING_GRACE_S = 30.0  # the same while models load: what stops one rank mostly stops all, and rank 0 says it best


class FollowerDied(RuntimeError):
    """Rank 0 cannot go on without it."""


class Followers:
    """The other ranks' processes on this machine. When one of them dies, so does this process."""

    def __init__(self, specs: Iterable[FollowerSpec]) -> None:
        self.loading = True
        self._died: list[str] = []
        self._closed = threading.Event()
        self._processes: list[subprocess.Popen[bytes]] = []
        atexit.register(self.close)
        for spec in specs:
            process = subprocess.Popen(
                [sys.executable, "-m", "tokenrouter.engine.sglang.follower", msgspec.json.encode(spec).decode()],
                env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)})
            self._processes.append(process)
            threading.Thread(target=self._watch, args=(process, spec.shard.rank), daemon=True).start()

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def _watch(self, process: subprocess.Popen[bytes], rank: int) -> None:
        """Rank 0 may be idle, or in a kernel that waits for the dead one for ever: it is ended from here."""
        code = process.wait()
        if self._closed.is_set():
            return
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
        self._died.append(f"rank {rank} of the model died: {how}")
        if not self._closed.wait(LOADING_GRACE_S if self.loading else GRACE_S):
            print(f"{FollowerDied.__name__}: {self._died[0]}", file=sys.stderr, flush=True)
            os._exit(1)

    @contextlib.contextmanager
    def needed(self) -> Iterator[None]:
        """Turns an error that comes of the death of a follower into FollowerDied."""
        try:
            yield
        except RuntimeError as error:
            deadline = time.monotonic() + GRACE_S / 2  # its connections break before it is gone
            while not self._died and time.monotonic() < deadline:
                time.sleep(0.01)
            if self._died:
                raise FollowerDied(self._died[0]) from error
            raise

    def close(self) -> None:
        self._closed.set()
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()


class Leader:
    """Rank 0's Runtime: what changes sequences is told to the followers, all else is the Runtime's own."""

    def __init__(self, runtime: Runtime, followers: Followers) -> None:
        self.followers = followers
        self._runtime = runtime
        self._channel = c.Channel()
        self._calls: list[c.Call] = [c.Begin(runtime.options)]
        followers.loading = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runtime, name)

    def open(self, rid: str) -> Any:
        self._calls.append(c.Open(rid))
        return self._runtime.open(rid)

    def adopt(self, req: Any, ids: Sequence[int]) -> int:
        length = self._runtime.adopt(req, ids)
        self._calls.append(c.Adopt(req.rid, list(ids[:length])))
        return length

    def forward(self, appends: Sequence[Append]) -> tuple[torch.Tensor, torch.Tensor]:
        self._calls.append(c.Forward([(append.req.rid, list(append.ids), append.num_logits) for append in appends]))
        with self.followers.needed():
            self._tell()
            return self._runtime.forward(appends)

    def truncate(self, req: Any, length: int) -> None:
        self._calls.append(c.Truncate(req.rid, length))
        self._runtime.truncate(req, length)

    def release(self, req: Any, committed: int) -> None:
        self._calls.append(c.Release(req.rid, committed))
        self._runtime.release(req, committed)

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        self._calls.append(c.Embed(list(token_ids.shape)))
        with self.followers.needed():
            self._tell()
            return self._runtime.embed(token_ids)

    def flush(self) -> None:
        self._calls.append(c.Flush())
        self._runtime.flush()

    def check(self, reqs: Iterable[Any]) -> None:
        """The followers check theirs, too; one that finds a leak dies of it."""
        reqs = list(reqs)
        self._calls.append(c.Check([req.rid for req in reqs]))
        with self.followers.needed():
            self._tell()
        self._runtime.check(reqs)

    def _tell(self) -> None:
        self._channel.send(self._calls)
        self._calls.clear()


def build(options: Options, size: int) -> Runtime | Leader:
    """The Runtime of rank 0 of `size`, when all ranks have loaded; those of this machine are started here."""
    if size == 1:
        return Runtime(options, Shard())
    check_version()
    check_shards("engine.options.tp_size", options.path, size, options.revision)
    machines = nodes(options.server_args, size)
    port = _free_port() if machines == 1 else None
    first, *others = (Shard(rank=rank, size=size, nodes=machines, port=port) for rank in range(size // machines))
    threads = torch.get_num_threads()
    followers = Followers(FollowerSpec(options=options, shard=shard, parent=os.getpid(), threads=threads)
                          for shard in others)
    try:
        return Leader(Runtime(options, first), followers)
    except BaseException:
        followers.close()
        raise


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

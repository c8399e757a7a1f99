"""From a configuration to a server that listens, until it is told to stop."""
from __future__ import annotations

import asyncio
import logging
import math
import os
import signal
import socket
import sys
from collections.abc import Sequence
from types import FrameType

import uvicorn

from tokenrouter.cluster.build import shared_tokenizer
from tokenrouter.cluster.cluster import Cluster
from tokenrouter.core import InputError
from tokenrouter.server.app import Server
from tokenrouter.server.guard import requests
from tokenrouter.server.settings import ServerSettings, read
from tokenrouter.waiting import Waiting, say

log = logging.getLogger("tokenrouter.server")
DONE, FAILED = 0, 1
WIND_UP_S = 5.0  # for telling clients that their requests were ended


def run(overrides: Sequence[str], waiting: Waiting) -> int:
    """The command's exit code; `waiting` ends when the models are there."""
    config, spec = read(overrides)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    tokenizer = shared_tokenizer(config.models, spec.models)
    listener = listen(config.server)
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    log.setLevel(logging.INFO)
    requests.setLevel(logging.INFO if config.server.log else logging.WARNING)
    try:
        cluster = Cluster(spec, on_death=config.cluster.on_death, max_restarts=config.cluster.max_restarts)
        names = [model.name for model in spec.models]
        say(f"starting {len(names)} model(s): {', '.join(names)}")
        waiting.what = lambda: ", ".join(cluster.frontend.loading if hasattr(cluster, "frontend") else names)
        with cluster:
            waiting.end()
            server = Server(config, cluster.frontend, tokenizer)
            host, port = listener.getsockname()[:2]
            print(f"serving {', '.join(route.id for route in server.routes)} at http://{host}:{port}/v1", flush=True)
            asyncio.run(serve(server, listener))
            failure = server.dispatcher.failure
    except RuntimeError as error:  # before anything was served
        failure = error
    finally:
        listener.close()
    if failure is not None:
        say(f"error: {failure}")
    return FAILED if failure is not None else DONE


def listen(settings: ServerSettings) -> socket.socket:
    """Bound before anything is started, so that a port that is taken is told at once."""
    try:
        family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
        listener = socket.create_server((settings.host, settings.port), family=family, backlog=1024)
        # Connections inherit it. asyncio sets it only where the protocol was named when the socket was made; without it
        # the first token waits 40 ms until the client has acknowledged the headers.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except OSError as error:
        raise InputError(f"server.host={settings.host}, server.port={settings.port}: {error.strerror}; allowed is an "
                         "address of this machine and a port that is free, or 0") from None
    return listener


async def serve(server: Server, listener: socket.socket) -> None:
    """Until a signal, after which requests under way may end, or until the cluster fails."""
    settings = server.config.server
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # uvicorn handles it, and raises it once more when all is done
    http = _Uvicorn(server, asyncio.get_running_loop(), uvicorn.Config(
        server.app, log_config=None, access_log=False, lifespan="on", timeout_keep_alive=75,
        timeout_graceful_shutdown=math.ceil(settings.drain_s + WIND_UP_S)))
    watch = asyncio.create_task(_stop_on_failure(server, http))
    try:
        await http.serve([listener])
    finally:
        watch.cancel()


class _Uvicorn(uvicorn.Server):
    """A first signal: requests under way have `server.drain_s` to end. A second: they are ended now."""

    def __init__(self, server: Server, loop: asyncio.AbstractEventLoop, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._server, self._loop = server, loop

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        end, drain_s = self._server.dispatcher.end_all, self._server.config.server.drain_s
        if self._server.draining:
            self._loop.call_soon_threadsafe(end)
            return
        self._server.draining = True
        self._loop.call_soon_threadsafe(self._loop.call_later, drain_s, end)
        self._loop.call_soon_threadsafe(log.info, "stopping: %d answer(s) under way have %g s to end",
                                        self._server.frontend.num_open, drain_s)
        super().handle_exit(sig, frame)


async def _stop_on_failure(server: Server, http: uvicorn.Server) -> None:
    await server.dispatcher.failed.wait()
    http.should_exit = True

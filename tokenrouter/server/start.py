"""tokenrouter serve algo=... models=... [group=choice] [server.field=value]: an OpenAI-compatible server.

The command. What it needs is loaded only when its first line can be shown, which is why this is not in serve.py.
"""
from __future__ import annotations

import argparse
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

DONE = 0
FIRST_S, EVERY_S = 1.0, 5.0  # until the first line about what is waited for, and between two


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("overrides", nargs="*", help="group=choice or group.field=value, as in conf/server.yaml")


def run(args: argparse.Namespace) -> int:
    """Serve until SIGTERM or Ctrl-C. Returns 1 if the cluster came to an end by itself."""
    signal.signal(signal.SIGTERM, _terminated)  # while the models load; then uvicorn's own
    with Waiting() as waiting:
        try:
            from tokenrouter.server.serve import run as serve

            return serve(args.overrides, waiting)
        except KeyboardInterrupt as asked:
            if not waiting.over:
                say(f"stopping: {waiting.what()} had not been loaded yet")
            if isinstance(asked, _Terminated):
                return DONE
            raise


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


class Waiting:
    """Says now and then what is waited for: `what`. Plain lines, whether or not there is a terminal."""

    def __init__(self) -> None:
        self.what: Callable[[], str] = lambda: "libraries"
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._tell, daemon=True)

    def __enter__(self) -> Waiting:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    @property
    def over(self) -> bool:
        return self._end.is_set()

    def end(self) -> None:
        self._end.set()
        self._thread.join()

    def _tell(self) -> None:
        began, pause = time.monotonic(), FIRST_S
        while not self._end.wait(pause):
            say(f"loading {self.what()} ({time.monotonic() - began:.0f} s)")
            pause = EVERY_S


class _Terminated(KeyboardInterrupt):
    """By SIGTERM, which is no failure."""


def _terminated(signum: int, frame: FrameType | None) -> None:
    raise _Terminated

"""tokenrouter serve algo=... models=... [group=choice] [server.field=value]: an OpenAI-compatible server.

The command. What it needs is loaded only when its first line can be shown, which is why this is not in serve.py.
"""
from __future__ import annotations

import argparse
import signal
from types import FrameType

from tokenrouter.waiting import Waiting, say

DONE = 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("overrides", nargs="*", help="group=choice or group.field=value, as in conf/server.yaml")


def run(args: argparse.Namespace) -> int:
    """Serve until SIGTERM or Ctrl-C. Returns 1 if the cluster came to an end by itself."""
    signal.signal(signal.SIGTERM, _terminated)  # while the models load; then uvicorn's own
    with Waiting(say, lambda: "libraries") as waiting:
        try:
            from tokenrouter.server.serve import run as serve

            return serve(args.overrides, waiting)
        except KeyboardInterrupt as asked:
            if not waiting.over:
                say(f"stopping: {waiting.what()} had not been loaded yet")
            if isinstance(asked, _Terminated):
                return DONE
            raise


class _Terminated(KeyboardInterrupt):
    """By SIGTERM, which is no failure."""


def _terminated(signum: int, frame: FrameType | None) -> None:
    raise _Terminated

"""What the processes of a subserver do to themselves."""
from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int | None = None, *, only: bool = False) -> None:
    """No orphan may stay behind, however the parent ends; Ctrl-C is the parent's to handle.

    `parent`: its process id, if it may have ended before this is called. Raises SystemExit if it has. `only`: SIGTERM,
    which service managers send to all of a group, is the parent's to handle as well.
    """
    for number in (signal.SIGINT, signal.SIGTERM)[: 1 + only]:
        signal.signal(number, signal.SIG_IGN)
    signal_on_death(signal.SIGKILL)
    if parent not in (None, os.getppid()):
        raise SystemExit(1)


def signal_on_death(number: int) -> None:
    """This process gets the signal when the thread that started it ends. Nothing where there is no such thing."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)


def step_back() -> None:
    """Run only in time that nobody else wants, on any core: a child inherits its parent's core and priority."""
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    os.nice(19)
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, range(os.cpu_count() or 1))

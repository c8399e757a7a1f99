"""What the processes of a subserver do to themselves."""
from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int | None = None) -> None:
    """No orphan may stay behind, however the parent ends; Ctrl-C is the parent's to handle.

    `parent`: its process id, if it may have ended before this is called. Raises SystemExit if it has.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent not in (None, os.getppid()):
        raise SystemExit(1)


def step_back() -> None:
    """Run only in time that nobody else wants, on any core: a child inherits its parent's core and priority."""
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    os.nice(19)
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, range(os.cpu_count() or 1))

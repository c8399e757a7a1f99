"""Run a command on cores that never halt.

    python bench/awake.py python bench/run.py algo=replay engine=emulated ...

A core that halts between two steps, as emulated ones let it, returns with cold caches, which on a virtual machine makes
the work of the subserver that follows several times slower. Servers on which latencies matter switch idle states off
(idle=poll); this does the same by a process for each core that only runs where nothing else wants to (SCHED_IDLE).
"""
from __future__ import annotations

import os
import subprocess
import sys
from multiprocessing import get_context


def main(command: list[str]) -> int:
    if not command:
        print("error: no command; allowed is python bench/awake.py COMMAND ...", file=sys.stderr)
        return 2
    context = get_context("spawn")
    spinners = [context.Process(target=_spin, args=(core,), daemon=True) for core in os.sched_getaffinity(0)]
    for spinner in spinners:
        spinner.start()
    try:
        return subprocess.run(command, check=False).returncode
    finally:
        for spinner in spinners:
            spinner.kill()


def _spin(core: int) -> None:
    parent = os.getppid()
    os.sched_setaffinity(0, {core})
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    while os.getppid() == parent:
        for _ in range(1_000_000):
            pass


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

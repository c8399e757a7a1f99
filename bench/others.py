"""What else this machine computed meanwhile: a figure measured beside other work says nothing of the system."""
from __future__ import annotations

import os
import time

import psutil


class Others:
    """Counts from when it is made."""

    def __init__(self) -> None:
        self._began, self._before = time.perf_counter(), _others_s()

    def cores(self) -> float:
        """Mean number of cores that were taken by what is neither this process nor one that it started, the
        hypervisor's other guests among them."""
        return max(_others_s() - self._before, 0.0) / max(time.perf_counter() - self._began, 1e-9)


def _others_s() -> float:
    """CPU seconds. What runs only where nothing else wants to (bench/awake.py) takes nothing from anybody."""
    spent = psutil.cpu_times()
    idle = spent.idle + spent.iowait + spent.guest + spent.guest_nice  # guests' time is in user's too
    here = psutil.Process()
    own = {process.pid for process in (here, *here.children(recursive=True))}
    left = sum(spent) - idle
    for process in psutil.process_iter():
        try:
            if process.pid in own:
                times = process.cpu_times()
                left -= times.user + times.system + times.children_user + times.children_system
            elif os.sched_getscheduler(process.pid) == os.SCHED_IDLE:
                left -= sum(process.cpu_times()[:2])
        except (psutil.Error, OSError):  # it has ended meanwhile
            continue
    return left

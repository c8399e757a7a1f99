"""A process of ours that becomes another program; light, as all that it imports is imported in vain."""
from __future__ import annotations

import os

from tokenrouter.subserver.process import die_with_parent


def become(command: list[str], environment: dict[str, str], core: int | None, log: str, parent: int) -> None:
    """Its main. The program leads a process group, runs on `core`, writes to `log` and does not outlive `parent`."""
    os.setsid()
    die_with_parent(parent)
    if core is not None:
        os.sched_setaffinity(0, {core})
    output = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(output, stream)
    os.execve(command[0], command, environment)

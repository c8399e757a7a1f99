"""The time that a device computes: measured, or emulated by waiting for as long as one would take, alone or shared
with other processes."""
from __future__ import annotations

import atexit
import contextlib
import fcntl
import mmap
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

_SPIN_S = 2e-4  # a sleep may end this much late: the rest is waited awake
_POLL_S = 5e-4  # how often a slowed step looks at who else is running
_SLOTS, _WORDS = 16, 4
_PID, _SINCE, _BEGAN, _ENDED = range(_WORDS)  # of a slot: owner; start of the current step or 0; the last whole step


def wait_until(deadline: float) -> None:
    """Until perf_counter reaches `deadline`."""
    while (left := deadline - time.perf_counter() - _SPIN_S) > 0:
        time.sleep(left)
    while time.perf_counter() < deadline:
        pass


class Stopwatch:
    """Times what `device` is told to do from now on until `stop`, without waiting for it before that is asked."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._began = self._mark()

    def _mark(self) -> Any:
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def stop(self) -> Callable[[], float]:
        """Waits for the device up to here, and answers the seconds that it took."""
        ended = self._mark()

        def elapsed() -> float:
            if not self._cuda:
                return float(ended - self._began)
            ended.synchronize()
            return float(self._began.elapsed_time(ended) / 1e3)

        return elapsed


class EmulatedDevice:
    """What several processes with one parent compute on at once, `factor` times slower while another one does.

    The processes tell each other through a small shared file when they began and ended, so that a step is charged
    for the time that it really shared, however late it looks.
    """

    def __init__(self, name: str, factor: float = 1.0, board: Board | None = None) -> None:
        self._factor = factor
        self._board = board if board or factor == 1 else Board(_path(name))

    @staticmethod
    def now() -> float:
        """Seconds of a clock that all processes of the machine share (CLOCK_MONOTONIC on Linux)."""
        return time.perf_counter()

    def begin(self, start: float) -> None:
        """Let others know of a step that began at `start`."""
        if self._board is not None:
            self._board.begin(start)

    def finish(self, start: float, seconds: float) -> float:
        """Wait until `seconds` of computing that began at `start` are done; returns how long that was."""
        if self._board is None:
            wait_until(start + seconds)
        else:
            self._compute_shared(self._board, start, seconds)
            self._board.end(time.perf_counter())
        return time.perf_counter() - start

    def _compute_shared(self, board: Board, last: float, left: float) -> None:
        while True:
            now = time.perf_counter()
            shared = board.busy(last, now)
            left -= now - last - shared * (1 - 1 / self._factor)
            if left <= 0:
                return
            last = now
            due = left * self._factor if board.busy(now, now + 1e-9) else left
            if due > _SPIN_S:
                time.sleep(min(due - _SPIN_S, _POLL_S))


class Board:
    """A file in which each process has a slot that all others read. It is removed when one of them ends."""

    def __init__(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            os.ftruncate(descriptor, size := _SLOTS * _WORDS * 8)
            # Aligned words of eight bytes are written whole.
            self._words = memoryview(mmap.mmap(descriptor, size)).cast("q")
            for slot in range(_SLOTS):  # what was killed left its slot as if it were computing
                if not _alive(self._words[slot * _WORDS + _PID]):
                    self._words[slot * _WORDS : (slot + 1) * _WORDS] = memoryview(bytes(_WORDS * 8)).cast("q")
            self._slot = next(slot for slot in range(_SLOTS) if not self._words[slot * _WORDS + _PID])
            self._set(_PID, os.getpid())
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # closing would not do: the map holds the file open
            os.close(descriptor)
        atexit.register(path.unlink, missing_ok=True)

    def begin(self, moment: float) -> None:
        self._set(_SINCE, round(moment * 1e9))

    def end(self, moment: float) -> None:
        # In this order a reader may see the step twice, but never misses it.
        self._set(_BEGAN, self._words[self._slot * _WORDS + _SINCE])
        self._set(_ENDED, round(moment * 1e9))
        self._set(_SINCE, 0)

    def busy(self, begin: float, end: float) -> float:
        """Seconds of [begin, end] in which any other process computed; each may have ended one step meanwhile."""
        total, reached = 0.0, begin
        for start, stop in sorted(self._steps()):
            start, stop = max(start, reached), min(stop, end)
            if stop > start:
                total += stop - start
                reached = stop
        return total

    def _steps(self) -> Iterator[tuple[float, float]]:
        for slot in range(_SLOTS):
            pid, since, began, ended = self._words[slot * _WORDS : (slot + 1) * _WORDS]
            if slot == self._slot or not pid:
                continue
            if since:
                yield since / 1e9, float("inf")
            if ended:
                yield began / 1e9, ended / 1e9

    def _set(self, word: int, value: int) -> None:
        self._words[self._slot * _WORDS + word] = value


def _alive(pid: int) -> bool:
    if not pid:
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


def _path(device: str) -> Path:
    """One file for each device of the processes that have the same parent, as a cluster's subservers do."""
    name = re.sub(r"\W", "-", device)
    return Path(tempfile.gettempdir(), f"tokenrouter-{os.getuid()}-{os.getppid()}-{name}")

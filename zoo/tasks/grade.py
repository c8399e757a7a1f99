"""Grading finished texts: in the caller where two numbers are compared, in a pool of processes where math-verify is.

An expression can keep a computer algebra system busy for ever, or crash it. It then costs its own grade, which is
null, and a new process; never the run.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import queue
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

import msgspec

from zoo.tasks import answers

_START_S = 120.0  # a process that has not come up by then will not

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Grade:
    """`correct` is None where nothing was expected or grading failed; `answer` is None where the text gives none."""

    correct: bool | None
    answer: str | None


class Grader:
    """Grades texts against expected answers. A context manager: leaving it ends its processes.

    `kind` says where the answer stands (zoo.tasks.answers.extract). `timeout_s` is for one item, in seconds.
    `compare(answer, expected)` decides what plain numbers do not, in one of `workers` processes, which are started when
    first needed and kept.
    """

    def __init__(
        self,
        kind: str,
        *,
        workers: int = min(4, os.cpu_count() or 1),
        timeout_s: float = 10.0,
        compare: Callable[[str, str], bool] = answers.verified,
    ) -> None:
        self._kind = answers.check_kind(kind)
        self._processes = [_Process(compare, timeout_s) for _ in range(workers)]

    def __enter__(self) -> Grader:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.end()

    def grade_all(self, items: Sequence[tuple[str, str | None]]) -> list[Grade]:
        """The grades of (text, expected answer) pairs, in their order."""
        given = [(answers.extract(self._kind, text), expected) for text, expected in items]
        return [Grade(correct, answer) for correct, (answer, _) in zip(self.same(given), given, strict=True)]

    def same(self, pairs: Sequence[tuple[str | None, str | None]]) -> list[bool | None]:
        """Whether each answer is the expected one: not if there is none, None if nothing is expected, or nobody knows.
        """
        found: list[bool | None] = []
        hard: dict[int, tuple[str, str]] = {}
        for index, (answer, expected) in enumerate(pairs):
            correct = None
            if expected is not None and answer is None:
                correct = False
            elif expected is not None and answer is not None:
                correct = answers.decide(self._kind, answer, expected)
                if correct is None:
                    hard[index] = (answer, expected)
            found.append(correct)
        for index, verdict in zip(hard, self._compare_all(list(hard.values())), strict=True):
            found[index] = verdict
        return found

    def _compare_all(self, pairs: list[tuple[str, str]]) -> list[bool | None]:
        free: queue.SimpleQueue[_Process] = queue.SimpleQueue()
        for process in self._processes:
            free.put(process)

        def compare(pair: tuple[str, str]) -> bool | None:
            process = free.get()
            try:
                return process.compare(*pair)
            finally:
                free.put(process)

        with ThreadPoolExecutor(len(self._processes)) as threads:  # they only wait for their processes
            return list(threads.map(compare, pairs))


class _Process:
    """A process that compares one pair at a time, and is replaced when it dies or takes too long."""

    def __init__(self, compare: Callable[[str, str], bool], timeout_s: float) -> None:
        self._compare, self._timeout_s = compare, timeout_s
        self._child: BaseProcess | None = None
        self._pipe: Connection | None = None
        self._broken = False

    def compare(self, answer: str, expected: str) -> bool | None:
        if self._broken:
            return None
        if self._child is None:
            self._start()
            if self._receive(_START_S) != b"true":
                self._broken = True
                self.end()
                log.warning("grading: a process did not start; what it had to grade has no grade")
                return None
        assert self._pipe is not None
        try:
            self._pipe.send_bytes(msgspec.json.encode((answer, expected)))
        except OSError:  # it died between two items: this one is not to blame
            self.end()
            return self.compare(answer, expected)
        reply = self._receive(self._timeout_s)
        if reply is None:
            log.warning("grading: no verdict on %.80r within %g s", answer, self._timeout_s)
            self.end()
            return None
        return msgspec.json.decode(reply, type=bool | None)

    def end(self) -> None:
        if self._child is not None and self._pipe is not None:
            self._child.kill()  # it holds nothing that needs closing
            self._child.join()
            self._pipe.close()
        self._child = self._pipe = None

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._child = context.Process(target=_serve, args=(theirs, self._compare), daemon=True, name="grader")
        self._child.start()
        theirs.close()  # so that its death ends the pipe

    def _receive(self, timeout_s: float) -> bytes | None:
        """One message, or None if the process died or took longer."""
        assert self._pipe is not None
        try:
            return self._pipe.recv_bytes() if self._pipe.poll(timeout_s) else None
        except (EOFError, OSError):
            return None


def _serve(pipe: Connection, compare: Callable[[str, str], bool]) -> None:
    """The process's main loop: pairs in, verdicts out, until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's to handle
    compare("0", "0")  # imports what it needs, before time is counted
    pipe.send_bytes(b"true")
    while True:
        try:
            answer, expected = msgspec.json.decode(pipe.recv_bytes(), type=tuple[str, str])
        except EOFError:
            return
        try:
            verdict = compare(answer, expected)
        except Exception as error:
            log.warning("grading: %.80r against %.80r: %s", answer, expected, error)
            verdict = None
        pipe.send_bytes(msgspec.json.encode(verdict))

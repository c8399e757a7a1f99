"""A client a request, each blocking on the model that it asks; the models' servers batch what comes together."""
from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from baselines.calls import Calls
from baselines.course import Course
from baselines.host import Steps
from baselines.lockstep import Emit
from baselines.styles import Style
from tokenrouter.core import FinishReason


class Clients:
    """`clients` requests are under way at once, each in a thread of its own."""

    def __init__(
        self, hosts: Sequence[Steps], style: Style, stats: Sequence[Calls], emit: Emit, *, clients: int
    ) -> None:
        self._hosts, self._style, self._stats, self._emit = hosts, style, stats, emit
        self._threads = ThreadPoolExecutor(clients, thread_name_prefix="client")
        self._one = threading.Lock()  # of the counts, and of what is sent to the driver
        self._open: dict[str, Course] = {}
        self._aborted: set[str] = set()

    def submit(self, course: Course) -> None:
        self._open[course.rid] = course
        self._threads.submit(self._serve, course)

    def abort(self, rid: str) -> None:
        if rid in self._open:
            self._aborted.add(rid)

    def turn(self) -> float | None:
        return None  # the threads go on by themselves

    def _serve(self, course: Course) -> None:
        try:
            while not course.over and course.rid not in self._aborted:
                self._step(course)
            if not course.over:
                with self._one:
                    self._emit([course.ended(FinishReason.ABORT)])
        except Exception as error:  # of one request: the others go on
            with self._one:
                self._emit([course.ended(FinishReason.ABORT, f"{type(error).__name__}: {error}")])
        finally:
            self._open.pop(course.rid)
            self._aborted.discard(course.rid)
            for host in self._hosts:
                host.end([course.rid])

    def _step(self, course: Course) -> None:
        role = course.role
        start = time.perf_counter()
        reply = self._hosts[role].step([course.ask(all_ids=not self._style.keeps(role))])
        with self._one:
            self._stats[role].call(start, reply, 1)
            self._emit(course.settle(reply.answers[0]))

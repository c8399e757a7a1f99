"""All requests step by step: one step of each model for those that it holds, one model after the other."""
from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence

from baselines.calls import Calls
from baselines.course import Course, Ended, Event
from baselines.host import Steps
from baselines.styles import Style
from tokenrouter.core import FinishReason

Emit = Callable[[list[Event]], None]
GATHER_S = 0.05  # a static batch that is not full begins when nothing has come for this long
_WATCH_S = 0.002


class Lockstep:
    """`clients`: how many requests can be expected at once; a static batch waits for as many."""

    def __init__(
        self, hosts: Sequence[Steps], style: Style, stats: Sequence[Calls], emit: Emit, *, max_batch: int, clients: int
    ) -> None:
        self._hosts, self._style, self._stats, self._emit = hosts, style, stats, emit
        self._size = max_batch if style.batch is None else min(style.batch or clients, max_batch)
        self._full = min(self._size, clients)
        self._room = min(host.capacity for host in hosts)
        self._waiting: deque[Course] = deque()
        self._live: dict[str, Course] = {}
        self._held: list[Event] = []  # ends that a static batch's caller hears of when the batch is over
        self._arrived = 0.0

    def submit(self, course: Course) -> None:
        self._waiting.append(course)
        self._arrived = time.perf_counter()

    def abort(self, rid: str) -> None:
        for course in [self._live.get(rid), *self._waiting]:
            if course is not None and course.rid == rid and not course.over:
                self._forget([course])
                self._waiting = deque(other for other in self._waiting if other is not course)
                self._emit([course.ended(FinishReason.ABORT)])

    def turn(self) -> float | None:
        """A step of each model. Returns in how many seconds the next turn is due; None if there is nothing to do."""
        self._admit()
        for role in range(len(self._hosts)):
            here = [course for course in self._live.values() if course.role == role]
            if here:
                self._step(role, here)
        if not self._live:
            self._emit_ends()
            return _WATCH_S if self._waiting else None
        return 0.0

    def _admit(self) -> None:
        if self._style.batch is not None:
            gathered = len(self._waiting) >= self._full or time.perf_counter() - self._arrived > GATHER_S
            if self._live or not gathered:
                return
        used = sum(course.most_tokens for course in self._live.values())
        while self._waiting and len(self._live) < self._size:
            course = self._waiting[0]
            used += course.most_tokens
            if used > self._room and self._live:
                return  # it fits when others have ended
            self._live[course.rid] = self._waiting.popleft()

    def _step(self, role: int, here: list[Course]) -> None:
        host, style = self._hosts[role], self._style
        start = time.perf_counter()
        reply = host.step([course.ask(all_ids=not style.keeps(role)) for course in here])
        events: list[Event] = []
        for course, answer in zip(here, reply.answers, strict=True):
            events += course.settle(answer)
        if style.appends:
            for other, told in enumerate(self._hosts):
                if other != role:
                    told.append([course.tell(other) for course in here])
        self._stats[role].call(start, reply, len(here))
        self._forget([course for course in here if course.over])
        if style.batch is not None:
            self._held += [event for event in events if isinstance(event, Ended)]
            events = [event for event in events if not isinstance(event, Ended)]
        if events:
            self._emit(events)

    def _forget(self, courses: Sequence[Course]) -> None:
        rids = [course.rid for course in courses if self._live.pop(course.rid, None)]
        if rids:
            for host in self._hosts:
                host.end(rids)

    def _emit_ends(self) -> None:
        if self._held:
            self._emit(self._held)
            self._held = []

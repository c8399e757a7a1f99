"""The front end on an asyncio loop: events go to whoever submitted the request they are about.

All on the loop's own thread: the front end's socket is watched like any other file, so that nothing is polled and
nothing is shared between threads.
"""
from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from tokenrouter.core import FinishReason, InputError
from tokenrouter.server.errors import ApiError
from tokenrouter.server.frontend import CONTROL_TIMEOUT_S, EndEvent, Event, Frontend
from tokenrouter.server.prepare import Job, bad_input

log = logging.getLogger("tokenrouter.server")
WATCH_S = 0.2  # between two looks at the subservers when nothing comes from them


class Exchange:
    """The answers of one HTTP request. `rids[i]` is job i's; events come with the job's index."""

    def __init__(self, rids: list[str], timeout_s: float) -> None:
        self.rids = rids
        self.deadline = asyncio.get_running_loop().time() + timeout_s
        self.queue: asyncio.Queue[tuple[int, Event] | Exception] = asyncio.Queue()
        self.open = set(range(len(rids)))

    async def events(self) -> AsyncIterator[list[tuple[int, Event]]]:
        """All that has come since the last time, until every answer has ended; TimeoutError if that takes too long."""
        while self.open:
            async with asyncio.timeout_at(self.deadline):
                items = [await self.queue.get()]
            while not self.queue.empty():
                items.append(self.queue.get_nowait())
            events = []
            for item in items:
                if isinstance(item, Exception):
                    raise item
                if isinstance(item[1], EndEvent):
                    self.open.discard(item[0])
                events.append(item)
            yield events


class Dispatcher:
    """`failed` is set, with `failure`, when the cluster is no more."""

    def __init__(self, frontend: Frontend, max_requests: int, retry_after_s: int) -> None:
        self.frontend = frontend
        self.failed = asyncio.Event()
        self.failure: Exception | None = None
        self._max_requests, self._retry_after_s = max_requests, retry_after_s
        self._listeners: dict[str, tuple[Exchange, int]] = {}
        self._pumped: asyncio.Future[None] | None = None
        self._asking = asyncio.Lock()

    async def run(self) -> None:
        """Until cancelled."""
        loop = asyncio.get_running_loop()
        loop.add_reader(self.frontend.fileno(), self._pump)
        try:
            while not self.failed.is_set():
                self._pump()
                await asyncio.sleep(WATCH_S)
        finally:
            loop.remove_reader(self.frontend.fileno())

    @asynccontextmanager
    async def submitted(
        self, jobs: Sequence[Job], timeout_s: float, *, limited: bool = True
    ) -> AsyncIterator[Exchange]:
        """Send requests; whichever has not ended when the context is left is aborted. `limited`: to max_requests."""
        self.check_alive()
        if limited and self.frontend.num_open + len(jobs) > self._max_requests:
            raise ApiError(429, f"{self.frontend.num_open} of at most {self._max_requests} answers are under way",
                           code="queue_full", headers={"Retry-After": str(self._retry_after_s)})
        exchange = Exchange([], timeout_s)
        try:
            for index, job in enumerate(jobs):
                rid = self.frontend.submit(job.prompt_ids, job.sampling, job.route.algorithm.name, job.params)
                exchange.rids.append(rid)
                exchange.open.add(index)
                self._listeners[rid] = (exchange, index)
            yield exchange
        except InputError as error:
            raise bad_input(error) from None
        finally:
            for index, rid in enumerate(exchange.rids):
                self._listeners.pop(rid, None)
                if index in exchange.open:
                    self.frontend.abort(rid)

    def abort(self, rid: str, reason: FinishReason = FinishReason.ABORT) -> None:
        self.frontend.abort(rid, reason)

    def abort_all(self) -> None:
        for rid in list(self._listeners):
            self.abort(rid)

    def end_all(self) -> None:
        """The server stops: what is still under way ends with an error."""
        self._tell_all(ApiError(503, "the server stopped before the answer was complete", code="draining"))

    def check_alive(self) -> None:
        if self.failure is not None:
            raise _unavailable(self.failure)

    async def ask(self, command: str) -> list[dict[str, Any]]:
        """One report a subserver."""
        async with self._asking:
            self.check_alive()
            self.frontend.request_reports(command)
            try:
                async with asyncio.timeout(CONTROL_TIMEOUT_S):
                    while (reports := self.frontend.reports(command)) is None:
                        self._pumped = self._pumped or asyncio.get_running_loop().create_future()
                        await asyncio.shield(self._pumped)
                        self.check_alive()
            except TimeoutError:
                raise ApiError(504, f"no answer to {command!r} after {CONTROL_TIMEOUT_S:g} s") from None
            return reports

    def _pump(self) -> None:
        try:
            events = self.frontend.poll(0.0)
        except Exception as error:  # whatever it is: a loop that ended in silence would leave everybody waiting
            if not isinstance(error, RuntimeError | InputError):
                log.exception("the front end failed")
            self._fail(error)
            return
        finally:
            if self._pumped is not None:
                self._pumped.set_result(None)
                self._pumped = None
        for event in events:
            if (listener := self._listeners.get(event.rid)) is not None:
                listener[0].queue.put_nowait((listener[1], event))

    def _fail(self, error: Exception) -> None:
        if self.failure is None:
            self.failure = error
            self.failed.set()
            self._tell_all(_unavailable(error))

    def _tell_all(self, error: ApiError) -> None:
        for exchange, _ in self._listeners.values():
            exchange.queue.put_nowait(error)


def _unavailable(error: Exception) -> ApiError:
    return ApiError(503, (str(error) or repr(error)).splitlines()[0], code="unavailable")

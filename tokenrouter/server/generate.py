"""The two generating routes: submit, follow, answer whole or as server-sent events."""
from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import aclosing
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from transformers import PreTrainedTokenizerBase

from tokenrouter.core import FinishReason
from tokenrouter.server.answer import Answer, Piece
from tokenrouter.server.dispatch import Dispatcher
from tokenrouter.server.errors import ApiError
from tokenrouter.server.frontend import TokenEvent
from tokenrouter.server.metrics import Metrics
from tokenrouter.server.prepare import Job
from tokenrouter.server.protocol import Generation
from tokenrouter.server.wire import Wire

encode = msgspec.json.encode
LAST_WORDS_S = 5.0  # for telling a client that its time is over
Update = tuple[int, Piece]


class Generator:
    """`running`: ids as clients see them -> the core's ids, for /abort_request."""

    def __init__(self, dispatcher: Dispatcher, tokenizer: PreTrainedTokenizerBase, metrics: Metrics,
                 timeout_s: float) -> None:
        self.running: dict[str, list[str]] = {}
        self._dispatcher, self._tokenizer, self._metrics, self._timeout_s = dispatcher, tokenizer, metrics, timeout_s

    async def respond(self, http: Request, request: Generation, jobs: Sequence[Job],
                      make_wire: Callable[[list[Answer]], Wire]) -> Response:
        answers = [Answer(job, self._tokenizer, request.stop_strings,
                          include_stop=bool(request.include_stop_str_in_output),
                          skip_special_tokens=request.skip_special_tokens is not False) for job in jobs]
        wire = make_wire(answers)
        updates = self._follow(wire, answers)
        http.state.note = note = {"id": wire.id, "model": wire.model}
        opened = await anext(updates)  # so that what is refused is refused with its status
        http.state.usage = wire.usage
        if request.stream:
            events = self._stream(note, request, wire, opened, updates)
            return EventStream(note, self._timeout_s + LAST_WORDS_S, events, updates)
        pieces = [Piece() for _ in jobs]

        async def collect() -> None:
            async for batch in updates:
                for index, piece in batch:
                    pieces[index].add(piece)

        async with aclosing(updates):
            await until_disconnect(http.receive, collect())
        return json_response(wire.whole(pieces))

    async def _stream(self, note: dict[str, Any], request: Generation, wire: Wire, opened: list[Update],
                      updates: AsyncGenerator[list[Update]]) -> AsyncGenerator[bytes]:
        options = request.stream_options
        continuous = bool(options and options.continuous_usage_stats)
        begun: set[int] = set()
        try:
            while True:
                data = []
                for index, piece in opened:
                    chunk = wire.chunk(index, piece, first=index not in begun, usage=continuous)
                    if chunk is not None:
                        begun.add(index)
                        data.append(_event(chunk))
                if data:
                    yield b"".join(data)
                opened = await anext(updates)
        except StopAsyncIteration:
            if options and options.include_usage:
                yield _event(wire.usage_chunk())
        except ApiError as error:
            note["error"] = error.code
            yield _event(error.body)
        yield b"data: [DONE]\n\n"

    async def _follow(self, wire: Wire, answers: list[Answer]) -> AsyncGenerator[list[Update]]:
        """First an empty list, once the requests are submitted; then what came, until all have ended.

        However it is left, requests that have not ended are aborted.
        """
        began, submitted, ended = time.perf_counter(), 0, set[int]()
        try:
            async with self._dispatcher.submitted([a.job for a in answers], self._timeout_s) as exchange:
                self.running[wire.id] = exchange.rids
                submitted = len(answers)
                for answer in answers:
                    self._metrics.began(answer.job)
                yield []
                async for events in exchange.events():
                    updates: list[Update] = []
                    for index, event in events:
                        answer = answers[index]
                        if isinstance(event, TokenEvent):
                            if answer.stopped:
                                continue
                            self._metrics.tokens(answer.job, event, began)
                            updates.append((index, answer.take(event)))
                            if answer.stopped:
                                self._dispatcher.abort(event.rid, FinishReason.STOP)
                            continue
                        if event.error is not None:
                            raise ApiError(500, event.error, code="generation_failed")
                        updates.append((index, answer.finish(event)))
                        if event.reason is not FinishReason.ABORT:
                            ended.add(index)
                            self._metrics.ended(answer.job, event, began)
                    yield updates
        except TimeoutError:
            self._metrics.timeouts.inc()
            raise ApiError(504, f"the request took longer than {self._timeout_s:g} s", code="timeout") from None
        finally:
            self.running.pop(wire.id, None)
            for index, answer in enumerate(answers[:submitted]):
                self._metrics.left(answer.job, ended=index in ended)


class EventStream(Response):
    """Server-sent events. When the client goes away, or all is sent, the sources are closed, the first one first.

    `note` comes to hold `disconnected` if the client went away, or has not read all after `limit_s`.
    """

    def __init__(self, note: dict[str, Any], limit_s: float, events: AsyncGenerator[bytes],
                 *sources: AsyncGenerator[Any]) -> None:
        super().__init__(media_type="text/event-stream",
                         headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._note, self._limit_s, self._events, self._sources = note, limit_s, events, sources

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def write() -> None:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async for data in self._events:
                await send({"type": "http.response.body", "body": data, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})

        try:
            async with asyncio.timeout(self._limit_s):
                await until_disconnect(receive, write())
        except (ClientGone, TimeoutError):
            self._note["disconnected"] = True
        finally:
            for source in (self._events, *self._sources):
                await source.aclose()
            if self.background is not None:
                await self.background()


class ClientGone(Exception):
    """Nobody waits for the answer any more."""


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Do `work`; if the client goes away before, cancel it and raise ClientGone."""

    async def disconnected() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(disconnected())
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        task.result()
    finally:
        for pending in (task, gone):
            pending.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + encode(value) + b"\n\n"


def json_response(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(encode(value), status, headers, media_type="application/json")

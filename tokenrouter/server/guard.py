"""What stands before the routes: keys, size limits, request ids, and errors in OpenAI's shape."""
from __future__ import annotations

import asyncio
import hmac
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress

from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from tokenrouter.server.errors import ApiError
from tokenrouter.server.generate import ClientGone, json_response
from tokenrouter.server.metrics import Metrics

log = logging.getLogger("tokenrouter.server")
requests = log.getChild("requests")  # one line of JSON each, when all is over
Handler = Callable[[Request], Awaitable[Response]]
DISCARDED_BYTES, DISCARD_S = 64 * 2**20, 10.0  # of a body that is too long, at most


class Keys:
    """Who may do what. Compared in constant time, and all of them, so that time tells nothing."""

    def __init__(self, api_keys: Sequence[str], admin_key: str | None) -> None:
        self._api, self._admin = [key.encode() for key in api_keys], admin_key.encode() if admin_key else None

    def check(self, request: Request, *, admin: bool) -> None:
        given = request.headers.get("authorization", "").removeprefix("Bearer ").encode("utf-8", "surrogateescape")
        is_admin = self._admin is not None and hmac.compare_digest(given, self._admin)
        is_user = sum(hmac.compare_digest(given, key) for key in self._api) > 0
        if admin and self._admin is None and self._api:
            raise ApiError(403, "administrative routes are shut: server.admin_key is not set", code="admin_disabled")
        allowed = is_admin if admin and self._admin is not None else is_admin or is_user or not self._api
        if not allowed:
            raise ApiError(401, "Authorization: a valid key is needed: Bearer KEY", code="invalid_api_key",
                           headers={"WWW-Authenticate": "Bearer"})


async def read_body(request: Request, limit: int) -> bytes:
    """The request's body; ApiError 413 if it is longer than `limit` bytes."""
    length, parts = request.headers.get("content-length", "0"), request.stream()
    told = length.isdecimal() and int(length[:20]) > limit
    if not told:
        data = bytearray()
        async for part in parts:
            data += part
            if len(data) > limit:
                break
        else:
            return bytes(data)
    if not told or not _asks_first(request):
        await _discard(parts)
    raise ApiError(413, f"the body is longer than {limit} bytes (server.max_body_mb)", code="body_too_large")


def _asks_first(request: Request) -> bool:
    """Whether the client sends no body before it is told to."""
    return request.headers.get("expect", "").lower() == "100-continue"


async def _discard(parts: AsyncIterator[bytes]) -> None:
    """Read on: a client that is still sending looks for no answer, and sees none where the connection is closed."""
    left = DISCARDED_BYTES
    with suppress(TimeoutError):
        async with asyncio.timeout(DISCARD_S):
            async for part in parts:
                left -= len(part)
                if left < 0:
                    return


def guarded(handler: Handler, keys: Keys, metrics: Metrics, *, admin: bool, open_to_all: bool) -> Handler:
    """The handler behind the keys, with its errors answered and its requests logged, once all is sent.

    A handler leaves in `request.state` what is logged besides: `note`, and `usage`, which is called at the end.
    """

    async def handle(request: Request) -> Response:
        began = time.perf_counter()
        request.state.note, request.state.usage = {}, dict
        try:
            if not open_to_all:
                try:
                    keys.check(request, admin=admin)
                except ApiError:
                    if not _asks_first(request):
                        await _discard(request.stream())
                    raise
            response = await handler(request)
        except ApiError as error:
            response = json_response(error.body, error.status, error.headers)
        except (ClientGone, ClientDisconnect):  # before its answer was complete; before its request was
            request.state.note["disconnected"] = True
            response = Response(status_code=499)
        except Exception:
            log.exception("%s %s", request.method, request.url.path)
            told = ApiError(500, "an error inside the server; its log says more", code="internal_error")
            response = json_response(told.body, 500)
        if response.status_code >= 400:
            metrics.refused.labels(response.status_code).inc()

        async def tell() -> None:
            took_ms = round((time.perf_counter() - began) * 1e3, 1)
            requests.info(json.dumps({
                "method": request.method, "path": request.url.path, "status": response.status_code, "ms": took_ms,
                **request.state.note, **request.state.usage()}))

        if not open_to_all:
            response.background = BackgroundTask(tell)
        return response

    return handle


async def http_error(request: Request, error: Exception) -> Response:
    """Starlette's own: no such route, method not allowed."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    headers = dict(error.headers or {}) if isinstance(error, HTTPException) else {}
    detail = error.detail if isinstance(error, HTTPException) else "an error inside the server"
    return json_response(ApiError(status, f"{request.method} {request.url.path}: {detail}").body, status, headers)

"""What stands before the routes: keys, size limits, request ids, and errors in OpenAI's shape."""
from __future__ import annotations

import hmac
import json
import logging
import time
from collections.abc import Awaitable, Callable, Sequence

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from tokenrouter.server.errors import ApiError
from tokenrouter.server.generate import ClientGone, json_response
from tokenrouter.server.metrics import Metrics

log = logging.getLogger("tokenrouter.server")
Handler = Callable[[Request], Awaitable[Response]]


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
    """The request's body; ApiError 413 as soon as it is longer than `limit` bytes."""
    too_long = ApiError(413, f"the body is longer than {limit} bytes (server.max_body_mb)", code="body_too_large")
    length = request.headers.get("content-length", "0")
    if length.isdecimal() and int(length[:20]) > limit:
        raise too_long
    data = bytearray()
    async for part in request.stream():
        data += part
        if len(data) > limit:
            raise too_long
    return bytes(data)


def guarded(handler: Handler, keys: Keys, metrics: Metrics, *, admin: bool, open_to_all: bool) -> Handler:
    """The handler behind the keys, with its errors answered and its requests logged."""

    async def handle(request: Request) -> Response:
        began = time.perf_counter()
        request.state.note = {}
        try:
            if not open_to_all:
                keys.check(request, admin=admin)
            response = await handler(request)
        except ApiError as error:
            response = json_response(error.body, error.status, error.headers)
        except (ClientGone, ClientDisconnect):  # before its answer was complete; before its request was
            response = Response(status_code=499)
        except Exception:
            log.exception("%s %s", request.method, request.url.path)
            told = ApiError(500, "an error inside the server; its log says more", code="internal_error")
            response = json_response(told.body, 500)
        if response.status_code >= 400:
            metrics.refused.labels(response.status_code).inc()
        if not open_to_all:
            log.info(json.dumps({"method": request.method, "path": request.url.path, "status": response.status_code,
                                 "ms": round((time.perf_counter() - began) * 1e3, 1), **request.state.note}))
        return response

    return handle


async def http_error(request: Request, error: Exception) -> Response:
    """Starlette's own: no such route, method not allowed."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    headers = dict(error.headers or {}) if isinstance(error, HTTPException) else {}
    detail = error.detail if isinstance(error, HTTPException) else "an error inside the server"
    return json_response(ApiError(status, f"{request.method} {request.url.path}: {detail}").body, status, headers)

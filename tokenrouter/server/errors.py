"""What goes wrong with a request, in OpenAI's shape."""
from __future__ import annotations

from typing import Any

TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error",
         504: "timeout_error"}


class ApiError(Exception):
    """Answered as {"error": {message, type, param, code}}; `param`: the field at fault, `code`: for programs."""

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None,
                 headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.param, self.code, self.headers = status, param, code, headers or {}

    @property
    def body(self) -> dict[str, Any]:
        kind = TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


def unsupported(param: str, reason: str) -> ApiError:
    return ApiError(400, f"{param}: not supported: {reason}", param=param, code="unsupported_parameter")

"""Errors as answers. This is the one place where they are translated for HTTP."""

from __future__ import annotations

import logging
from typing import Any

from lockstep.errors import LockstepError, MethodNotAllowed, Overloaded, QueueFull, Unavailable
from lockstep.server.exchange import Request, Response, answer

logger = logging.getLogger("lockstep.server")

_RETRY_AFTER_SECONDS = 1


def failure(error: LockstepError, request: Request) -> Response:
    """The answer for an error that we raised on purpose."""
    if error.status >= 500:
        _log(error, request)
    content: dict[str, Any] = {"error": error.message, "code": error.code}
    details = {name: value for name, value in error.details.items() if isinstance(value, str | int | float | list)}
    if details:
        content["details"] = details
    response = answer(content, error.status)
    if isinstance(error, QueueFull | Overloaded | Unavailable):
        seconds = error.details.get("retry_after_seconds", _RETRY_AFTER_SECONDS)
        response.headers = (*response.headers, (b"retry-after", str(seconds).encode()))
    if isinstance(error, MethodNotAllowed):
        response.headers = (*response.headers, (b"allow", ", ".join(error.details["allow"]).encode()))
    return response


def unexpected(error: Exception, request: Request) -> Response:
    """The answer for what nobody expected: the log has all of it, the client a text without insides."""
    _log(error, request)
    return answer(
        {"error": "the server failed; its log says why", "code": "internal_error", "request": request.id}, 500
    )


def _log(error: Exception, request: Request) -> None:
    # A client's pop shows a failure as an empty queue, so the log is where it is seen.
    expected = isinstance(error, LockstepError)
    logger.error(
        "request_failed",
        exc_info=None if expected else error,
        extra={
            "action": "request_failed",
            "request_id": request.id,
            "method": request.method,
            "error": str(error),
            "code": error.code if isinstance(error, LockstepError) else "internal_error",
        },
    )

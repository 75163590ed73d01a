"""Errors as answers. This is the one place where they are translated for HTTP, and logged.

While the database is away every request fails alike. A line for each would fill the disk and hide the rest; so there is
one for the first, one every now and then with how many they were, and one when it is over.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from lockstep.errors import LockstepError, MethodNotAllowed, Overloaded, QueueFull, Unavailable
from lockstep.server.exchange import Request, Response, answer

logger = logging.getLogger("lockstep.server")

_RETRY_AFTER_SECONDS = 1


class FailureLog:
    """Logs requests that fail."""

    def __init__(self, summary_seconds: float) -> None:
        self._summary_seconds = summary_seconds
        self._began = 0.0
        self._failed = 0
        """Since it began; 0 while nothing is unavailable."""
        self._told = 0

    def note(self, error: LockstepError, request: Request) -> None:
        if not isinstance(error, Unavailable):
            _log(error, request)
            return
        self._failed += 1
        if self._failed == 1:
            _log(error, request)
            self._told = 1
            self._began = asyncio.get_running_loop().time()
            self._look_later()

    def _look_later(self) -> None:
        asyncio.get_running_loop().call_later(self._summary_seconds, self._look)

    def _look(self) -> None:
        """None since the last look: it is over. One that failed alone was told of already."""
        fields = {"seconds": round(asyncio.get_running_loop().time() - self._began, 3)}
        if self._failed > self._told:
            fields |= {"failed": self._failed - self._told}
            logger.error("requests_failing", extra={"action": "requests_failing", **fields})
            self._told = self._failed
            self._look_later()
            return
        if self._failed > 1:
            fields |= {"failed": self._failed}
            logger.warning("requests_recovered", extra={"action": "requests_recovered", **fields})
        self._failed = 0


def failure(error: LockstepError, request: Request, log: FailureLog) -> Response:
    """The answer for an error that we raised on purpose."""
    if error.status >= 500:
        log.note(error, request)
    response = answer(error_content(error), error.status)
    if isinstance(error, QueueFull | Overloaded | Unavailable):
        seconds = error.details.get("retry_after_seconds", _RETRY_AFTER_SECONDS)
        response.headers = (*response.headers, (b"retry-after", str(seconds).encode()))
    if isinstance(error, MethodNotAllowed):
        response.headers = (*response.headers, (b"allow", ", ".join(error.details["allow"]).encode()))
    return response


def error_content(error: LockstepError) -> dict[str, Any]:
    content: dict[str, Any] = {"error": error.message, "code": error.code}
    details = {name: value for name, value in error.details.items() if isinstance(value, str | int | float | list)}
    if details:
        content["details"] = details
    return content


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

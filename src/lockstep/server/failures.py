"""Errors as answers. This is the one place where they are translated for HTTP, and logged.

While the database is away, every request fails in the same way. A line for each would fill the disk and hide everything
else. So the first failure is logged, then a count at intervals, and the end.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from lockstep.errors import LockstepError, MethodNotAllowed, Overloaded, QueueFull, Unauthorized, Unavailable
from lockstep.server.exchange import Request, Response, answer

logger = logging.getLogger("lockstep.server")

_RETRY_AFTER_SECONDS = 1
_PATH_LENGTH_MAX = 1000
"""A longer path is cut in the log."""


@dataclass(slots=True)
class _Spell:
    """A series of requests that fail in the same way."""

    began: float
    failed: int = 1
    told: int = 1
    """How many of them have been logged."""


class FailureLog:
    """Logs requests that fail."""

    def __init__(self, summary_seconds: float) -> None:
        self._summary_seconds = summary_seconds
        self._spells: dict[str, _Spell] = {}
        """By the code of the error."""

    def note(self, error: LockstepError, request: Request) -> None:
        spell = self._spells.get(error.code)
        if spell is not None:
            spell.failed += 1
            return
        _log(error, request)
        if isinstance(error, Unavailable):
            self._spells[error.code] = _Spell(asyncio.get_running_loop().time())
            self._look_later(error.code)

    def _look_later(self, code: str) -> None:
        asyncio.get_running_loop().call_later(self._summary_seconds, self._look, code)

    def _look(self, code: str) -> None:
        """If none failed since the last check, the outage is over. A single failure already has its line."""
        spell = self._spells[code]
        seconds = round(asyncio.get_running_loop().time() - spell.began, 3)
        if spell.failed > spell.told:
            fields = {"code": code, "failed": spell.failed - spell.told, "seconds": seconds}
            logger.error("requests_failing", extra={"action": "requests_failing", **fields})
            spell.told = spell.failed
            self._look_later(code)
            return
        if spell.failed > 1:
            fields = {"code": code, "failed": spell.failed, "seconds": seconds}
            logger.warning("requests_recovered", extra={"action": "requests_recovered", **fields})
        del self._spells[code]


def failure(error: LockstepError, request: Request, log: FailureLog) -> Response:
    """The answer for a Lockstep error."""
    if error.status >= 500:
        log.note(error, request)
    if type(error) is Overloaded:
        # During a spike most answers are this one.
        return _overloaded(error.message, **error.details)
    return _failure(error)


@lru_cache(maxsize=64)
def _overloaded(message: str, **details: Any) -> Response:
    return _failure(Overloaded(message, **details))


def _failure(error: LockstepError) -> Response:
    response = answer(error_content(error), error.status)
    if isinstance(error, QueueFull | Overloaded | Unavailable):
        seconds = error.details.get("retry_after_seconds", _RETRY_AFTER_SECONDS)
        response.headers = (*response.headers, (b"retry-after", str(seconds).encode()))
    if isinstance(error, Unauthorized):
        response.headers = (*response.headers, (b"www-authenticate", b"Bearer"))
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
    """The answer to an unexpected error: the log gets all details, the client a text without them."""
    _log(error, request)
    return answer(
        {"error": "the server failed; its log says why", "code": "internal_error", "request": request.id}, 500
    )


def _log(error: Exception, request: Request) -> None:
    # The client of a pop may show a failure as an empty queue, so the log must show it.
    expected = isinstance(error, LockstepError)
    logger.error(
        "request_failed",
        exc_info=None if expected else error,
        extra={
            "action": "request_failed",
            "request_id": request.id,
            "method": request.method,
            "path": request.path.decode("latin-1")[:_PATH_LENGTH_MAX],
            "error": str(error),
            "code": error.code if isinstance(error, LockstepError) else "internal_error",
        },
    )

"""What is sent to a server and what comes back, and how it is written and read."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Any, Literal
from urllib.parse import quote

import msgspec
from msgspec import UNSET

from lockstep.core.times import check_time
from lockstep.core.wire.times import timestamp
from lockstep.errors import InvalidRequest, LockstepError


@dataclass(frozen=True, slots=True)
class Request:
    """What to send to a server."""

    method: Literal["GET", "POST"]
    target: str
    """Path and query, ready for the wire."""
    body: bytes | None = None
    repeatable: bool = True
    """Whether it may be applied twice without harm."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back."""

    status: int
    body: bytes
    retry_after: str | None = None


class ConnectionFailed(Exception):
    """No answer came."""

    def __init__(self, reason: str, *, sent: bool) -> None:
        super().__init__(reason)
        self.sent = sent
        """Whether the server may have got the request."""


def encoded(content: Any) -> bytes:
    """The body of a request. Raises InvalidRequest for what JSON cannot hold."""
    try:
        return msgspec.json.encode(content)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidRequest(f"the request cannot be written as JSON: {error}") from error


def decoded(answer: Answer, decoder: msgspec.json.Decoder[Any]) -> Any:
    try:
        return decoder.decode(answer.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise LockstepError(f"the answer of the server cannot be read: {error}") from error


def segment(name: str) -> str:
    """A name as one segment of a path; dots alone would be taken for a way up."""
    quoted = quote(name, safe="")
    return quoted.replace(".", "%2E") if quoted in (".", "..") else quoted


def time_text(at: object, *, what: str) -> str:
    return timestamp(check_time(at, what=what))


def check_finite(number: object, *, what: str) -> None:
    """JSON has no word for what is no number: it would be sent as if it were not given."""
    if isinstance(number, float) and not isfinite(number):
        raise InvalidRequest(f"{what} must be a number, not {number}")


def or_none(value: Any) -> Any:
    return None if value is UNSET else value

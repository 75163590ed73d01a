"""What is sent to a server and what comes back, and how it is written and read."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal
from urllib.parse import quote

import msgspec
from msgspec import UNSET

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


def decoded(answer: Answer, decoder: msgspec.json.Decoder[Any]) -> Any:
    try:
        return decoder.decode(answer.body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise LockstepError(f"the answer of the server cannot be read: {error}") from error


def segment(name: str) -> str:
    """A name as one segment of a path; dots alone would be taken for a way up."""
    quoted = quote(name, safe="")
    return quoted.replace(".", "%2E") if quoted in (".", "..") else quoted


def time_text(at: datetime, *, what: str) -> str:
    if at.tzinfo is None:
        raise InvalidRequest(f"{what} must have a time zone: {at.isoformat()}")
    return timestamp(at)


def or_none(value: Any) -> Any:
    return None if value is UNSET else value

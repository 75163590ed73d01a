"""What is sent to a server and what comes back, and how it is written and read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, Literal
from urllib.parse import quote

import msgspec
from msgspec import UNSET

from lockstep.core.times import check_time
from lockstep.core.wire import delivery as wire
from lockstep.core.wire.times import timestamp
from lockstep.errors import InvalidRequest, LockstepError


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """What to send to a server."""

    method: Literal["GET", "POST"]
    target: str
    """Path and query, ready for the wire."""
    body: bytes | None = None
    repeatable: bool = True
    """Whether it may be applied twice without harm."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Beside those of every request, or in place of them."""


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """What came back."""

    status: int
    body: bytes
    retry_after: str | None = None

    @property
    def is_packed(self) -> bool:
        """Whether it has messages as columns: no JSON begins like that."""
        return self.body.startswith(wire.PACKED_MAGIC)


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


def decoded(answer: HttpAnswer, decoder: msgspec.json.Decoder[Any]) -> Any:
    try:
        return decoder.decode(answer.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise LockstepError(f"the answer of the server cannot be read: {error}") from error


def segment(name: str) -> str:
    """A name as one segment of a path."""
    return quote(name, safe="")


def time_text(at: object, *, what: str) -> str:
    return timestamp(check_time(at, what=what))


def check_finite(number: object, *, what: str) -> None:
    """JSON has no word for what is no number: it would be sent as if it were not given."""
    if isinstance(number, float) and not isfinite(number):
        raise InvalidRequest(f"{what} must be a number, not {number}")


def or_none(value: Any) -> Any:
    return None if value is UNSET else value

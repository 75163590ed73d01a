"""Requests to a server and their answers, and how they are encoded and decoded."""

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
    """A request to a server."""

    method: Literal["GET", "POST"]
    target: str
    """Path and query, encoded."""
    body: bytes | None = None
    repeatable: bool = True
    """Whether it may be applied twice without harm."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """In addition to those of every request, or instead of them."""


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """An answer."""

    status: int
    body: bytes
    retry_after: str | None = None

    @property
    def is_packed(self) -> bool:
        """Whether it has messages as columns: JSON never begins like that."""
        return self.body.startswith(wire.PACKED_MAGIC)


class ConnectionFailed(Exception):
    """No answer arrived."""

    def __init__(self, reason: str, *, sent: bool) -> None:
        super().__init__(reason)
        self.sent = sent
        """Whether the server may have received the request."""


def encoded(content: Any) -> bytes:
    """The body of a request. Raises InvalidRequest for values that JSON cannot represent."""
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
    """JSON cannot represent NaN and infinities: they would be sent as if they were not given."""
    if isinstance(number, float) and not isfinite(number):
        raise InvalidRequest(f"{what} must be a number, not {number}")


def or_none(value: Any) -> Any:
    return None if value is UNSET else value

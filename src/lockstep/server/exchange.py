"""One HTTP exchange: a request for the application, and its answer.

A request is passed on when it is complete; query strings become typed structs. Names may be spelled in two ways, and
unknown names are refused (core/wire/spelling.py).
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import parse_qsl

import msgspec

from lockstep.core.payloads import check_utf8
from lockstep.core.wire.counting import check_items
from lockstep.core.wire.spelling import belongs_elsewhere, choices, is_strict, is_unknown_field, renamed, respelled
from lockstep.errors import InvalidRequest, UnknownName
from lockstep.server.auth.callers import Caller

if TYPE_CHECKING:
    from lockstep.server.intake import Intake

T = TypeVar("T")

_REMEMBERED_BYTES_MAX = 1024
JSON = (b"content-type", b"application/json")
AS_DECLARED = (b"x-content-type-options", b"nosniff")
"""Sent with every answer, so that browsers do not guess another content type."""
_NO_CHOICE = re.compile(r"Invalid enum value .* - at `\$\.(\w+)`")
_MISSING = re.compile(r"Object missing required field `(\w+)`(?: - at `(.+)`)?")


class Disconnected(Exception):
    """The client is gone and does not wait for an answer."""


class Request:
    """A request as the routes see it."""

    __slots__ = (
        "address",
        "answer_headers",
        "body",
        "caller",
        "came_at",
        "gone",
        "headers",
        "id",
        "intake",
        "items_max",
        "method",
        "parameters",
        "path",
        "query_string",
        "route",
        "verb",
        "waiting",
    )

    def __init__(self, method: str, path: bytes, query_string: bytes, headers: Mapping[bytes, bytes], id: str) -> None:
        self.method = method
        self.path = path
        """As received."""
        self.query_string = query_string
        self.headers = headers
        """By name in lower case."""
        self.id = id
        self.body = b""
        """Complete once the request is answered."""
        self.came_at = time.perf_counter()
        self.address = ""
        """Of its client."""
        self.items_max = 1 << 62
        """Maximum number of values in its body."""
        self.intake: Intake | None = None
        """Counts the bytes that its body becomes."""
        self.route: Any = None
        """Set by the application (routing.py); None if no route matches."""
        self.caller: Caller | None = None
        """The caller; None until it is identified."""
        self.verb: str | None = None
        """The verb that its duration counts for, if that is not the verb of the route."""
        self.parameters: dict[str, str] = {}
        """The values of the route's parameters in the path, percent-decoded."""
        self.answer_headers: tuple[tuple[bytes, bytes], ...] = ()
        """Further headers of its answer, which depend on the caller (origins.py)."""
        self.gone = False
        """Whether its client has gone."""
        self.waiting: asyncio.Task[Any] | None = None
        """The task that waits on behalf of this client only."""

    def header(self, name: bytes) -> str | None:
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1")

    def query(self, kind: type[T]) -> T:
        """The query string as a struct. Raises UnknownName for a name that the struct does not have."""
        read = _remembered_query if len(self.query_string) <= _REMEMBERED_BYTES_MAX else _query
        parsed: T = read(self.query_string, kind)  # type: ignore[arg-type]
        return parsed

    def check_query(self) -> None:
        """Raises InvalidRequest if the route has no such parameters, or not with these types. Probes and browsers may
        add parameters to public routes, which take none: a liveness probe must not fail because of them."""
        if self.query_string and (self.route.query is not None or self.route.level != "public"):
            try:
                self.query(self.route.query or _NoQuery)
            except UnknownName as error:
                raise belongs_elsewhere(error, self.route.body, "into the body") from None

    def check_no_body(self) -> None:
        """Raises InvalidRequest if there is a body for a route that takes none. Clients may send an empty one."""
        if self.body and self.route.body is None and self.body.strip() not in _EMPTY_BODIES:
            self.json(_no_body)

    def json(self, decoder: msgspec.json.Decoder[T]) -> T:
        """The body, decoded. Raises InvalidRequest if it is not JSON, or not of the right shape."""
        if not self.body:
            raise InvalidRequest("the body is empty; a JSON document is needed")
        try:
            return decode(self.body, decoder, self.items_max)
        except UnknownName as error:
            raise belongs_elsewhere(error, self.route.query, "into the query string") from None

    def json_or(self, decoder: msgspec.json.Decoder[T], default: T) -> T:
        """The body, or a default if there is none: for routes whose fields are all optional."""
        return self.json(decoder) if self.body.strip() else default

    @contextmanager
    def while_connected(self) -> Iterator[None]:
        """Cancels the block when the client disconnects, and then raises Disconnected."""
        if self.gone:
            raise Disconnected
        self.waiting = task = asyncio.current_task()
        try:
            yield
        except asyncio.CancelledError:
            if not self.gone or task is None:
                raise
            task.uncancel()
            raise Disconnected from None
        finally:
            self.waiting = None

    def leave(self) -> None:
        """The client is gone. Only waiting is cancelled: a push or an ack that has begun is completed."""
        self.gone = True
        if self.waiting is not None:
            self.waiting.cancel()


class _NoQuery(msgspec.Struct, frozen=True):
    """The query string of a route that takes none."""


class _NoBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a route that takes none."""


_no_body = msgspec.json.Decoder(_NoBody)
_EMPTY_BODIES = (b"", b"{}", b"null")


def decode(body: bytes, decoder: msgspec.json.Decoder[T], items_max: int) -> T:
    """The body as the decoder's type. Raises InvalidRequest; UnknownName for a field that the type does not have;
    TooManyItems."""
    try:
        check_items(body, decoder.type, items_max)
        decoded = _decode(body, decoder)
        # Raw values, such as payloads, are not decoded; invalid text in one would make every answer that contains it
        # unreadable.
        check_utf8(body)
        return decoded
    except msgspec.ValidationError as error:
        raise InvalidRequest(_what_does_not_fit(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"the body is not JSON: {error}") from None
    except RecursionError:
        raise InvalidRequest("the body is nested too deeply") from None


def _decode(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    kind: Any = decoder.type
    if not is_strict(kind):
        return decoder.decode(respelled(body, kind))
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        if not is_unknown_field(error):
            raise
        return decoder.decode(respelled(body, kind))


def _what_does_not_fit(error: msgspec.ValidationError) -> str:
    """The error in the protocol's terms, where msgspec uses others."""
    missing = _MISSING.fullmatch(str(error))
    if missing is None:
        return f"the body does not fit: {error}"
    return f"{missing[1]} is required" + (f" at {missing[2]}" if missing[2] else "")


def _query(query_string: bytes, kind: type[Any]) -> Any:
    try:
        pairs = parse_qsl(query_string.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=64)
    except (UnicodeDecodeError, ValueError) as error:
        raise InvalidRequest(f"the query string is not valid: {error}") from None
    try:
        return msgspec.convert(renamed(pairs, kind, what="query parameter"), kind, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"the query does not fit: {error}{_choices(error, kind)}") from None


def _choices(error: msgspec.ValidationError, kind: type[Any]) -> str:
    """The values that a parameter may have, if it is one of few."""
    found = _NO_CHOICE.fullmatch(str(error))
    return "" if found is None else f"; it is one of {', '.join(choices(kind, found[1]))}"


_remembered_query = lru_cache(maxsize=4096)(_query)
"""Consumers repeat the same requests, so short query strings are cached in decoded form."""


class Response:
    """A status, headers and a body."""

    __slots__ = ("body", "headers", "status", "undelivered")

    def __init__(self, status: int, body: bytes = b"", *headers: tuple[bytes, bytes]) -> None:
        self.status = status
        self.body = body
        self.headers = headers
        self.undelivered: Callable[[], None] | None = None
        """Releases the leases in the answer if the client has gone before it could be sent."""


_EVENT_HEADERS = (
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # otherwise nginx buffers events
)


class EventStream(Response):
    """Server-sent events, as long as the client listens."""

    __slots__ = ("events",)

    def __init__(self, events: AsyncGenerator[bytes]) -> None:
        super().__init__(200, b"", *_EVENT_HEADERS)
        self.events = events


_encode = msgspec.json.Encoder(decimal_format="number").encode


def answer(content: object, status: int = 200) -> Response:
    """JSON, from anything that msgspec encodes."""
    return Response(status, _encode(content), JSON)


NOTHING = Response(204)

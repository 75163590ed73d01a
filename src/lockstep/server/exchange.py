"""One HTTP exchange: what the application needs of a request, and what it answers.

A request is handed over when it is whole; query strings become typed structs. Names may be spelled in two ways, and
names that nobody knows are refused (core/wire/spelling.py).
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, TypeVar
from urllib.parse import parse_qsl

import msgspec

from lockstep.core.payloads import check_utf8
from lockstep.core.wire.spelling import belongs_elsewhere, is_strict, is_unknown_field, renamed, respelled
from lockstep.errors import InvalidRequest, UnknownName

T = TypeVar("T")

_REMEMBERED_BYTES_MAX = 1024
JSON = (b"content-type", b"application/json")
ANYWHERE = (b"access-control-allow-origin", b"*")
"""With every answer: pages from anywhere may ask."""
_MISSING = re.compile(r"Object missing required field `(\w+)`(?: - at `(.+)`)?")


class Disconnected(Exception):
    """The client went away. Nobody waits for an answer."""


class Request:
    """A request as the routes see it."""

    __slots__ = ("_gone", "body", "came_at", "headers", "id", "method", "parameters", "path", "query_string", "route")

    def __init__(self, method: str, path: bytes, query_string: bytes, headers: Mapping[bytes, bytes], id: str) -> None:
        self.method = method
        self.path = path
        """As it came over the wire."""
        self.query_string = query_string
        self.headers = headers
        """By name in lower case."""
        self.id = id
        self.body = b""
        """Whole, once the request is answered."""
        self.came_at = time.perf_counter()
        self.route: Any = None
        """Found by the application (routing.py); None if the path leads nowhere."""
        self.parameters: dict[str, str] = {}
        """What the path has for the names in the route, percent-decoded."""
        self._gone: asyncio.Future[None] | None = None

    def header(self, name: bytes) -> str | None:
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1")

    def query(self, kind: type[T]) -> T:
        """The query string as a struct. Raises UnknownName for a name that the struct does not have."""
        read = _remembered_query if len(self.query_string) <= _REMEMBERED_BYTES_MAX else _query
        parsed: T = read(self.query_string, kind)  # type: ignore[arg-type]
        return parsed

    def check_query(self) -> None:
        """Raises InvalidRequest if the route has no such parameters, or not of these types. Probes and browsers add
        some of their own to public routes, which take none: a liveness probe must not fail for that."""
        if self.query_string and (self.route.query is not None or self.route.level != "public"):
            try:
                self.query(self.route.query or _NoQuery)
            except UnknownName as error:
                raise belongs_elsewhere(error, self.route.body, "into the body") from None

    def check_no_body(self) -> None:
        """Raises InvalidRequest if a body says something to a route that takes none. Clients may send an empty one."""
        if self.body and self.route.body is None and self.body.strip() not in _EMPTY_BODIES:
            self.json(_no_body)

    def json(self, decoder: msgspec.json.Decoder[T]) -> T:
        """The body, decoded. Raises InvalidRequest for what is no JSON, or not of the right shape."""
        if not self.body:
            raise InvalidRequest("the body is empty; a JSON document is needed")
        try:
            return decode(self.body, decoder)
        except UnknownName as error:
            raise belongs_elsewhere(error, self.route.query, "into the query string") from None

    def json_or(self, decoder: msgspec.json.Decoder[T], default: T) -> T:
        """For routes whose fields are all optional: clients send no body at all then."""
        return self.json(decoder) if self.body.strip() else default

    async def disconnected(self) -> None:
        """Returns when the client has gone."""
        if self._gone is None:
            self._gone = asyncio.get_running_loop().create_future()
        await self._gone

    def tell_disconnected(self) -> None:
        if self._gone is not None and not self._gone.done():
            self._gone.set_result(None)


class _NoQuery(msgspec.Struct, frozen=True):
    """The query string of a route that takes none."""


class _NoBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a route that takes none."""


_no_body = msgspec.json.Decoder(_NoBody)
_EMPTY_BODIES = (b"", b"{}", b"null")


def decode(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """The body as the decoder's type. Raises InvalidRequest; UnknownName for a field that the type does not have."""
    try:
        decoded = _decode(body, decoder)
        # What stays raw, such as payloads, is not looked into, and would make every answer unreadable that it is in.
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
    """In the words of the protocol, where those of msgspec are others."""
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
        raise InvalidRequest(f"the query does not fit: {error}") from None


_remembered_query = lru_cache(maxsize=4096)(_query)
"""Consumers ask the same again and again, so what a short query string means is remembered."""


class Response:
    """A status, headers and a body."""

    __slots__ = ("body", "headers", "status", "undelivered")

    def __init__(self, status: int, body: bytes = b"", *headers: tuple[bytes, bytes]) -> None:
        self.status = status
        self.body = body
        self.headers = headers
        self.undelivered: Callable[[], None] | None = None
        """What is to be done if the client has gone before it could be sent."""


_encode = msgspec.json.Encoder(decimal_format="number").encode


def answer(content: object, status: int = 200) -> Response:
    """JSON, from anything that msgspec encodes."""
    return Response(status, _encode(content), JSON)


NOTHING = Response(204)

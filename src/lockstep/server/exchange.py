"""One HTTP exchange: what the application needs of a request, and what it answers.

Bodies are read at once, under a limit of size; query strings become typed structs.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, MutableMapping
from functools import lru_cache
from typing import Any, TypeVar
from urllib.parse import parse_qsl

import msgspec

from lockstep.errors import InvalidRequest, TooLarge

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
T = TypeVar("T")

ANSWER = "lockstep.answer"
"""The ASGI extension by which a server takes a whole answer as bytes (protocol.py)."""
_REMEMBERED_BYTES_MAX = 1024
JSON = (b"content-type", b"application/json")
_MISSING = re.compile(r"Object missing required field `(\w+)`(?: - at `(.+)`)?")


class Disconnected(Exception):
    """The client went away before its request was whole. Nobody waits for an answer."""


class Request:
    """A request as the routes see it."""

    __slots__ = ("_body_bytes_max", "_receive", "_scope", "id", "parameters")

    def __init__(self, scope: Scope, receive: Receive, *, id: str, body_bytes_max: int) -> None:
        self._scope = scope
        self._receive = receive
        self._body_bytes_max = body_bytes_max
        self.id = id
        self.parameters: dict[str, str] = {}
        """What the path has for the names in the route, percent-decoded."""

    @property
    def method(self) -> str:
        return str(self._scope["method"])

    def header(self, name: bytes) -> str | None:
        for key, value in self._scope["headers"]:
            if key == name:
                return str(value.decode("latin-1"))
        return None

    def query(self, kind: type[T]) -> T:
        """The query string as a struct. Names that the struct does not have are ignored."""
        query_string: bytes = self._scope["query_string"]
        read = _remembered_query if len(query_string) <= _REMEMBERED_BYTES_MAX else _query
        parsed: T = read(query_string, kind)  # type: ignore[arg-type]
        return parsed

    async def body(self) -> bytes:
        """The whole body. Raises TooLarge, Disconnected."""
        self._check_length()
        message = await self._next()
        chunk: bytes = message.get("body", b"")
        if not message.get("more_body"):
            self._check_size(len(chunk))
            return chunk
        chunks, size = [chunk], len(chunk)
        while message.get("more_body"):
            message = await self._next()
            chunks.append(message.get("body", b""))
            size += len(chunks[-1])
            self._check_size(size)
        return b"".join(chunks)

    async def json(self, decoder: msgspec.json.Decoder[T]) -> T:
        """The body, decoded. Raises InvalidRequest for what is no JSON, or not of the right shape."""
        return decode_needed(await self.body(), decoder)

    async def json_or(self, decoder: msgspec.json.Decoder[T], default: T) -> T:
        """For routes whose fields are all optional: clients send no body at all then."""
        body = await self.body()
        return decode(body, decoder) if body.strip() else default

    async def disconnected(self) -> None:
        """Returns when the client has gone. The body must have been read, or there must be none."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def _next(self) -> MutableMapping[str, Any]:
        # No time-out here: a timer for every request would cost more than reading it. The protocol looks after that.
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise Disconnected
        return message

    def _check_length(self) -> None:
        length = self.header(b"content-length")
        if length is not None and length.isdigit():
            self._check_size(int(length))

    def _check_size(self, size: int) -> None:
        if size > self._body_bytes_max:
            raise TooLarge(f"the body has more than {self._body_bytes_max} bytes (body_bytes_max)")


def decode_needed(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """For routes that need a body. Raises InvalidRequest."""
    if not body:
        raise InvalidRequest("the body is empty; a JSON document is needed")
    return decode(body, decoder)


def decode(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise InvalidRequest(_what_does_not_fit(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"the body is not JSON: {error}") from None
    except RecursionError:
        raise InvalidRequest("the body is nested too deeply") from None


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
        return msgspec.convert(dict(pairs), kind, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"the query does not fit: {error}") from None


_remembered_query = lru_cache(maxsize=4096)(_query)
"""Consumers ask the same again and again, so what a short query string means is remembered."""


class Response:
    """A status, headers and a body."""

    __slots__ = ("body", "headers", "status")

    def __init__(self, status: int, body: bytes = b"", *headers: tuple[bytes, bytes]) -> None:
        self.status = status
        self.body = body
        self.headers = headers


_encode = msgspec.json.Encoder(decimal_format="number").encode


def answer(content: object, status: int = 200) -> Response:
    """JSON, from anything that msgspec encodes."""
    return Response(status, _encode(content), JSON)


NOTHING = Response(204)

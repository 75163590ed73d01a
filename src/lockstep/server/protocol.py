"""An HTTP/1.1 connection of the server: what uvicorn calls for the bytes of a client.

It stands in for uvicorn's own, which makes an ASGI exchange of every request: with limits on slow and endless requests,
answers that leave in one piece (one system call, one packet), and nothing between the parser and the application that
a small request would have to pay for. uvicorn listens, accepts, and ends connections and tasks when it is stopped.

A request reaches the application when it is whole, so that one which never gets so far costs nothing; but its head is
shown before, and what is refused by it is not kept. Requests that a client sends without waiting for the answers are
answered one after the other. The times, also that of an idle connection, are looked at by one timer per connection,
so that a request costs no timer.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from functools import lru_cache
from http import HTTPStatus
from typing import Any

import httptools
import uvicorn
from uvicorn.server import ServerState

from lockstep.config import Config
from lockstep.errors import TooLarge
from lockstep.server.app import Application
from lockstep.server.exchange import ANYWHERE, JSON, Request, Response

logger = logging.getLogger("lockstep.server")

_REMEMBERED_BYTES_MAX = 512
_LINGER_SECONDS = 2.0
"""So long a client that is still sending may read why it was refused, before the connection is cut."""
_BEHIND_MAX = 16
"""So many small requests may wait for the answer to the one in front of them before no more are read."""
_TOO_LARGE = Response(
    413, b'{"error":"the headers are too large (request_headers_bytes_max)","code":"too_large"}', JSON
)
_TOO_SLOW = Response(
    408, b'{"error":"the request did not arrive in time (request_timeout_seconds)","code":"request_timeout"}', JSON
)
_NOT_HTTP = Response(400, b'{"error":"this is not HTTP/1.1","code":"invalid_request"}', JSON)
_BAD_URL = Response(
    400, b'{"error":"the URL is not valid; all but ASCII must be percent-encoded","code":"invalid_request"}', JSON
)
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class HttpConnection(asyncio.Protocol):
    """A client's connection, whose requests are bounded in size and time."""

    application: Application
    head_bytes_max: int
    timeout_seconds: float
    idle_seconds: float

    def __init__(
        self,
        config: uvicorn.Config,  # noqa: ARG002
        server_state: ServerState,
        app_state: dict[str, Any],  # noqa: ARG002
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """As uvicorn makes its connections."""
        self._server = server_state
        self._loop = _loop or asyncio.get_running_loop()
        self._parser: Any = httptools.HttpRequestParser(self)
        self._transport: Any = None
        self._watch: asyncio.TimerHandle | None = None
        # What arrives
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._head_bytes: int | None = 0
        """Bytes of the head that is arriving, without those that came with the request before; None while none is."""
        self._arriving: _Arriving | None = None
        """The request whose body is arriving."""
        self._since: float | None = None
        """When the head began to arrive, or the last part of the body came; None between requests."""
        self._deaf = False
        """Whether what still comes is thrown away, because the last answer has been given."""
        # What is answered
        self._answering: _Arriving | None = None
        self._behind: deque[_Arriving] = deque()
        """Whole requests that came before the one in front of them was answered."""
        self._full = False
        """Whether the client does not read what it is sent."""
        self._unsent = 0
        """Bytes that the client had not taken when this was last looked at, and since when they are so many."""
        self._unsent_since = 0.0
        self._closing = False
        """Whether the connection ends with the answer to the last request of which there is something."""
        self._idle_since: float | None = None
        """When the last answer was complete; None while there is a request."""

    @classmethod
    def of(cls, config: Config, application: Application) -> type[HttpConnection]:
        """Connections to an application, with the limits of the settings."""
        fixed = {
            "application": application,
            # Room for the request line: the application looks at the headers themselves.
            "head_bytes_max": config.request_headers_bytes_max * 2,
            "timeout_seconds": config.request_timeout_seconds,
            "idle_seconds": config.keep_alive_seconds,
        }
        return type("ConfiguredConnection", (cls,), fixed)

    # Called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._server.connections.add(self)  # type: ignore[arg-type]
        # The first head must come, too.
        self._since = self._loop.time()
        self._watch = self._loop.call_later(self._watch_seconds(), self._look)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._server.connections.discard(self)
        if self._watch is not None:
            self._watch.cancel()
        self._parser = None  # it refers to us
        self._behind.clear()
        if self._answering is not None:
            self._answering.request.tell_disconnected()

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        if self._head_bytes is not None:
            self._head_bytes += len(data)
        try:
            self._parse(memoryview(data))
        except httptools.HttpParserError as error:
            if not self._closing:
                self._refuse_unreadable(error)
            return
        if self._head_bytes is None:
            if self._since is not None:
                self._since = self._loop.time()
        elif self._head_bytes > self.head_bytes_max:
            self._refuse(_TOO_LARGE)

    def _parse(self, data: memoryview) -> None:
        """Raises HttpParserError."""
        while True:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                if not self._wants_upgrade():
                    self.shutdown()  # a tunnel: nothing of what follows is for us
                    return
                data = data[upgrade.args[0] :]
                self._read_head_again()
            else:
                return

    def _wants_upgrade(self) -> bool:
        """Whether the request asks for another protocol. That may be ignored; Java's client does it unasked."""
        return bool(self._parser.should_upgrade()) and self._parser.get_method() != b"CONNECT"

    def _read_head_again(self) -> None:
        """Without the wish for another protocol: the parser takes all that follows it for that, the body as well."""
        start = b"%b %b HTTP/%b\r\n" % (self._parser.get_method(), self._url, self._parser.get_http_version().encode())
        headers = [b"%b: %b\r\n" % header for header in self._headers.items() if header[0] != b"upgrade"]
        self._parser = httptools.HttpRequestParser(self)
        self._parser.feed_data(start + b"".join(headers) + b"\r\n")

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        self._go_on()

    # Called by the parser

    def on_message_begin(self) -> None:
        self._idle_since = None
        self._head_bytes = 0
        self._since = self._loop.time()
        self._url = b""
        self._headers = {}

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        self._head_bytes = None
        parser = self._parser
        if self._deaf or self._wants_upgrade():
            return
        path, query_string = (_split if len(self._url) <= _REMEMBERED_BYTES_MAX else _split_url)(self._url)
        request = self.application.request(parser.get_method().decode("ascii"), path, query_string, self._headers)
        arriving = self._arriving = _Arriving(request)
        arriving.keep_alive = parser.should_keep_alive() and parser.get_http_version() != "1.0"
        arriving.refusal = refusal = self.application.refuse(request)
        if refusal is not None and refusal.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            self._refuse(refusal)
        elif refusal is None and self._headers.get(b"expect", b"").lower() == b"100-continue":
            self._transport.write(_CONTINUE)

    def on_body(self, body: bytes) -> None:
        arriving = self._arriving
        if arriving is None or arriving.refusal is not None:
            return
        arriving.chunks.append(body)
        arriving.size += len(body)
        try:
            self.application.check_body_size(arriving.size)
        except TooLarge as error:
            self._refuse(self.application.failed(error, arriving.request))

    def on_message_complete(self) -> None:
        self._since = None
        arriving, self._arriving = self._arriving, None
        if arriving is not None:
            self._take(arriving)

    # Answers

    def _take(self, arrived: _Arriving) -> None:
        """A request that is whole, or whose body does not matter."""
        if self._answering is not None or self._full:
            self._behind.append(arrived)
            # A few that hold no memory are read on behind: else a poll in front would not know that its client went.
            if arrived.chunks or len(self._behind) >= _BEHIND_MAX:
                self._transport.pause_reading()
        else:
            self._begin(arrived)

    def _begin(self, arrived: _Arriving) -> None:
        self._answering = arrived
        if arrived.refusal is not None:
            self._answer(arrived, arrived.refusal)
            return
        arrived.request.body = b"".join(arrived.chunks)
        arrived.task = self._loop.create_task(self._respond(arrived))
        self._server.tasks.add(arrived.task)

    async def _respond(self, arrived: _Arriving) -> None:
        response: Response | None = None
        try:
            response = await self.application.respond(arrived.request)
        finally:
            self._server.tasks.discard(arrived.task)
            if response is None:
                self._transport.close()  # nobody is there, or we are being stopped
        if response is not None:
            self._answer(arrived, response)
            self._go_on()

    def _answer(self, arrived: _Arriving, response: Response) -> None:
        self._server.total_requests += 1
        self._answering = None
        if self._transport.is_closing():
            if response.undelivered is not None:
                response.undelivered()
            return
        request = arrived.request
        last = not arrived.keep_alive or (self._closing and not self._behind and self._arriving is None)
        self._transport.write(_written(response, request.id, last=last, body=request.method != "HEAD"))
        if last:
            self._end()
        else:
            self._idle_since = self._loop.time()

    def _end(self) -> None:
        if self._deaf:
            # What is on its way is thrown away for a while: a connection that is closed before would be reset, and the
            # client might never see why.
            self._transport.write_eof()
            self._loop.call_later(_LINGER_SECONDS, self._transport.close)
        else:
            self._transport.close()

    def _go_on(self) -> None:
        """Begin with the next request that is whole."""
        while self._behind and self._answering is None and not self._full and not self._transport.is_closing():
            self._idle_since = None
            arrived = self._behind.popleft()
            if not self._behind:
                self._transport.resume_reading()
            self._begin(arrived)

    def _refuse_unreadable(self, error: httptools.HttpParserError) -> None:
        arriving = self._arriving = self._arriving or self._nameless()
        reason = error.__context__ or error  # what was raised in a method that the parser called
        fields = {"request_id": arriving.request.id, "error": str(reason)}
        logger.warning("request_unreadable", extra={"action": "request_unreadable", **fields})
        self._refuse(_BAD_URL if isinstance(reason, httptools.HttpParserInvalidURLError) else _NOT_HTTP)

    def _nameless(self) -> _Arriving:
        """A request of which nothing is known yet."""
        return _Arriving(self.application.request("", b"", b"", {}))

    def _refuse(self, response: Response) -> None:
        """Answer what is not worth reading to its end, after all that came before it; and hear nothing more."""
        if self._deaf or self._transport.is_closing():
            return
        arriving, self._arriving = self._arriving or self._nameless(), None
        arriving.refusal = response
        arriving.keep_alive = False
        self._deaf = True
        self._since = None
        self._take(arriving)

    def shutdown(self) -> None:
        """uvicorn's word for: end with the answer to what is being worked on, or has begun to arrive."""
        self._closing = True
        if self._answering is None and not self._behind and self._arriving is None:
            self._transport.close()

    # Time

    def _watch_seconds(self) -> float:
        return min(self.timeout_seconds, self.idle_seconds) / 2

    def _look(self) -> None:
        now = self._loop.time()
        if self._idle_since is not None and self._since is None and now - self._idle_since >= self.idle_seconds:
            self._transport.close()
        if self._behind and self._since is not None:
            self._since = now  # that we do not read on is not the client's fault
        if self._since is not None and now - self._since >= self.timeout_seconds:
            self._refuse(_TOO_SLOW)
        unsent = self._transport.get_write_buffer_size()
        if unsent == 0 or unsent != self._unsent:
            self._unsent, self._unsent_since = unsent, now
        elif now - self._unsent_since >= self.timeout_seconds:
            self._transport.abort()
        if not self._transport.is_closing():
            self._watch = self._loop.call_later(self._watch_seconds(), self._look)


class _Arriving:
    """A request on its way in, and later on its way to its answer."""

    __slots__ = ("chunks", "keep_alive", "refusal", "request", "size", "task")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.keep_alive = True
        self.refusal: Response | None = None
        """What it is answered whatever its body is; that is not kept then."""
        self.chunks: list[bytes] = []
        self.size = 0
        self.task: asyncio.Task[None] | None = None


def _split_url(url: bytes) -> tuple[bytes, bytes]:
    """Path and query string."""
    parsed = httptools.parse_url(url)
    return parsed.path or b"/", parsed.query or b""


_split = lru_cache(maxsize=1024)(_split_url)
"""Clients ask the same again and again."""


def _written(response: Response, request_id: str, *, last: bool, body: bool) -> bytes:
    """An answer as it goes over the wire."""
    length = b"" if response.status == 204 else b"content-length: %d\r\n" % len(response.body)
    return b"%bx-request-id: %b\r\n%b%b\r\n%b" % (
        _begin_of(response.status, response.headers),
        request_id.encode("latin-1", "replace"),
        length,
        b"connection: close\r\n" if last else b"",
        response.body if body else b"",
    )


@lru_cache(maxsize=256)
def _begin_of(status: int, headers: tuple[tuple[bytes, bytes], ...]) -> bytes:
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}".encode()]
    lines += [b"%b: %b" % header for header in (*headers, ANYWHERE)]
    return b"".join([line + b"\r\n" for line in lines])

"""An HTTP/1.1 connection of the server, which uvicorn calls with the bytes of a client.

It replaces uvicorn's own, which makes an ASGI exchange of every request. It limits slow and endless requests, sends
answers in one piece (one system call, one packet), and adds no cost between the parser and the application. uvicorn
listens, accepts, and ends connections and tasks when it is stopped.

A request reaches the application when it is complete, so that incomplete requests cost nothing. The application checks
the head earlier, and the body of a request refused by its head is not kept. Requests that a client sends without
waiting for the answers are answered one after the other. One timer per connection watches all time limits, also that of
an idle connection, so that a request costs no timer.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from contextlib import aclosing, suppress
from functools import lru_cache, partial
from http import HTTPStatus
from typing import Any

import httptools
import uvicorn
from uvicorn.server import ServerState

from lockstep.config import Config
from lockstep.errors import InvalidRequest, TooLarge, TooManyBytes, TooManyConnections
from lockstep.server.app import Application
from lockstep.server.exchange import AS_DECLARED, JSON, Disconnected, EventStream, Request, Response
from lockstep.server.intake import PROBES, place_of
from lockstep.server.strictness import ONCE, framing_fault

logger = logging.getLogger("lockstep.server")

_REMEMBERED_BYTES_MAX = 512
_LINGER_SECONDS = 2.0
"""After a refusal, how long a client must have sent nothing before the connection is closed: one that is still sending
would find it reset, and might never read the refusal."""
_LINGER_TURNS = 8
"""In that many steps, because a server that is late must not take its client for silent."""
_SECOND_LOOK_SECONDS = 0.01
"""A time limit counts only if nothing has come this much later: a request may have arrived and not been read."""
_BEHIND_MAX = 16
"""Up to this many small requests may queue behind the current one before reading stops."""
_TOO_LARGE = Response(
    413, b'{"error":"the headers are too large (request_headers_bytes_max)","code":"too_large"}', JSON
)
_TOO_MANY_HEADERS = Response(
    413, b'{"error":"the request has too many headers (request_headers_max)","code":"too_large"}', JSON
)
_TOO_SLOW = Response(
    408, b'{"error":"the request did not arrive in time (request_timeout_seconds)","code":"request_timeout"}', JSON
)
_TOO_LONG = Response(
    408, b'{"error":"the request took too long to arrive (request_seconds_max)","code":"request_timeout"}', JSON
)
_NOT_HTTP = Response(400, b'{"error":"this is not HTTP/1.1","code":"invalid_request"}', JSON)
_BAD_URL = Response(
    400, b'{"error":"the URL is not valid; all but ASCII must be percent-encoded","code":"invalid_request"}', JSON
)
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class HttpConnection(asyncio.Protocol):
    """A client's connection, with limits on the size and time of requests."""

    application: Application
    head_bytes_max: int
    headers_max: int
    timeout_seconds: float
    seconds_max: float
    idle_seconds: float

    def __init__(
        self,
        config: uvicorn.Config,  # noqa: ARG002
        server_state: ServerState,
        app_state: dict[str, Any],  # noqa: ARG002
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """uvicorn's arguments for a connection."""
        self._server = server_state
        self._loop = _loop or asyncio.get_running_loop()
        self._parser: Any = httptools.HttpRequestParser(self)
        self._transport: Any = None
        self._watch: asyncio.TimerHandle | None = None
        self._left = True
        """Whether the connection no longer counts, or does not count yet."""
        self._address = ""
        self._crowded: TooManyConnections | None = None
        """Why only a few paths are answered, if there are too many connections."""
        # What arrives
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._doubled: bytes | None = None
        """A header that occurred twice although it must not."""
        self._header_count = 0
        self._head_bytes: int | None = 0
        """Bytes of the head that is arriving, without those that came with the previous request; None between heads."""
        self._framing_bytes = 0
        """Bytes since the last piece of a body: sizes of chunks, their extensions, and trailers."""
        self._arriving: _Arriving | None = None
        """The request that is arriving."""
        self._since: float | None = None
        """When the head began to arrive, or the last part of the body came; None between requests."""
        self._begun = 0.0
        """When the head began to arrive."""
        self._deaf = False
        """Whether further input is discarded, because the last answer has been given."""
        self._heard = False
        """Whether input was discarded since the last look."""
        self._overdue = False
        """Whether a time limit was exceeded at the last look."""
        # What is answered
        self._answering: _Arriving | None = None
        self._behind: deque[_Arriving] = deque()
        """Complete requests that arrived before the previous one was answered."""
        self._full = False
        """Whether the client has stopped reading its answers."""
        self._writable = asyncio.Event()
        self._writable.set()
        self._unsent = 0
        """The number of bytes that the client had not read at the last check, and since when."""
        self._unsent_since = 0.0
        self._closing = False
        """Whether the connection ends with the answer to the last request that has begun to arrive."""
        self._idle_since: float | None = None
        """When the last answer was complete; None while there is a request."""

    @classmethod
    def of(cls, config: Config, application: Application) -> type[HttpConnection]:
        """Connections to an application, with the limits of the settings."""
        fixed = {
            "application": application,
            # Room for the request line: the application looks at the headers themselves.
            "head_bytes_max": config.request_headers_bytes_max * 2,
            "headers_max": config.request_headers_max,
            "timeout_seconds": config.request_timeout_seconds,
            "seconds_max": config.request_seconds_max,
            "idle_seconds": config.keep_alive_seconds,
        }
        return type("ConfiguredConnection", (cls,), fixed)

    # Called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.enter((transport.get_extra_info("peername") or ("",))[0])
        self._transport = transport
        # The first head must arrive in time, too.
        self._since = self._loop.time()
        self._watch = self._loop.call_later(self._watch_seconds(), self._look)

    def enter(self, host: str) -> None:
        """Count the connection, once. `host` is the address of its client."""
        if not self._left:
            return
        self._left = False
        self._server.connections.add(self)  # type: ignore[arg-type]
        self._address = place_of(host)
        self._crowded = self.application.intake.enter(self, self._address)

    def leave(self) -> None:
        """The same for its end."""
        if not self._left:
            self._left = True
            self._server.connections.discard(self)
            self.application.intake.leave(self, self._address, spare=self._crowded is not None)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self.leave()
        if self._watch is not None:
            self._watch.cancel()
        self._parser = None  # it refers to us
        for unanswered in (self._arriving, *self._behind):
            if unanswered is not None:
                self._forget(unanswered)
        self._behind.clear()
        if self._answering is not None:
            self._answering.request.leave()

    def cut(self) -> None:
        """End it now, even with data in transit."""
        self._transport.abort()

    def part(self) -> None:
        """Say that there are too many connections, and end it."""
        if self._crowded is not None and self._answering is None:
            self._arriving = self._arriving or self._nameless()
            self._refuse(self.application.failed(self._crowded, self._arriving.request))

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            self._heard = True
            return
        if self._head_bytes is not None:
            self._head_bytes += len(data)
        else:
            self._framing_bytes += len(data)
        try:
            self._parse(memoryview(data))
        except httptools.HttpParserError as error:
            if not self._closing:
                self._refuse_unreadable(error)
            return
        if self._head_bytes is None:
            if self._since is not None:
                self._since = self._loop.time()
                if self._framing_bytes > self.head_bytes_max:
                    self._refuse(_TOO_LARGE)
        elif self._head_bytes > self.head_bytes_max:
            self._refuse(_TOO_LARGE)

    def _parse(self, data: memoryview) -> None:
        """Raises HttpParserError."""
        while True:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                if not self._wants_upgrade():
                    self.shutdown()  # a tunnel: nothing that follows is for us
                    return
                data = data[upgrade.args[0] :]
                self._read_head_again()
            else:
                return

    def _wants_upgrade(self) -> bool:
        """Whether the request asks for another protocol. This may be ignored; Java's client asks without being told
        to.
        """
        return bool(self._parser.should_upgrade()) and self._parser.get_method() != b"CONNECT"

    def _read_head_again(self) -> None:
        """Parse the head without the upgrade header: otherwise the parser treats everything after it, including the
        body, as the other protocol.
        """
        start = b"%b %b HTTP/%b\r\n" % (self._parser.get_method(), self._url, self._parser.get_http_version().encode())
        headers = [b"%b: %b\r\n" % header for header in self._headers.items() if header[0] != b"upgrade"]
        self._parser = httptools.HttpRequestParser(self)
        self._parser.feed_data(start + b"".join(headers) + b"\r\n")

    def pause_writing(self) -> None:
        self._full = True
        self._writable.clear()

    def resume_writing(self) -> None:
        self._full = False
        self._writable.set()
        self._go_on()

    # Called by the parser

    def on_message_begin(self) -> None:
        self._idle_since = None
        self._head_bytes = 0
        self._framing_bytes = 0
        self._since = self._begun = self._loop.time()
        self._url = b""
        self._headers = {}
        self._doubled = None
        self._header_count = 0

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._head_bytes is None:
            return  # a trailer: the head has been judged, and nothing behind the body may change it
        name = name.lower()
        self._header_count += 1
        if name in self._headers and name in ONCE:
            self._doubled = name
        self._headers[name] = value

    def on_headers_complete(self) -> None:
        self._head_bytes = None
        parser = self._parser
        if self._deaf:
            return
        if self._header_count > self.headers_max:
            self._refuse(_TOO_MANY_HEADERS)
            return
        version = parser.get_http_version()
        fault = framing_fault(version, self._url, self._headers, self._doubled)
        if fault is not None:
            self._refuse_unclear(fault)
            return
        if self._wants_upgrade():
            return
        path, query_string = (_split if len(self._url) <= _REMEMBERED_BYTES_MAX else _split_url)(self._url)
        method = parser.get_method().decode("ascii")
        request = self.application.request(method, path, query_string, self._headers, self._address)
        arriving = self._arriving = _Arriving(request)
        if self._crowded is not None and path not in PROBES:
            self._refuse(self.application.failed(self._crowded, request))
            return
        arriving.keep_alive = parser.should_keep_alive() and version != "1.0" and self._crowded is None
        arriving.refusal = refusal = self.application.refuse(request)
        asks_first = b"expect" in self._headers and self._headers[b"expect"].lower() == b"100-continue"
        if refusal is not None and (asks_first or refusal.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE):
            self._refuse(refusal)  # a client that expects 100-continue would wait for us, and we for its body
        elif asks_first:
            self._transport.write(_CONTINUE)

    def on_body(self, body: bytes) -> None:
        self._framing_bytes = 0
        arriving = self._arriving
        if arriving is None or arriving.refusal is not None:
            return
        arriving.chunks.append(body)
        arriving.size += len(body)
        try:
            self.application.intake.take(len(body))
            self.application.check_body_size(arriving.size)
        except (TooLarge, TooManyBytes) as error:
            self._refuse(self.application.failed(error, arriving.request))

    def on_message_complete(self) -> None:
        self._since = None
        arriving, self._arriving = self._arriving, None
        if arriving is not None:
            self._take(arriving)

    # Answers

    def _take(self, arrived: _Arriving) -> None:
        """A complete request, or one that is refused whatever its body."""
        if self._answering is not None or self._full:
            self._behind.append(arrived)
            # A few small requests are read ahead; otherwise a poll before them would not notice a disconnect.
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
        arrived.chunks = []
        arrived.task = self._loop.create_task(self._respond(arrived))
        self._server.tasks.add(arrived.task)

    async def _respond(self, arrived: _Arriving) -> None:
        response: Response | None = None
        try:
            response = await self.application.respond(arrived.request)
        finally:
            self._forget(arrived)
            self._server.tasks.discard(arrived.task)
            if response is None:
                self._transport.close()  # the client is gone, or the server is stopping
        if isinstance(response, EventStream) and arrived.request.method != "HEAD":
            await self._send_events(arrived, response)
        elif response is not None:
            self._answer(arrived, response)
            self._go_on()

    async def _send_events(self, arrived: _Arriving, stream: EventStream) -> None:
        """Runs until the client disconnects, or the server stops. The end of the connection is the end of the
        answer.
        """
        self._server.total_requests += 1
        arrived.streaming = True
        self._transport.write(_stream_head(stream, arrived.request))
        try:
            with suppress(Disconnected):
                async with aclosing(stream.events) as events:
                    with arrived.request.while_connected():
                        async for event in events:
                            self._transport.write(event)
                            await self._writable.wait()
        finally:
            self._answering = None
            self._transport.close()

    def _answer(self, arrived: _Arriving, response: Response) -> None:
        self._server.total_requests += 1
        self._answering = None
        if self._transport.is_closing():
            if response.undelivered is not None:
                response.undelivered()
            return
        request = arrived.request
        last = not arrived.keep_alive or (self._closing and not self._behind and self._arriving is None)
        self._transport.write(_written(response, request, last=last, body=request.method != "HEAD"))
        if last:
            self._end()
        else:
            self._idle_since = self._loop.time()

    def _end(self) -> None:
        if self._deaf:
            # Input is discarded for a while: closing the connection at once would reset it, and the client might never
            # see the refusal.
            if self._transport.can_write_eof():  # TLS cannot
                self._transport.write_eof()
            self._linger(_LINGER_TURNS, until=self._loop.time() + self.seconds_max)
        else:
            self._transport.close()

    def _linger(self, turns: int, *, until: float) -> None:
        """Close when the client has sent nothing for so many turns."""
        turns, self._heard = _LINGER_TURNS if self._heard else turns - 1, False
        if turns < 0 or self._loop.time() >= until:
            self._transport.close()
        elif not self._transport.is_closing():
            self._loop.call_later(_LINGER_SECONDS / _LINGER_TURNS, lambda: self._linger(turns, until=until))

    def _go_on(self) -> None:
        """Start the next complete request."""
        while self._behind and self._answering is None and not self._full and not self._transport.is_closing():
            self._idle_since = None
            arrived = self._behind.popleft()
            if not self._behind:
                self._transport.resume_reading()
            self._begin(arrived)

    def _refuse_unreadable(self, error: httptools.HttpParserError) -> None:
        arriving = self._arriving = self._arriving or self._nameless()
        reason = error.__context__ or error  # the error raised in a method called by the parser
        fields = {"request_id": arriving.request.id, "error": str(reason)}
        logger.warning("request_unreadable", extra={"action": "request_unreadable", **fields})
        self._refuse(_BAD_URL if isinstance(reason, httptools.HttpParserInvalidURLError) else _NOT_HTTP)

    def _refuse_unclear(self, fault: str) -> None:
        arriving = self._arriving = self._nameless()
        self._refuse(self.application.failed(InvalidRequest(fault), arriving.request))

    def _nameless(self) -> _Arriving:
        """A request of which nothing has arrived yet."""
        return _Arriving(self.application.request("", b"", b"", {}))

    def _refuse(self, response: Response) -> None:
        """Answer a request without reading the rest of it, after all earlier ones; then stop reading."""
        if self._deaf or self._transport.is_closing():
            return
        arriving, self._arriving = self._arriving or self._nameless(), None
        self._forget(arriving)
        arriving.refusal = response
        arriving.keep_alive = False
        self._deaf = True
        self._since = None
        self._take(arriving)

    def _forget(self, arrived: _Arriving) -> None:
        """Release the memory of its body."""
        self.application.intake.bytes -= arrived.size
        arrived.size = 0
        arrived.chunks = []

    def shutdown(self) -> None:
        """uvicorn's name for: close after the answer to the current request, or to one that has begun to arrive."""
        self._closing = True
        if self._answering is not None and self._answering.streaming:
            self._answering.request.leave()
        elif self._is_idle():
            self._loop.call_later(_SECOND_LOOK_SECONDS, self._close_if_idle)

    def _is_idle(self) -> bool:
        """Whether no request has begun to arrive, or waits for its answer."""
        arriving = self._arriving is not None or (self._since is not None and self._begun > 0)
        return self._answering is None and not self._behind and not arriving

    def _close_if_idle(self) -> None:
        if self._is_idle():
            self._transport.close()

    # Time

    def _watch_seconds(self) -> float:
        return min(self.timeout_seconds, self.idle_seconds, self.seconds_max) / 2

    def _look(self) -> None:
        now = self._loop.time()
        if self._behind and self._since is not None:
            self._since = self._begun = now  # the client is not to blame if we have stopped reading
        end = self._end_of_time(now)
        if end is not None and not self._overdue:
            self._overdue = True
            self._watch = self._loop.call_later(_SECOND_LOOK_SECONDS, self._look)
            return
        self._overdue = False
        if end is not None:
            end()
        unsent = self._transport.get_write_buffer_size()
        if unsent == 0 or unsent != self._unsent:
            self._unsent, self._unsent_since = unsent, now
        elif now - self._unsent_since >= self.timeout_seconds:
            self._transport.abort()
        if not self._transport.is_closing():
            self._watch = self._loop.call_later(self._watch_seconds(), self._look)

    def _end_of_time(self, now: float) -> Callable[[], None] | None:
        """What is to be done because a time limit is exceeded."""
        if self._since is None:
            is_over = self._idle_since is not None and now - self._idle_since >= self.idle_seconds
            return self._transport.close if is_over else None
        if now - self._since >= self.timeout_seconds:
            return partial(self._refuse, _TOO_SLOW)
        if self._arriving is not None and now - self._begun >= self.seconds_max:
            return partial(self._refuse, _TOO_LONG)
        return None


class _Arriving:
    """A request that is arriving, or whose answer is pending."""

    __slots__ = ("chunks", "keep_alive", "refusal", "request", "size", "streaming", "task")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.keep_alive = True
        self.refusal: Response | None = None
        """The answer, if it does not depend on the body, which is then not kept."""
        self.chunks: list[bytes] = []
        self.size = 0
        self.streaming = False
        """Whether its answer is an endless stream."""
        self.task: asyncio.Task[None] | None = None


def _split_url(url: bytes) -> tuple[bytes, bytes]:
    """Path and query string."""
    parsed = httptools.parse_url(url)
    return parsed.path or b"/", parsed.query or b""


_split = lru_cache(maxsize=1024)(_split_url)
"""Clients repeat the same requests."""


def _written(response: Response, request: Request, *, last: bool, body: bool) -> bytes:
    """An answer in its wire format."""
    length = b"" if response.status in (204, 304) else b"content-length: %d\r\n" % len(response.body)
    return b"%bx-request-id: %b\r\n%b%b\r\n%b" % (
        _begin_of(response.status, response.headers + request.answer_headers),
        request.id.encode("latin-1", "replace"),
        length,
        b"connection: close\r\n" if last else b"",
        response.body if body else b"",
    )


def _stream_head(stream: EventStream, request: Request) -> bytes:
    begin = _begin_of(stream.status, stream.headers + request.answer_headers)
    return b"%bx-request-id: %b\r\nconnection: close\r\n\r\n" % (begin, request.id.encode("latin-1", "replace"))


@lru_cache(maxsize=256)
def _begin_of(status: int, headers: tuple[tuple[bytes, bytes], ...]) -> bytes:
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}".encode()]
    lines += [b"%b: %b" % header for header in (*headers, AS_DECLARED)]
    return b"".join([line + b"\r\n" for line in lines])

"""uvicorn's HTTP protocol, with what it lacks: limits on slow and endless requests, and answers in one piece.

Without limits a client could send headers without end, or keep a connection busy by sending one byte at a time. The
times, also that of an idle connection, are looked at by one timer per connection, so that a request costs no timer.

uvicorn takes an answer apart that the application has put together: it looks at each header, and writes head and body
one after the other, which is two system calls and two packets. So the application is offered another way, the ASGI
extension `lockstep.answer`: a whole answer as bytes. What is written without it is held together.

Requests that are refused are best not parsed at all: see `refusing.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from lockstep.config import Config
from lockstep.server.exchange import ANSWER

_TOO_LARGE = (
    b"HTTP/1.1 413 Payload Too Large\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n"
    b'{"error":"the headers are too large (request_headers_bytes_max)","code":"too_large"}'
)
_TOO_SLOW = (
    b"HTTP/1.1 408 Request Timeout\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n"
    b'{"error":"the request did not arrive in time (request_timeout_seconds)","code":"request_timeout"}'
)


Refuse = Callable[[bytes], tuple[bytes, int] | None]
"""The answer to the request with which data begins, and its length, if it is refused."""


class GuardedProtocol(HttpToolsProtocol):
    """A connection whose requests are bounded in size and time."""

    head_bytes_max: int
    timeout_seconds: float
    refuse: Refuse

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_bytes: int | None = 0
        """Bytes of the head that is arriving; None while none is."""
        self._since: float | None = None
        """When the head began to arrive, or the last part of the body came; None between requests."""
        self._idle_since: float | None = None
        """When the last answer was complete; None while there is a request."""
        self._watch: asyncio.TimerHandle | None = None
        self._unread = 0
        """Bytes that are still to come of a request that was refused."""

    @classmethod
    def of(cls, config: Config, *, refuse: Refuse) -> type[GuardedProtocol]:
        """The protocol with the limits of the settings."""
        limits = {
            # Room for the request line: the application looks at the headers themselves.
            "head_bytes_max": config.request_headers_bytes_max * 2,
            "timeout_seconds": config.request_timeout_seconds,
            "refuse": staticmethod(refuse),
        }
        return type("ConfiguredProtocol", (cls,), limits)

    def connection_made(self, transport: Any) -> None:
        super().connection_made(_InOnePiece(transport, self.loop))  # type: ignore[arg-type]
        # The first head must come, too.
        self._since = self.loop.time()
        self._watch = self.loop.call_later(self._watch_seconds(), self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._watch is not None:
            self._watch.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._unread or self._is_between_requests():
            data = self._without_refused(data)
            if not data:
                return
        super().data_received(data)
        if self._head_bytes is not None:
            self._head_bytes += len(data)
            if self._head_bytes > self.head_bytes_max:
                self._refuse(_TOO_LARGE)
        elif self._since is not None:
            self._since = self.loop.time()

    def _is_between_requests(self) -> bool:
        """Whether the next byte is the first of a request: the one before is whole, and answered."""
        if self.cycle is None:
            return self._head_bytes == 0
        return self._since is None and self._idle_since is not None

    def _without_refused(self, data: bytes) -> bytes:
        """Answer the requests that are refused, and skip them; returns what is left for the parser."""
        while data:
            if self._unread:
                skipped = min(self._unread, len(data))
                self._unread -= skipped
                data = data[skipped:]
                self._note_skipped()
                continue
            refused = None if self.flow.write_paused else self.refuse(data)
            if refused is None:
                break
            answer, self._unread = refused
            self.server_state.total_requests += 1
            self.transport.write_at_once(answer)  # type: ignore[attr-defined]
        return data

    def _note_skipped(self) -> None:
        now = self.loop.time()
        self._since, self._idle_since = (now, None) if self._unread else (None, now)

    def on_message_begin(self) -> None:
        self._idle_since = None
        self._head_bytes = 0
        self._since = self.loop.time()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._head_bytes = None
        super().on_headers_complete()
        if self.cycle is not None:
            # The application begins later, in a task.
            self.scope["extensions"] = {ANSWER: partial(self._answer, self.cycle)}  # type: ignore[dict-item]

    def on_message_complete(self) -> None:
        self._since = None
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """As uvicorn's, but for the timer of an idle connection."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        else:
            self._idle_since = self.loop.time()

    def _answer(self, cycle: RequestResponseCycle, head: bytes, body: bytes) -> bool:
        """Send a whole answer, whose head lacks the empty line at its end. False if it must go the long way."""
        if self.flow.write_paused or cycle.response_started or cycle.scope["method"] == "HEAD":
            return False
        if cycle.disconnected:
            return True
        cycle.response_started = cycle.response_complete = True
        cycle.waiting_for_100_continue = False
        self.transport.write_at_once(  # type: ignore[attr-defined]
            b"%b%b%b" % (head, b"\r\n" if cycle.keep_alive else b"connection: close\r\n\r\n", body)
        )
        cycle.message_event.set()
        if not cycle.keep_alive:
            self.transport.close()
        cycle.on_response()
        return True

    def _watch_seconds(self) -> float:
        return min(self.timeout_seconds, self.timeout_keep_alive) / 2

    def _look(self) -> None:
        now = self.loop.time()
        if self._idle_since is not None and now - self._idle_since >= self.timeout_keep_alive:
            self.timeout_keep_alive_handler()
            return
        if self.flow.read_paused and self._since is not None:
            # A body that the application does not take fast enough is not the client's fault.
            self._since = now
        if self._since is not None and now - self._since >= self.timeout_seconds:
            self._refuse(_TOO_SLOW)
            return
        self._watch = self.loop.call_later(self._watch_seconds(), self._look)

    def _refuse(self, answer: bytes) -> None:
        if not self.transport.is_closing():
            if self.cycle is None or not self.cycle.response_started:
                self.transport.write(answer)
            self.transport.close()


class _InOnePiece:
    """A transport that writes what it is given in one turn of the event loop together."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._pending: list[bytes] = []
        # Called for every request: no detour.
        self.is_closing = transport.is_closing
        self.pause_reading = transport.pause_reading
        self.resume_reading = transport.resume_reading

    def write(self, data: bytes) -> None:
        if not self._pending:
            self._loop.call_soon(self._flush)
        self._pending.append(data)

    def write_at_once(self, data: bytes) -> None:
        self._flush()
        self._transport.write(data)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        if self._pending:
            self._transport.write(b"".join(self._pending))
            self._pending.clear()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

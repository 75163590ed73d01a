"""A connection to the server that costs as little as possible: the load generator shares the machine.

Requests are bytes that were made beforehand, and of an answer only its status and its length are read.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any
from urllib.parse import urlsplit

_LAST = re.compile(rb"connection: *close", re.IGNORECASE)
_LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)


class Connection(asyncio.Protocol):
    """One HTTP/1.1 connection, one request at a time."""

    def __init__(self) -> None:
        self._transport: Any = None
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None
        self._received = b""
        self.is_last = False
        """Whether the server closes the connection after the last answer."""

    @classmethod
    async def to(cls, url: str) -> Connection:
        address = urlsplit(url)
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(cls, address.hostname, address.port)
        return connection

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(exc or ConnectionError("the server closed the connection"))

    def data_received(self, data: bytes) -> None:
        received = self._received = self._received + data if self._received else data
        head = received.find(b"\r\n\r\n")
        if head < 0:
            return
        length = _LENGTH.search(received, 0, head)
        whole = head + 4 + (int(length[1]) if length else 0)
        if len(received) >= whole and self._answer is not None:
            self._received = b""
            self.is_last = _LAST.search(received, 0, head) is not None
            self._answer.set_result((int(received[9:12]), received[head + 4 : whole]))

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        """Status and body of the answer."""
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._answer

    def close(self) -> None:
        self._transport.close()


def request(
    method: str,
    path: str,
    body: bytes = b"",
    *,
    token: str | None = None,
    media: str = "application/json",
    accept: str | None = None,
) -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {media}\r\n"
    if accept is not None:
        head += f"Accept: {accept}\r\n"
    if token is not None:
        head += f"Authorization: Bearer {token}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body

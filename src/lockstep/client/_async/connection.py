"""HTTP connections for asyncio, through aiohttp."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from io import BytesIO
from ssl import SSLContext

import aiohttp
from yarl import URL

from lockstep.client._async.concurrency import check_loop
from lockstep.client._protocol import ConnectionFailed, HttpAnswer, HttpRequest

# aiohttp writes bytes at once, and a large body would block the event loop; a file is written piece by piece.
_BYTES_AT_ONCE = 1 << 20

CONNECT_SECONDS_MAX = 10.0
"""A poll waits long for its answer, but no longer than this for its connection."""


class AsyncConnection:
    """Sends requests over persistent connections."""

    def __init__(self, *, headers: Mapping[str, str], connections_max: int, tls: SSLContext | None = None) -> None:
        self._headers = dict(headers)
        self._tls = tls
        self._connections_max = connections_max
        self._loop: asyncio.AbstractEventLoop | None = None
        self._session: aiohttp.ClientSession | None = None

    async def send(self, base: str, request: HttpRequest, timeout_seconds: float) -> HttpAnswer:
        """The answer. Raises ConnectionFailed."""
        session = self._session or self._opened()
        check_loop(self._loop)
        body = request.body
        try:
            async with session.request(
                request.method,
                URL(base + request.target, encoded=True),
                data=BytesIO(body) if body is not None and len(body) >= _BYTES_AT_ONCE else body,
                headers=request.headers,
                timeout=aiohttp.ClientTimeout(total=timeout_seconds, sock_connect=CONNECT_SECONDS_MAX),
                allow_redirects=False,
            ) as response:
                return HttpAnswer(response.status, await response.read(), response.headers.get("retry-after"))
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise ConnectionFailed(str(error), sent=False) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ConnectionFailed(str(error) or type(error).__name__, sent=True) from error

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _opened(self) -> aiohttp.ClientSession:
        """A session belongs to the event loop in which it is first used."""
        self._loop = asyncio.get_running_loop()
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self._connections_max, ssl=self._tls or True), headers=self._headers
        )
        # By default, aiohttp repeats a GET when its connection breaks. A pop is a GET, and only the transport knows
        # what may be repeated.
        self._session._retry_connection = False
        return self._session

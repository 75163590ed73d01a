"""HTTP connections for threads, by urllib3. Written by hand."""

from __future__ import annotations

from collections.abc import Mapping

import urllib3
from urllib3.exceptions import ConnectTimeoutError, HTTPError, NewConnectionError

from lockstep.client._protocol import Answer, ConnectionFailed, Request

CONNECT_SECONDS_MAX = 10.0
"""A poll waits long for its answer, and no longer than this for its connection."""


class Connection:
    """Sends requests over connections that are kept."""

    def __init__(self, *, headers: Mapping[str, str], connections_max: int) -> None:
        self._headers = dict(headers)
        self._pool = urllib3.PoolManager(maxsize=connections_max, retries=False)

    def send(self, base: str, request: Request, timeout_seconds: float) -> Answer:
        """The answer. Raises ConnectionFailed."""
        try:
            response = self._pool.request(
                request.method,
                base + request.target,
                body=request.body,
                headers=self._headers,
                timeout=urllib3.Timeout(connect=min(timeout_seconds, CONNECT_SECONDS_MAX), read=timeout_seconds),
                redirect=False,
            )
        except (NewConnectionError, ConnectTimeoutError) as error:
            raise ConnectionFailed(str(error), sent=False) from error
        except HTTPError as error:
            raise ConnectionFailed(str(error) or type(error).__name__, sent=True) from error
        return Answer(response.status, response.data, response.headers.get("retry-after"))

    def close(self) -> None:
        self._pool.clear()

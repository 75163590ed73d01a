"""HTTP connections for threads, by urllib3. Written by hand."""

from __future__ import annotations

import os
from collections.abc import Mapping
from ssl import SSLContext

import urllib3
from urllib3.exceptions import ConnectTimeoutError, HTTPError, NewConnectionError

from lockstep.client._failures import FORKED
from lockstep.client._protocol import ConnectionFailed, HttpAnswer, HttpRequest
from lockstep.errors import InvalidRequest

CONNECT_SECONDS_MAX = 10.0
"""A poll waits long for its answer, and no longer than this for its connection."""


class Connection:
    """Sends requests over connections that are kept."""

    def __init__(self, *, headers: Mapping[str, str], connections_max: int, tls: SSLContext | None = None) -> None:
        self._headers = dict(headers)
        self._process: int | None = None
        self._pool = urllib3.PoolManager(maxsize=connections_max, retries=False, ssl_context=tls)

    def send(self, base: str, request: HttpRequest, timeout_seconds: float) -> HttpAnswer:
        """The answer. Raises ConnectionFailed."""
        self._check_process()
        try:
            response = self._pool.request(
                request.method,
                base + request.target,
                body=request.body,
                headers={**self._headers, **request.headers} if request.headers else self._headers,
                timeout=urllib3.Timeout(connect=min(timeout_seconds, CONNECT_SECONDS_MAX), read=timeout_seconds),
                redirect=False,
            )
        except (NewConnectionError, ConnectTimeoutError) as error:
            raise ConnectionFailed(str(error), sent=False) from error
        except HTTPError as error:
            raise ConnectionFailed(str(error) or type(error).__name__, sent=True) from error
        return HttpAnswer(response.status, response.data, response.headers.get("retry-after"))

    def _check_process(self) -> None:
        """Two processes on one connection would get each other's answers."""
        process = os.getpid()
        if self._process is None:
            self._process = process
        if self._process != process:
            raise InvalidRequest(FORKED)

    def close(self) -> None:
        self._pool.clear()

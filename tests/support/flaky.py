"""A server in front of another one, that fails as a test tells it to."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import urllib3

_PASSED_ON = ("content-type", "accept")


class Flaky:
    """Passes requests on to the server at `url`; what is planned happens first, one thing for each request.

    `lost`: the connection breaks before the server gets the request. `unanswered`: it breaks after the server has
    done what was asked. A number is an answer with that status: 503 and 429 as our server gives them, 502 as a proxy
    does.
    """

    def __init__(self, url: str) -> None:
        self.target = url
        self.url = ""
        self.plan: list[str | int] = []
        self.requests: list[str] = []
        """Method and path of each request that came."""
        self.tokens: list[str | None] = []
        self.pool = urllib3.PoolManager(retries=False)


class _Exchange(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        flaky: Flaky = self.server.flaky  # type: ignore[attr-defined]
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        flaky.requests.append(f"{self.command} {self.path.partition('?')[0]}")
        flaky.tokens.append(self.headers.get("authorization"))
        planned = flaky.plan.pop(0) if flaky.plan else "pass"
        if planned == "lost":
            self.close_connection = True
            return
        if isinstance(planned, int):
            self._answer(planned, *_failure(planned))
            return
        headers = {name: self.headers[name] for name in _PASSED_ON if self.headers.get(name) is not None}
        response = flaky.pool.request(
            self.command, flaky.target + self.path, body=body or None, headers=headers, redirect=False
        )
        if planned == "pass":
            self._answer(response.status, response.data)

    do_POST = do_GET  # noqa: N815

    def _answer(self, status: int, body: bytes, *headers: tuple[str, str]) -> None:
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        if status != 204:
            self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Nobody reads it."""


def _failure(status: int) -> tuple[Any, ...]:
    if status == 502:
        return (b"<html>bad gateway</html>",)
    code = {503: "unavailable", 429: "overloaded"}[status]
    return b'{"error": "not now", "code": "%s"}' % code.encode(), ("retry-after", "0")


@contextmanager
def flaky_server(url: str) -> Iterator[Flaky]:
    flaky = Flaky(url)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Exchange)
    server.flaky = flaky  # type: ignore[attr-defined]
    flaky.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield flaky
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        flaky.pool.clear()

"""The ASGI application: finds the route, keeps the limits, translates errors, counts and logs."""

from __future__ import annotations

import logging
import time
from functools import lru_cache
from http import HTTPStatus
from typing import Any

from lockstep.errors import LockstepError, TooLarge
from lockstep.server.exchange import ANSWER, Disconnected, Receive, Request, Response, Scope, Send
from lockstep.server.failures import failure, unexpected
from lockstep.server.node import Node
from lockstep.server.routes import ROUTES
from lockstep.server.routing import Route, Routes

logger = logging.getLogger("lockstep.server")

_REQUEST_ID_LENGTH_MAX = 128
_NO_EXTENSIONS: dict[str, Any] = {}
_ANYWHERE = (b"access-control-allow-origin", b"*")
_PREFLIGHT = Response(
    204,
    b"",
    (b"access-control-allow-methods", b"GET, POST, PUT, DELETE, OPTIONS"),
    (b"access-control-allow-headers", b"*"),
    (b"access-control-max-age", b"86400"),
)


class Application:
    """The HTTP protocol of Lockstep over one node."""

    def __init__(self, node: Node, routes: Routes = ROUTES) -> None:
        self._node = node
        self._routes = routes
        self._log_requests = logger.isEnabledFor(logging.DEBUG)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._exchange(scope, receive, send)
        elif scope["type"] == "lifespan":
            await _lifespan(receive, send)
        else:
            await send({"type": "websocket.close", "code": 1000})

    async def _exchange(self, scope: Scope, receive: Receive, send: Send) -> None:
        config, counters = self._node.config, self._node.counters
        request = Request(scope, receive, id=self._node.next_request_id(), body_bytes_max=config.body_bytes_max)
        given = request.header(b"x-request-id")
        if given is not None:
            request.id = given[:_REQUEST_ID_LENGTH_MAX]
        began = time.perf_counter()
        counters.in_flight += 1
        route: Route | None = None
        response: Response | None = None
        try:
            if scope["method"] == "OPTIONS":
                response = _PREFLIGHT
            else:
                self._check_headers(scope)
                route, request.parameters = self._routes.find(scope["method"], scope["raw_path"])
                response = await route.endpoint(self._node, request)
            await _send(scope, send, response, request.id)
        except Disconnected:
            pass
        except LockstepError as error:
            response = failure(error, request, self._node.failures)
            await _send(scope, send, response, request.id)
        except Exception as error:
            response = unexpected(error, request)
            await _send(scope, send, response, request.id)
        finally:
            counters.in_flight -= 1
            self._count(scope, route, response, time.perf_counter() - began, request)

    def _check_headers(self, scope: Scope) -> None:
        if (
            sum([len(name) + len(value) for name, value in scope["headers"]])
            > self._node.config.request_headers_bytes_max
        ):
            limit = self._node.config.request_headers_bytes_max
            raise TooLarge(f"the headers have more than {limit} bytes (request_headers_bytes_max)")

    def _count(
        self, scope: Scope, route: Route | None, response: Response | None, seconds: float, request: Request
    ) -> None:
        method, path = (route.method, route.path) if route else ("*", "*")
        status = response.status if response else 499  # the client went away
        self._node.counters.requests[method, path, status] += 1
        self._node.counters.seconds[method, path] += seconds
        if self._log_requests:
            logger.debug(
                "request_answered",
                extra={
                    "action": "request_answered",
                    "request_id": request.id,
                    "method": scope["method"],
                    "route": path,
                    "status": status,
                    "seconds": round(seconds, 6),
                },
            )


async def _send(scope: Scope, send: Send, response: Response, request_id: str) -> None:
    at_once = scope.get("extensions", _NO_EXTENSIONS).get(ANSWER)
    if at_once is not None and at_once(_head(response, request_id), response.body):
        return
    headers: list[tuple[bytes, bytes]] = [
        *response.headers,
        _ANYWHERE,
        (b"x-request-id", request_id.encode("latin-1", "replace")),
    ]
    if response.status != 204:
        headers.append((b"content-length", str(len(response.body)).encode()))
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": response.body})


def _head(response: Response, request_id: str) -> bytes:
    """The head of an answer as it is sent, up to the empty line."""
    begin = _begin(response.status, response.headers)
    named = request_id.encode("latin-1", "replace")
    if response.status == 204:
        return b"%bx-request-id: %b\r\n" % (begin, named)
    return b"%bx-request-id: %b\r\ncontent-length: %d\r\n" % (begin, named, len(response.body))


@lru_cache(maxsize=256)
def _begin(status: int, headers: tuple[tuple[bytes, bytes], ...]) -> bytes:
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}".encode()]
    lines += [b"%b: %b" % header for header in (*headers, _ANYWHERE)]
    return b"".join([line + b"\r\n" for line in lines])


async def _lifespan(receive: Receive, send: Send) -> None:
    """The engine is opened and closed by whoever runs the application, so there is nothing to do here."""
    while True:
        message: Any = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return

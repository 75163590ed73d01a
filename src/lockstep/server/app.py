"""The application: finds the route, keeps the limits, translates errors, counts and logs.

A request is looked at twice: when its head has come, because one that is refused need not be kept; and when it is
whole. Our own connections ask for both (protocol.py); any other ASGI server can call the application, too.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from lockstep.errors import LockstepError, TooLarge
from lockstep.server.exchange import ANYWHERE, Disconnected, Request, Response
from lockstep.server.failures import failure, unexpected
from lockstep.server.node import Node
from lockstep.server.routes import ROUTES
from lockstep.server.routing import Routes

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

logger = logging.getLogger("lockstep.server")

_REQUEST_ID_LENGTH_MAX = 128
_CLIENT_WENT_AWAY = 499
_PREFLIGHT = Response(
    204,
    b"",
    (b"access-control-allow-methods", b"GET, POST, PATCH, DELETE, OPTIONS"),
    (b"access-control-allow-headers", b"*"),
    (b"access-control-max-age", b"86400"),
)


class Application:
    """The HTTP protocol of Lockstep over one node."""

    def __init__(self, node: Node, routes: Routes = ROUTES) -> None:
        self._node = node
        self._routes = routes
        self._log_requests = logger.isEnabledFor(logging.DEBUG)

    def request(self, method: str, path: bytes, query_string: bytes, headers: dict[bytes, bytes]) -> Request:
        """A request whose head has come."""
        given = headers.get(b"x-request-id")
        id = given[:_REQUEST_ID_LENGTH_MAX].decode("latin-1") if given else self._node.next_request_id()
        return Request(method, path, query_string, headers, id)

    def refuse(self, request: Request) -> Response | None:
        """The answer to a request that must not go on, by its head alone; None if its body is worth reading."""
        try:
            if request.method == "OPTIONS":
                response = _PREFLIGHT
            else:
                self._check_headers(request)
                request.route, request.parameters = self._routes.find(request.method, request.path)
                length = request.headers.get(b"content-length")
                if length is not None and length.isdigit():
                    self.check_body_size(int(length))
                request.check_query()
                if request.route.admit is not None:
                    request.route.admit(self._node)
                return None
        except LockstepError as error:
            return self.failed(error, request)
        except Exception as error:
            response = unexpected(error, request)
        self._count(request, response)
        return response

    async def respond(self, request: Request) -> Response | None:
        """The answer to a request that is whole; None if its client has gone."""
        counters = self._node.counters
        counters.in_flight += 1
        response: Response | None = None
        try:
            request.check_no_body()
            response = await request.route.endpoint(self._node, request)
        except Disconnected:
            pass
        except LockstepError as error:
            response = failure(error, request, self._node.failures)
        except Exception as error:
            response = unexpected(error, request)
        finally:
            counters.in_flight -= 1
            self._count(request, response)
        return response

    def _check_headers(self, request: Request) -> None:
        limit = self._node.config.request_headers_bytes_max
        if sum(map(len, request.headers)) + sum(map(len, request.headers.values())) > limit:
            raise TooLarge(f"the headers have more than {limit} bytes (request_headers_bytes_max)")

    def check_body_size(self, size: int) -> None:
        """Raises TooLarge."""
        limit = self._node.config.body_bytes_max
        if size > limit:
            raise TooLarge(f"the body has more than {limit} bytes (body_bytes_max)")

    def failed(self, error: LockstepError, request: Request) -> Response:
        """The answer to a request that is refused on its way."""
        response = failure(error, request, self._node.failures)
        self._count(request, response)
        return response

    def _count(self, request: Request, response: Response | None) -> None:
        seconds = time.perf_counter() - request.came_at
        method, path = (request.route.method, request.route.path) if request.route else ("*", "*")
        status = response.status if response else _CLIENT_WENT_AWAY
        self._node.counters.requests[method, path, status] += 1
        self._node.counters.seconds[method, path] += seconds
        if self._log_requests:
            logger.debug(
                "request_answered",
                extra={
                    "action": "request_answered",
                    "request_id": request.id,
                    "method": request.method,
                    "route": path,
                    "status": status,
                    "seconds": round(seconds, 6),
                },
            )

    # ASGI

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._exchange(scope, receive, send)
        elif scope["type"] == "lifespan":
            await _lifespan(receive, send)
        else:
            await send({"type": "websocket.close", "code": 1000})

    async def _exchange(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("raw_path") or scope["path"].encode()
        request = self.request(scope["method"], path, scope["query_string"], dict(scope["headers"]))
        response = self.refuse(request)
        if response is None:
            try:
                request.body = await self._body(receive)
            except Disconnected:
                return
            except TooLarge as error:
                response = self.failed(error, request)
            else:
                watch = asyncio.create_task(_watch(receive, request))
                response = await self.respond(request)
                watch.cancel()
        if response is not None:
            await _send(send, response, request.id)

    async def _body(self, receive: Receive) -> bytes:
        chunks, size, more = [], 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Disconnected
            chunks.append(message.get("body", b""))
            size += len(chunks[-1])
            self.check_body_size(size)
            more = message.get("more_body", False)
        return b"".join(chunks)


async def _watch(receive: Receive, request: Request) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    request.tell_disconnected()


async def _send(send: Send, response: Response, request_id: str) -> None:
    headers = [*response.headers, ANYWHERE, (b"x-request-id", request_id.encode("latin-1", "replace"))]
    if response.status != 204:
        headers.append((b"content-length", str(len(response.body)).encode()))
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": response.body})


async def _lifespan(receive: Receive, send: Send) -> None:
    """The engine is opened and closed by whoever runs the application, so there is nothing to do here."""
    while True:
        message: Any = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return

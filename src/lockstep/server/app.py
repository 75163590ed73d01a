"""The application: finds the route, keeps the limits, translates errors, counts and logs.

A request is checked twice: when its head has arrived, because the body of a refused request need not be kept; and when
it is complete. Our own connections use both checks (protocol.py); any other ASGI server can call the application, too.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import aclosing, suppress
from typing import Any

from lockstep.core.rights import Right
from lockstep.errors import Forbidden, LockstepError, TooLarge
from lockstep.logs import REQUEST_ID
from lockstep.server.auth.callers import NOBODY, Caller
from lockstep.server.exchange import AS_DECLARED, Disconnected, EventStream, Request, Response
from lockstep.server.failures import failure, unexpected
from lockstep.server.intake import PROBES, Intake, Rates
from lockstep.server.live import Live
from lockstep.server.node import Node
from lockstep.server.origins import Origins
from lockstep.server.routes import ROUTES
from lockstep.server.routing import Routes
from lockstep.server.strictness import check_encoding
from lockstep.server.watching import WatchedRoutes

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

logger = logging.getLogger("lockstep.server")

_REQUEST_ID_LENGTH_MAX = 128
_CLIENT_WENT_AWAY = 499
ENTRY_AUDITED: frozenset[Right] = frozenset({"manage", "configure", "admin"})
"""The audit log records callers that are refused a route with one of these rights."""


class Application:
    """The HTTP protocol of Lockstep over one node."""

    def __init__(self, node: Node, routes: Routes = ROUTES) -> None:
        self._node = node
        self._routes = routes
        self._origins = Origins(node.config)
        self.intake = Intake(node.config)
        per_second = node.config.requests_per_second_max
        self._rates = Rates(per_second) if per_second else None
        node.live = Live(
            WatchedRoutes(node, routes),
            interval_seconds=node.config.events_interval_seconds,
            streams_max=node.config.events_streams_max,
        )
        self._log_requests = logger.isEnabledFor(logging.DEBUG)

    def request(
        self, method: str, path: bytes, query_string: bytes, headers: dict[bytes, bytes], address: str = ""
    ) -> Request:
        """A request whose head has come."""
        given = headers.get(b"x-request-id")
        id = given[:_REQUEST_ID_LENGTH_MAX].decode("latin-1") if given else self._node.next_request_id()
        request = Request(method, path, query_string, headers, id)
        request.address = address
        request.items_max = self._node.config.body_items_max
        request.intake = self.intake
        return request

    def refuse(self, request: Request) -> Response | None:
        """The refusal of a request, judged by its head alone; None if its body should be read."""
        try:
            self._check_headers(request)
            self._origins.check_host(request)
            if self._rates is not None and request.path not in PROBES:
                self._check_rate(self._rates, request)
            if request.method == "OPTIONS":
                self._origins.check_page(request)
                response = self._origins.preflight(request)
            else:
                check_encoding(request.headers)
                self._find(request)
                self._recognise(request)
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

    def _check_rate(self, rates: Rates, request: Request) -> None:
        """Known callers have a limit of their own, whatever their address; all others share the limit of their
        address.
        """
        authentication = self._node.guards.authentication
        caller = None
        if authentication.required:
            with suppress(LockstepError):
                caller = authentication.recognise(request.headers.get(b"authorization"))
        payer = request.address if caller is None else f"{caller.kind} {caller.name}"
        rates.check(payer, time.monotonic())

    def _find(self, request: Request) -> None:
        try:
            request.route, request.parameters = self._routes.find(request.method, request.path)
        finally:
            # Whether a page may send the request depends on the route. A page that is allowed must also be able to read
            # that the route does not exist.
            self._origins.check_page(request)

    async def respond(self, request: Request) -> Response | None:
        """The answer to a complete request; None if its client has gone."""
        counters = self._node.counters
        counters.in_flight += 1
        REQUEST_ID.set(request.id)  # for what is logged in this task, which ends with the answer
        response: Response | None = None
        try:
            request.check_no_body()
            caller = request.caller or await self._identify(request)
            response = await request.route.endpoint(self._node.seen_by(caller), request)
        except Disconnected:
            counters.polls_abandoned += 1
        except LockstepError as error:
            response = failure(error, request, self._node.failures)
        except Exception as error:
            response = unexpected(error, request)
        finally:
            counters.in_flight -= 1
            durations = counters.durations[request.verb or request.route.verb]
            durations.observe(self._count(request, response))
            durations.bytes_in += len(request.body)
            if response is not None:
                durations.bytes_out += len(response.body)
        return response

    def _recognise(self, request: Request) -> None:
        """The caller, if it can be identified from memory. Raises Unauthorized, Forbidden."""
        authentication = self._node.guards.authentication
        if request.route.right is None and authentication.required:
            request.caller = NOBODY
        else:
            request.caller = authentication.recognise(request.headers.get(b"authorization"))
            if request.caller is not None:
                self._check_entry(request.caller, request)

    async def _identify(self, request: Request) -> Caller:
        """The caller, identified by the store or the issuer of tokens."""
        caller = await self._node.guards.authentication.identify(request.headers.get(b"authorization"))
        self._check_entry(caller, request)
        request.caller = caller
        return caller

    def _check_entry(self, caller: Caller, request: Request) -> None:
        """Raises Forbidden if the caller does not have the right for this route on any queue."""
        route = request.route
        if not caller.may_enter(route.rights):
            if not ENTRY_AUDITED.isdisjoint(route.rights):
                self._node.guards.audit.note_denied(caller, f"{route.method} {route.path}")
            raise Forbidden(f"Insufficient permissions: this needs the right {' or '.join(route.rights)}")

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
        """The answer to a request that is refused before it is complete."""
        response = failure(error, request, self._node.failures)
        self._count(request, response)
        return response

    def _count(self, request: Request, response: Response | None) -> float:
        """Count the request; returns its duration in seconds."""
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
        return seconds

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
        address = (scope.get("client") or ("",))[0]
        request = self.request(scope["method"], path, scope["query_string"], dict(scope["headers"]), address)
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
                if isinstance(response, EventStream) and request.method != "HEAD":
                    await _send_events(send, response, request)
                    response = None
                watch.cancel()
        if response is not None:
            await _send(send, response, request)

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
    request.leave()


async def _send_events(send: Send, stream: EventStream, request: Request) -> None:
    headers = [
        *stream.headers,
        *request.answer_headers,
        AS_DECLARED,
        (b"x-request-id", request.id.encode("latin-1", "replace")),
    ]
    await send({"type": "http.response.start", "status": stream.status, "headers": headers})
    with suppress(Disconnected):
        async with aclosing(stream.events) as events:
            with request.while_connected():
                async for event in events:
                    await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


async def _send(send: Send, response: Response, request: Request) -> None:
    headers = [*response.headers, *request.answer_headers, AS_DECLARED]
    headers.append((b"x-request-id", request.id.encode("latin-1", "replace")))
    if response.status not in (204, 304):
        headers.append((b"content-length", str(len(response.body)).encode()))
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": response.body})


async def _lifespan(receive: Receive, send: Send) -> None:
    """The caller that runs the application opens and closes the engine, so there is nothing to do here."""
    while True:
        message: Any = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return

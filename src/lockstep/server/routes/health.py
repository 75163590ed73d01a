"""Whether the server is alive, and whether it is ready for traffic."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from msgspec import Struct

from lockstep.errors import Unavailable
from lockstep.server.exchange import Request, Response, answer
from lockstep.server.exposure import is_exposed
from lockstep.server.node import Node
from lockstep.server.routing import Route
from lockstep.version import VERSION


class Health(Struct, omit_defaults=True):
    status: str
    database: str
    version: str
    worker_id: str
    reason: str | None = None
    """The reason, if not."""
    insecure: bool = False
    """Whether everybody who can reach the server over a network may use it."""


async def health(node: Node, _: Request) -> Response:
    """Whether the server is alive and the database answers. A server that buffers pushes is alive without the database
    as well, because restarting it would stop the buffering; the answer is 503 if it cannot buffer."""
    reason = await _failure(node, node.engine.ping)
    if reason is None:
        return answer(Health("healthy", "connected", VERSION, node.name, insecure=is_exposed(node.config)))
    buffer = node.engine.counts.buffer
    if buffer is not None and buffer.has_room:
        return answer(Health("healthy", "disconnected", VERSION, node.name, reason))
    return answer(Health("unhealthy", "disconnected", VERSION, node.name, reason), 503)


async def ready(node: Node, _: Request) -> Response:
    """Ready for traffic: the database answers, its schema is ours, and the server is not about to stop."""
    if node.stopping:
        return answer(Health("stopping", "unknown", VERSION, node.name), 503)
    reason = await _failure(node, node.engine.ready)
    if reason is None:
        return answer(Health("ready", "connected", VERSION, node.name))
    return answer(Health("unready", "unknown", VERSION, node.name, reason), 503)


async def _failure(node: Node, look: Callable[[], Awaitable[None]]) -> str | None:
    """What is wrong. The wait is short, because health checks time out early and connecting would be retried for
    long."""
    try:
        async with asyncio.timeout(node.config.health_timeout_seconds):
            await look()
    except TimeoutError:
        return "the database did not answer in time (health_timeout_seconds)"
    except Unavailable as error:
        return error.message
    return None


ROUTES = [
    Route(
        method="GET",
        path="/health",
        endpoint=health,
        summary="Whether the server is alive and its database answers",
        right=None,
        answers=Health,
        also={503: Health},
    ),
    Route(
        method="GET",
        path="/ready",
        endpoint=ready,
        summary="Whether the server is ready for traffic",
        right=None,
        answers=Health,
        also={503: Health},
    ),
]

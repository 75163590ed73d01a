"""Whether the server lives, and whether it is ready for work."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from msgspec import Struct

from lockstep.errors import Unavailable
from lockstep.server.exchange import Request, Response, answer
from lockstep.server.node import Node
from lockstep.server.routing import Route
from lockstep.version import VERSION


class Health(Struct, omit_defaults=True):
    status: str
    database: str
    version: str
    worker_id: str
    reason: str | None = None
    """Why not."""


async def health(node: Node, _: Request) -> Response:
    """Alive, and whether the database answers. Without it, a server that buffers pushes is alive, too: whoever ended
    it would end that; 503 if it cannot."""
    reason = await _failure(node, node.engine.ping)
    if reason is None:
        return answer(Health("healthy", "connected", VERSION, node.name))
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
    """What is wrong. Whoever asks has little patience, while a connection would be tried again and again."""
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
        level="public",
        answers=Health,
        also={503: Health},
    ),
    Route(
        method="GET",
        path="/ready",
        endpoint=ready,
        summary="Whether the server is ready for traffic",
        level="public",
        answers=Health,
        also={503: Health},
    ),
]

"""Whether the server lives, and whether it is ready for work."""

from __future__ import annotations

from msgspec import Struct

from lockstep import errors
from lockstep.server.exchange import Request, Response, answer
from lockstep.server.node import Node
from lockstep.server.routing import Route
from lockstep.version import VERSION


class Health(Struct):
    status: str
    database: str
    version: str
    worker_id: str


async def health(node: Node, _: Request) -> Response:
    """Alive, and whether the database answers: 503 while it does not."""
    connected = await _connected(node)
    content = Health(
        status="healthy" if connected else "unhealthy",
        database="connected" if connected else "disconnected",
        version=VERSION,
        worker_id=node.name,
    )
    return answer(content, 200 if connected else 503)


async def ready(node: Node, request: Request) -> Response:
    """Ready for traffic: the database answers, its schema is ours, and the server is not about to stop."""
    if node.stopping:
        return answer(Health("stopping", "unknown", VERSION, node.name), 503)
    return await health(node, request)


async def _connected(node: Node) -> bool:
    try:
        await node.engine.ping()
    except errors.Unavailable:
        return False
    return True


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

"""Live leases: which messages are being worked on, and until when."""

from __future__ import annotations

from msgspec import Struct

from lockstep.core.wire.leases import LeasesAnswer, leases_answer
from lockstep.core.wire.pages import Limit
from lockstep.server.exchange import Request, Response, answer
from lockstep.server.node import Node
from lockstep.server.routing import Route


class LeasesQuery(Struct, frozen=True):
    queue: str | None = None
    limit: Limit = 100


async def leases(node: Node, request: Request) -> Response:
    query = request.query(LeasesQuery)
    return answer(leases_answer(await node.engine.leases(queue=query.queue or None, limit=query.limit)))


ROUTES = [
    Route(
        method="GET",
        path="/api/v1/leases",
        endpoint=leases,
        summary="Live leases, by deadline",
        right="browse",
        query=LeasesQuery,
        answers=LeasesAnswer,
    ),
]

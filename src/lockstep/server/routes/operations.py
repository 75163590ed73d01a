"""Operations: requests that were accepted while the server was busy, and the server's load."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from lockstep.core.operations import OperationStatus
from lockstep.core.wire import operations as wire
from lockstep.core.wire.pages import Limit
from lockstep.server.exchange import Request, Response, answer
from lockstep.server.node import Node
from lockstep.server.routing import Route


class OperationsQuery(Struct, frozen=True):
    status: OperationStatus | None = None
    queue: str | None = None
    limit: Limit = 100
    cursor: str | None = None


class OperationQuery(Struct, frozen=True):
    timeout: Annotated[int, Meta(ge=0, le=2**31)] = 0
    """Milliseconds to wait until the operation is applied or has failed."""


async def operations(node: Node, request: Request) -> Response:
    query = request.query(OperationsQuery)
    page = await node.engine.operations(
        status=query.status, queue=query.queue or None, cursor=query.cursor or None, limit=query.limit
    )
    return answer(wire.operations_answer(page))


async def stats(node: Node, _: Request) -> Response:
    return answer(wire.stats_answer(node.name, await node.engine.operation_stats()))


async def operation(node: Node, request: Request) -> Response:
    seconds = min(request.query(OperationQuery).timeout / 1000, node.config.pop_wait_seconds_max)
    info = await node.engine.operation(request.parameters["operationId"], wait_seconds=seconds)
    return answer(wire.operation_answer(info))


async def retry(node: Node, request: Request) -> Response:
    return answer(wire.operation_answer(await node.engine.retry_operation(request.parameters["operationId"])))


ROUTES = [
    Route(
        method="GET",
        path="/api/v1/operations",
        endpoint=operations,
        summary="Requests that wait to be applied, or were, oldest first",
        right="browse",
        query=OperationsQuery,
        answers=wire.OperationsAnswer,
    ),
    Route(
        method="GET",
        path="/api/v1/operations/stats",
        endpoint=stats,
        summary="What waits to be applied, and how busy the answering process is",
        right="browse",
        answers=wire.OperationStatsAnswer,
    ),
    Route(
        method="GET",
        path="/api/v1/operations/:operationId",
        endpoint=operation,
        summary="One operation: its place, and what became of it",
        right="browse",
        query=OperationQuery,
        answers=wire.OperationAnswer,
    ),
    Route(
        method="POST",
        path="/api/v1/operations/:operationId/retry",
        endpoint=retry,
        summary="Let an operation that failed wait again, in its old place",
        right="push",
        answers=wire.OperationAnswer,
    ),
]

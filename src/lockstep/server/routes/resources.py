"""Queues, partitions, namespaces and tasks, with their message counts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from msgspec import Struct

from lockstep.core.names import QUEUE_MODE
from lockstep.core.overview import total
from lockstep.core.policy import SECONDS_MAX
from lockstep.core.records import PartitionInfo, QueueInfo
from lockstep.core.wire import resources as wire
from lockstep.core.wire.pages import Limit, Offset, Pagination
from lockstep.engine.checks import check_limit
from lockstep.errors import GroupNotFound, InvalidRequest
from lockstep.server.exchange import Request, Response, answer
from lockstep.server.listing import (
    every_namespace,
    every_queue,
    every_task,
    some_partitions,
)
from lockstep.server.node import Node
from lockstep.server.routing import Route

_THROUGHPUT_SECONDS = 300


class ExactQuery(Struct, frozen=True):
    exact: bool = False
    """Count everything now, however long it takes."""


class QueuesQuery(ExactQuery, frozen=True):
    namespace: str | None = None
    task: str | None = None


class QueueQuery(ExactQuery, frozen=True):
    after: str | None = None
    """The name of a partition; partitions after it are listed."""
    limit: Limit = 1000
    """Maximum number of partitions in the answer."""


class PartitionsQuery(Struct, frozen=True):
    queue: str | None = None
    after: str | None = None
    """With a queue: the name of a partition; partitions after it are listed, without an offset."""
    prefix: str | None = None
    """With a queue: only partitions with this prefix."""
    limit: Limit = 100
    offset: Offset = 0
    """At most `page_items_max`. Beyond that, use `after`, queue by queue."""


class DepthQuery(ExactQuery, frozen=True):
    group: str = QUEUE_MODE
    limit: Limit = 1000
    """Maximum number of partitions to examine for the list of partitions."""


async def queues(node: Node, request: Request) -> Response:
    query = request.query(QueuesQuery)
    infos = await every_queue(node, namespace=query.namespace, task=query.task, exact=query.exact)
    now = datetime.now(UTC)
    return answer(wire.QueuesAnswer([wire.queue_row(info, now) for info in infos]))


async def queue(node: Node, request: Request) -> Response:
    name, query = request.parameters["queue"], request.query(QueueQuery)
    info = await node.engine.queue(name, exact=query.exact)
    return answer(wire.queue_answer(info, await node.engine.partitions(name, after=query.after, limit=query.limit)))


async def partitions(node: Node, request: Request) -> Response:
    query = request.query(PartitionsQuery)
    check_limit(query.limit, node.config)
    if query.offset > node.config.page_items_max:
        raise InvalidRequest(
            f"an offset is at most {node.config.page_items_max}: name a queue, and the last partition as `after`"
        )
    queues = [await node.engine.queue(query.queue)] if query.queue else await every_queue(node)
    if query.queue and (query.after or query.prefix):
        limit = query.offset + query.limit
        page = await node.engine.partitions(query.queue, after=query.after, prefix=query.prefix, limit=limit)
        found = page[query.offset :]
    else:
        found = await _partitions(node, queues, query.offset, query.limit)
    counted = total([info.partitions for info in queues])
    return answer(
        wire.PartitionsAnswer(
            [wire.partition_row(info) for info in found], Pagination(query.limit, query.offset, counted)
        )
    )


async def _partitions(node: Node, queues: list[QueueInfo], offset: int, limit: int) -> list[PartitionInfo]:
    """Up to `limit` partitions, starting at an offset in all of them."""
    found: list[PartitionInfo] = []
    for info in queues:
        # This count is exact, so a queue before the offset need not be read.
        if info.figures_at is None and info.partitions is not None and offset >= info.partitions:
            offset -= info.partitions
            continue
        page = await some_partitions(node, info.name, offset + limit - len(found))
        found += page[offset:]
        offset = max(offset - len(page), 0)
        if len(found) >= limit:
            break
    return found[:limit]


async def depth(node: Node, request: Request) -> Response:
    name, query = request.parameters["queue"], request.query(DepthQuery)
    sums = await node.engine.depth(name, query.group, exact=query.exact)
    partitions = await _partition_depths(node, name, query.group, query.limit)
    return answer(wire.depth_answer(sums, partitions, datetime.now(UTC)))


async def _partition_depths(node: Node, queue: str, group: str, limit: int) -> list[wire.PartitionDepth]:
    """Partitions with pending messages. If queue mode never popped, all messages are pending."""
    try:
        pending = [(lag.partition, lag.lag) for lag in await node.engine.lag(queue, group=group, limit=limit)]
    except GroupNotFound:
        pending = [(info.name, info.messages) for info in await node.engine.partitions(queue, limit=limit)]
    return [wire.PartitionDepth(name, count) for name, count in pending if count]


async def namespaces(node: Node, request: Request) -> Response:
    infos = await every_namespace(node, exact=request.query(ExactQuery).exact)
    return answer(wire.NamespacesAnswer([wire.namespace_row(info) for info in infos]))


async def tasks(node: Node, request: Request) -> Response:
    infos = await every_task(node, exact=request.query(ExactQuery).exact)
    return answer(wire.TasksAnswer([wire.task_row(info) for info in infos]))


async def overview(node: Node, request: Request) -> Response:
    now, exact = datetime.now(UTC), request.query(ExactQuery).exact
    return answer(wire.overview_answer(await node.engine.overview(exact=exact), await _throughput(node, now), now))


async def _throughput(node: Node, now: datetime) -> wire.Throughput:
    """Over the last minutes, as far as there are samples."""
    since = now - timedelta(seconds=_THROUGHPUT_SECONDS)
    spans = await node.engine.sample_spans(seconds=SECONDS_MAX, from_at=since, to_at=now)
    seconds = sum([span.seconds for span in spans]) or 1.0
    return wire.Throughput(
        sum([span.pushed for span in spans]) / seconds, sum([span.completed for span in spans]) / seconds
    )


ROUTES = [
    Route(
        method="GET",
        path="/api/v1/resources/overview",
        endpoint=overview,
        query=ExactQuery,
        summary="The whole store in one answer",
        right="browse",
        answers=wire.OverviewAnswer,
    ),
    Route(
        method="GET",
        path="/api/v1/resources/namespaces",
        endpoint=namespaces,
        query=ExactQuery,
        summary="Namespaces with their sums",
        right="browse",
        answers=wire.NamespacesAnswer,
    ),
    Route(
        method="GET",
        path="/api/v1/resources/tasks",
        endpoint=tasks,
        query=ExactQuery,
        summary="Tasks with their sums",
        right="browse",
        answers=wire.TasksAnswer,
    ),
    Route(
        method="GET",
        path="/api/v1/resources/queues",
        endpoint=queues,
        summary="All queues, by name",
        right="browse",
        query=QueuesQuery,
        answers=wire.QueuesAnswer,
    ),
    Route(
        method="GET",
        path="/api/v1/resources/queues/:queue",
        endpoint=queue,
        summary="One queue with its partitions",
        right="browse",
        query=QueueQuery,
        answers=wire.QueueAnswer,
    ),
    Route(
        method="GET",
        path="/api/v1/resources/queues/:queue/depth",
        endpoint=depth,
        summary="What a group has before it in a queue",
        right="browse",
        query=DepthQuery,
        answers=wire.DepthAnswer,
    ),
    Route(
        method="GET",
        path="/api/v1/resources/partitions",
        endpoint=partitions,
        summary="Partitions, by queue and name",
        right="browse",
        query=PartitionsQuery,
        answers=wire.PartitionsAnswer,
    ),
]

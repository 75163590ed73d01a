"""Queues, partitions, namespaces and tasks, with how much is in them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from msgspec import Struct

from lockstep.core.names import QUEUE_MODE
from lockstep.core.policy import SECONDS_MAX
from lockstep.core.records import PartitionInfo, QueueInfo
from lockstep.core.wire import resources as wire
from lockstep.core.wire.pages import Limit, Offset, Pagination
from lockstep.engine.checks import check_limit
from lockstep.errors import GroupNotFound
from lockstep.server.exchange import Request, Response, answer
from lockstep.server.listing import (
    every_lag,
    every_namespace,
    every_partition,
    every_queue,
    every_task,
    some_partitions,
)
from lockstep.server.node import Node
from lockstep.server.routing import Route

_THROUGHPUT_SECONDS = 300


class QueuesQuery(Struct, frozen=True):
    namespace: str | None = None
    task: str | None = None


class PartitionsQuery(Struct, frozen=True):
    queue: str | None = None
    limit: Limit = 100
    offset: Offset = 0


class DepthQuery(Struct, frozen=True):
    group: str = QUEUE_MODE


async def queues(node: Node, request: Request) -> Response:
    query = request.query(QueuesQuery)
    infos = await every_queue(node, namespace=query.namespace, task=query.task)
    return answer(wire.QueuesAnswer([wire.queue_row(info) for info in infos]))


async def queue(node: Node, request: Request) -> Response:
    name = request.parameters["queue"]
    info = await node.engine.queue(name)
    return answer(wire.queue_answer(info, await every_partition(node, name)))


async def partitions(node: Node, request: Request) -> Response:
    query = request.query(PartitionsQuery)
    check_limit(query.limit, node.config)
    queues = [await node.engine.queue(query.queue)] if query.queue else await every_queue(node)
    found = await _partitions(node, queues, query.offset, query.limit)
    total = sum([info.partitions for info in queues])
    return answer(
        wire.PartitionsAnswer(
            [wire.partition_row(info) for info in found], Pagination(query.limit, query.offset, total)
        )
    )


async def _partitions(node: Node, queues: list[QueueInfo], offset: int, limit: int) -> list[PartitionInfo]:
    """So many partitions from a place in all of them on; queues that lie before it are not looked into."""
    found: list[PartitionInfo] = []
    for info in queues:
        if offset < info.partitions:
            found += (await some_partitions(node, info.name, offset + limit - len(found)))[offset:]
        offset = max(offset - info.partitions, 0)
        if len(found) >= limit:
            break
    return found[:limit]


async def depth(node: Node, request: Request) -> Response:
    name, group = request.parameters["queue"], request.query(DepthQuery).group
    sums = await node.engine.depth(name, group)
    return answer(wire.depth_answer(sums, await _partition_depths(node, name, group)))


async def _partition_depths(node: Node, queue: str, group: str) -> list[wire.PartitionDepth]:
    """Partitions with something pending. Plain consumers that never came have all of it before them."""
    try:
        pending = [(lag.partition, lag.lag) for lag in await every_lag(node, queue, group)]
    except GroupNotFound:
        pending = [(info.name, info.messages) for info in await every_partition(node, queue)]
    return [wire.PartitionDepth(name, count) for name, count in pending if count]


async def namespaces(node: Node, _: Request) -> Response:
    return answer(wire.NamespacesAnswer([wire.namespace_row(info) for info in await every_namespace(node)]))


async def tasks(node: Node, _: Request) -> Response:
    return answer(wire.TasksAnswer([wire.task_row(info) for info in await every_task(node)]))


async def overview(node: Node, _: Request) -> Response:
    now = datetime.now(UTC)
    return answer(wire.overview_answer(await node.engine.overview(), await _throughput(node, now), now))


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
        summary="The whole store in one answer",
        level="ro",
        answers=wire.OverviewAnswer,
    ),
    Route(
        method="GET",
        path="/api/v1/resources/namespaces",
        endpoint=namespaces,
        summary="Namespaces with their sums",
        level="ro",
        answers=wire.NamespacesAnswer,
    ),
    Route(
        method="GET",
        path="/api/v1/resources/tasks",
        endpoint=tasks,
        summary="Tasks with their sums",
        level="ro",
        answers=wire.TasksAnswer,
    ),
    Route(
        method="GET",
        path="/api/v1/resources/queues",
        endpoint=queues,
        summary="All queues, by name",
        level="ro",
        query=QueuesQuery,
        answers=wire.QueuesAnswer,
    ),
    Route(
        method="GET",
        path="/api/v1/resources/queues/:queue",
        endpoint=queue,
        summary="One queue with its partitions",
        level="ro",
        answers=wire.QueueAnswer,
    ),
    Route(
        method="GET",
        path="/api/v1/resources/queues/:queue/depth",
        endpoint=depth,
        summary="What a group has before it in a queue",
        level="ro",
        query=DepthQuery,
        answers=wire.DepthAnswer,
    ),
    Route(
        method="GET",
        path="/api/v1/resources/partitions",
        endpoint=partitions,
        summary="Partitions, by queue and name",
        level="ro",
        query=PartitionsQuery,
        answers=wire.PartitionsAnswer,
    ),
]

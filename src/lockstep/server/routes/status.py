"""The state of the whole store, of its queues, and of current work."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated

from msgspec import Meta, Struct, field

from lockstep.core.overview import total
from lockstep.core.records import MessageFilter, MessageStatus, QueueInfo
from lockstep.core.wire import analytics
from lockstep.core.wire import status as wire
from lockstep.core.wire.messages import MessagesAnswer
from lockstep.core.wire.pages import Limit, Offset, Pagination
from lockstep.core.wire.resources import full_counts
from lockstep.core.wire.times import Time, parse_time_or_none, timestamp, timestamp_or_none
from lockstep.engine.checks import check_limit
from lockstep.server.exchange import Request, Response, answer
from lockstep.server.exposure import is_exposed
from lockstep.server.figures import all_figures
from lockstep.server.listing import every_queue
from lockstep.server.node import Node
from lockstep.server.process import buffer_rows
from lockstep.server.routes.messages import OFFSET_MAX, list_messages
from lockstep.server.routing import Route
from lockstep.server.timespan import AskedSpan, SpanQuery, spans_of

_BUCKETS = ((timedelta(hours=6), 1), (timedelta(days=7), 60))
"""Minutes that are aggregated into one point, for spans up to a length; beyond that, a day."""


class StatusQueuesQuery(Struct, frozen=True):
    namespace: str | None = None
    task: str | None = None
    search: str | None = None
    """Only queues with this text in their names, ignoring case."""
    sort: wire.QueueOrder = "name"
    """By name; or largest figure first. Unknown figures come last."""
    recent: bool = False
    """Include the rates of the last minutes, as far as there are samples."""
    limit: Limit = 100
    offset: Offset = 0


class StatusQueueQuery(Struct, frozen=True):
    limit: Limit = 1000
    """Maximum number of partitions in the answer."""


class QueueMessagesQuery(Struct, rename="camel", frozen=True):
    partition: str | None = None
    status: MessageStatus | None = None
    from_: Time | None = field(default=None, name="from")
    to: Time | None = None
    newest_first: bool = False
    limit: Limit = 200
    offset: Annotated[int, Meta(ge=0, le=OFFSET_MAX)] = 0
    cursor: str | None = None


async def status(node: Node, request: Request) -> Response:
    query, now = request.query(SpanQuery), datetime.now(UTC)
    span = AskedSpan.of(query)
    minutes = _bucket_minutes(span)
    points = analytics.points(await spans_of(node, query, span, seconds=minutes * 60))
    infos = await _queues(node, query)
    workers = [one.worker for one in await all_figures(node)]
    buffer = node.engine.counts.buffer
    return answer(
        wire.StatusAnswer(
            time_range=span.shown(),
            bucket_minutes=minutes,
            point_count=len(points),
            throughput=points,
            queues=[wire.status_queue(info, now) for info in infos],
            messages=full_counts(infos),
            leases=await _leases(node, query.queue or None),
            dead_letter_queue=wire.dead_letter_sums(infos),
            workers=workers,
            errors=wire.Failures(sum(one.client_errors for one in workers), sum(one.server_errors for one in workers)),
            buffer_bytes_lost=0 if buffer is None else buffer.bytes_lost,
            insecure=is_exposed(node.config),
        )
    )


def _bucket_minutes(span: AskedSpan) -> int:
    length = span.to_at - span.from_at
    return next((minutes for limit, minutes in _BUCKETS if length <= limit), 1440)


async def _queues(node: Node, query: SpanQuery) -> list[QueueInfo]:
    if query.queue:
        return [await node.engine.queue(query.queue)]
    return await every_queue(node, namespace=query.namespace, task=query.task)


async def _leases(node: Node, queue: str | None) -> wire.LeaseSums:
    """Leases are counted by partition only if they fit on one page."""
    size = node.config.page_items_max
    uses = await node.engine.utilisation(queue=queue)
    leases = await node.engine.leases(queue=queue, limit=size)
    distinct = len({lease.partition_id for lease in leases}) if len(leases) < size else None
    counted_at = min((use.figures_at for use in uses if use.figures_at is not None), default=None)
    return wire.LeaseSums(total([use.partitions_leased for use in uses]), distinct, timestamp_or_none(counted_at))


async def queues(node: Node, request: Request) -> Response:
    query = request.query(StatusQueuesQuery)
    check_limit(query.limit, node.config)
    infos = await every_queue(node, namespace=query.namespace, task=query.task)
    infos = wire.queues_in_order(infos, search=query.search, order=query.sort)
    now = datetime.now(UTC)
    shown = infos[query.offset : query.offset + query.limit]
    recent = await node.recent.of([info.name for info in shown]) if query.recent else {}
    rows = [wire.status_queue_row(info, now, recent.get(info.name)) for info in shown]
    return answer(wire.StatusQueuesAnswer(rows, Pagination(query.limit, query.offset, len(infos))))


async def queue(node: Node, request: Request) -> Response:
    name, limit = request.parameters["queue"], request.query(StatusQueueQuery).limit
    info, partitions = await node.engine.queue(name), await node.engine.partitions(name, limit=limit)
    return answer(wire.status_queue_answer(info, partitions, datetime.now(UTC)))


async def queue_messages(node: Node, request: Request) -> Response:
    query = request.query(QueueMessagesQuery)
    where = MessageFilter(
        queue=request.parameters["queue"],
        partition=query.partition or None,
        status=query.status,
        from_at=parse_time_or_none(query.from_, what="from"),
        to_at=parse_time_or_none(query.to, what="to"),
    )
    return await list_messages(node, where, query)


async def history(node: Node, request: Request) -> Response:
    query = request.query(SpanQuery)
    span = AskedSpan.of(query)
    spans = await spans_of(node, query, span, seconds=analytics.INTERVAL_SECONDS[query.interval])
    return answer(analytics.AnalyticsAnswer(query.interval, span.shown(), analytics.points(spans)))


async def buffers(node: Node, _: Request) -> Response:
    return answer(wire.BuffersAnswer(buffer_rows(node)))


async def refresh(node: Node, _: Request) -> Response:
    """Take the samples, and thereby the figures of large queues, as far as time allows."""
    return answer(wire.RefreshAnswer(True, await node.engine.sample(), timestamp(datetime.now(UTC))))


ROUTES = [
    Route(
        method="GET",
        path="/api/v1/status",
        endpoint=status,
        summary="The whole store: rates, queues, leases, dead letters",
        right="browse",
        query=SpanQuery,
        answers=wire.StatusAnswer,
    ),
    Route(
        method="GET",
        path="/api/v1/status/queues",
        endpoint=queues,
        summary="Queues with their sums: by name, or those with the most of something first",
        right="browse",
        query=StatusQueuesQuery,
        answers=wire.StatusQueuesAnswer,
    ),
    Route(
        method="GET",
        path="/api/v1/status/queues/:queue",
        endpoint=queue,
        summary="One queue with its options and partitions",
        right="browse",
        query=StatusQueueQuery,
        answers=wire.StatusQueueAnswer,
    ),
    Route(
        method="GET",
        path="/api/v1/status/queues/:queue/messages",
        endpoint=queue_messages,
        summary="The stored messages of a queue",
        right="browse",
        query=QueueMessagesQuery,
        answers=MessagesAnswer,
    ),
    Route(
        method="GET",
        path="/api/v1/status/analytics",
        endpoint=history,
        summary="Rates and lag over time",
        right="browse",
        query=SpanQuery,
        answers=analytics.AnalyticsAnswer,
    ),
    Route(
        method="GET",
        path="/api/v1/status/buffers",
        endpoint=buffers,
        summary="How requests are joined into calls of the store",
        right="browse",
        answers=wire.BuffersAnswer,
    ),
    Route(
        method="POST",
        path="/api/v1/stats/refresh",
        endpoint=refresh,
        summary="Take a sample of every queue now",
        right="admin",
        answers=wire.RefreshAnswer,
    ),
]

"""Rates, lag and removals over time, and the state of the server and its database."""

from __future__ import annotations

from msgspec import Struct

from lockstep.core.wire import analytics as wire
from lockstep.server.exchange import Request, Response, answer
from lockstep.server.figures import all_figures
from lockstep.server.listing import every_removal
from lockstep.server.node import Node
from lockstep.server.process import system_metrics
from lockstep.server.routing import Route
from lockstep.server.timespan import AskedSpan, PeriodQuery, SpanQuery, spans_by_queue, wanted_queues


async def queue_ops(node: Node, request: Request) -> Response:
    query = request.query(SpanQuery)
    span = AskedSpan.of(query)
    found = await spans_by_queue(node, query, span)
    queues = [wire.QueuePoints(name, wire.points(spans)) for name, spans in found.items()]
    return answer(wire.QueueOpsAnswer(query.interval, span.shown(), queues))


async def queue_lag(node: Node, request: Request) -> Response:
    query = request.query(SpanQuery)
    span = AskedSpan.of(query)
    found = await spans_by_queue(node, query, span)
    queues = [wire.QueueLagPoints(name, wire.lag_points(spans)) for name, spans in found.items()]
    return answer(wire.QueueLagAnswer(query.interval, span.shown(), queues))


async def retention(node: Node, request: Request) -> Response:
    query = request.query(SpanQuery)
    span = AskedSpan.of(query)
    removals = await every_removal(node, queue=query.queue or None, from_at=span.from_at, to_at=span.to_at)
    wanted = await wanted_queues(node, query)
    removals = [removal for removal in removals if wanted is None or removal.queue in wanted]
    return answer(wire.retention_answer(span.shown(), removals, await node.engine.duties()))


async def requests(node: Node, request: Request) -> Response:
    query = request.query(PeriodQuery)
    span = AskedSpan.of(query)
    found = await node.engine.server_spans(
        seconds=wire.INTERVAL_SECONDS[query.interval], from_at=span.from_at, to_at=span.to_at
    )
    return answer(wire.RequestsAnswer(query.interval, span.shown(), wire.request_points(found)))


class UtilisationQuery(Struct, frozen=True):
    queue: str | None = None


async def utilisation(node: Node, request: Request) -> Response:
    found = await node.engine.utilisation(queue=request.query(UtilisationQuery).queue or None)
    return answer(wire.utilisation_answer(found))


async def database_activity(node: Node, _: Request) -> Response:
    return answer(wire.database_activity_answer(await node.engine.database_activity()))


async def database_stats(node: Node, _: Request) -> Response:
    return answer(wire.database_stats_answer(await node.engine.database_stats()))


async def system(node: Node, _: Request) -> Response:
    return answer(system_metrics(node))


async def workers(node: Node, _: Request) -> Response:
    return answer(wire.WorkerMetricsAnswer([one.worker for one in await all_figures(node)]))


ROUTES = [
    Route(
        method="GET",
        path="/api/v1/analytics/queue-ops",
        endpoint=queue_ops,
        summary="What was pushed and processed, by queue and time",
        right="browse",
        query=SpanQuery,
        answers=wire.QueueOpsAnswer,
    ),
    Route(
        method="GET",
        path="/api/v1/analytics/queue-lag",
        endpoint=queue_lag,
        summary="What was pending, and for how long, by queue and time",
        right="browse",
        query=SpanQuery,
        answers=wire.QueueLagAnswer,
    ),
    Route(
        method="GET",
        path="/api/v1/analytics/retention",
        endpoint=retention,
        summary="What maintenance removed, and how its duties are doing",
        right="browse",
        query=SpanQuery,
        answers=wire.RetentionAnswer,
    ),
    Route(
        method="GET",
        path="/api/v1/analytics/requests",
        endpoint=requests,
        summary="Requests, errors and load of all servers, by time",
        right="browse",
        query=PeriodQuery,
        answers=wire.RequestsAnswer,
    ),
    Route(
        method="GET",
        path="/api/v1/analytics/utilisation",
        endpoint=utilisation,
        summary="How busy each group is: partitions that are leased, ready, waiting and stopped",
        right="browse",
        query=UtilisationQuery,
        answers=wire.UtilisationAnswer,
    ),
    Route(
        method="GET",
        path="/api/v1/analytics/postgres-stats",
        endpoint=database_stats,
        summary="The database as PostgreSQL counts it",
        right="browse",
        answers=wire.DatabaseStatsAnswer,
    ),
    Route(
        method="GET",
        path="/api/v1/analytics/postgres-activity",
        endpoint=database_activity,
        summary="How much the database writes, and what keeps it from cleaning up",
        right="browse",
        answers=wire.DatabaseActivityAnswer,
    ),
    Route(
        method="GET",
        path="/api/v1/analytics/system-metrics",
        endpoint=system,
        summary="What the answering process uses",
        right="browse",
        answers=wire.SystemMetricsAnswer,
    ),
    Route(
        method="GET",
        path="/api/v1/analytics/worker-metrics",
        endpoint=workers,
        summary="What the processes behind this port have done",
        right="browse",
        answers=wire.WorkerMetricsAnswer,
    ),
]

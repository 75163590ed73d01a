"""The counters of the process that answers: as JSON, and for Prometheus."""

from __future__ import annotations

from lockstep.core.wire import metrics as wire
from lockstep.server.exchange import Request, Response, answer
from lockstep.server.exposition import exposition
from lockstep.server.node import Node
from lockstep.server.process import buffer_rows, system_metrics
from lockstep.server.routing import Route
from lockstep.version import VERSION

_TEXT = "text/plain; version=0.0.4; charset=utf-8"


async def metrics(node: Node, _: Request) -> Response:
    return answer(_metrics(node))


async def prometheus(node: Node, _: Request) -> Response:
    return Response(200, exposition(_metrics(node)).encode(), (b"content-type", _TEXT.encode()))


def _metrics(node: Node) -> wire.MetricsAnswer:
    counters, waiting, system = node.counters, node.engine.counts.waiting, system_metrics(node)
    return wire.MetricsAnswer(
        worker_id=node.name,
        version=VERSION,
        uptime_seconds=system.uptime_seconds,
        requests=_requests(node),
        messages=wire.Messages(
            counters.messages_pushed, counters.messages_duplicate, counters.messages_popped, counters.messages_acked
        ),
        polls=wire.Polls(
            waiting.polls, waiting.woken, counters.polls_abandoned, waiting.precheck_hits, waiting.precheck_misses
        ),
        batching=buffer_rows(node),
        pool=system.pool,
        cache=system.cache,
        buffer=_buffer(node),
        load=_load(node),
        operations=_operations(node),
        cpu=system.cpu,
        memory=system.memory,
    )


def _buffer(node: Node) -> wire.Buffer:
    counts = node.engine.counts
    away = counts.breaker == "open"
    if counts.buffer is None:
        return wire.Buffer(breaker_open=away)
    buffered = {name: getattr(counts.buffer, name) for name in wire.Buffer.__struct_fields__ if name != "breaker_open"}
    return wire.Buffer(**buffered, breaker_open=away)


def _requests(node: Node) -> wire.Requests:
    counters = node.counters
    return wire.Requests(
        total=sum(counters.requests.values()),
        in_flight=counters.in_flight,
        by_route=[wire.RequestRow(*key, count) for key, count in sorted(counters.requests.items())],
        seconds=[wire.RouteSeconds(*key, seconds) for key, seconds in sorted(counters.seconds.items())],
    )


def _operations(node: Node) -> wire.OperationsRow:
    counts = node.engine.counts
    return wire.OperationsRow(counts.operations_applied, counts.operations_failed)


def _load(node: Node) -> list[wire.LoadRow]:
    return [
        wire.LoadRow(
            kind, state.answer.value, round(state.load, 4), state.depth, state.queued, state.rejected, state.changes
        )
        for kind, state in node.engine.counts.load.items()
    ]


ROUTES = [
    Route(
        method="GET",
        path="/metrics",
        endpoint=metrics,
        summary="The counters of the answering process",
        level="public",
        answers=wire.MetricsAnswer,
    ),
    Route(
        method="GET",
        path="/metrics/prometheus",
        endpoint=prometheus,
        summary="The same, for Prometheus",
        level="public",
        media="text/plain",
    ),
]

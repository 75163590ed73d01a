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
        cpu=system.cpu,
        memory=system.memory,
    )


def _requests(node: Node) -> wire.Requests:
    counters = node.counters
    return wire.Requests(
        total=sum(counters.requests.values()),
        in_flight=counters.in_flight,
        by_route=[wire.RequestRow(*key, count) for key, count in sorted(counters.requests.items())],
        seconds=[wire.RouteSeconds(*key, seconds) for key, seconds in sorted(counters.seconds.items())],
    )


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

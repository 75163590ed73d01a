"""The counters: as JSON of the process that answers, and for Prometheus of all that share its port."""

from __future__ import annotations

from lockstep.core.wire import metrics as wire
from lockstep.server.exchange import Request, Response, answer
from lockstep.server.exposition import exposition
from lockstep.server.figures import all_figures, metrics_of
from lockstep.server.node import Node
from lockstep.server.routing import Route

_TEXT = "text/plain; version=0.0.4; charset=utf-8"


async def metrics(node: Node, _: Request) -> Response:
    return answer(metrics_of(node))


async def prometheus(node: Node, _: Request) -> Response:
    figures = [one.metrics for one in await all_figures(node)]
    return Response(200, exposition(figures).encode(), (b"content-type", _TEXT.encode()))


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
        summary="The counters of all processes behind this port, for Prometheus",
        level="public",
        media="text/plain",
    ),
]

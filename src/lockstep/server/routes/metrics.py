"""Counters: as JSON for the answering process, and for Prometheus for all processes on its port."""

from __future__ import annotations

import msgspec

from lockstep.core.wire import metrics as wire
from lockstep.server.auth.callers import NOBODY, Caller
from lockstep.server.counters import OTHER
from lockstep.server.exchange import Request, Response, answer
from lockstep.server.exposition import CONTENT_TYPE, exposition
from lockstep.server.figures import Figures, all_figures, metrics_of
from lockstep.server.node import Node
from lockstep.server.routing import Route
from lockstep.server.store_exposition import store_exposition


async def metrics(node: Node, _: Request) -> Response:
    return answer(metrics_of(node))


async def prometheus(node: Node, request: Request) -> Response:
    """Everybody may read the sums. Figures that name queues, and those of the store, are for callers who may browse."""
    caller = await _caller(node, request)
    text = exposition([_visible(one, caller) for one in await all_figures(node)])
    if caller is not NOBODY:
        text += await store_exposition(node.seen_by(caller))
    return Response(200, text, (b"content-type", CONTENT_TYPE.encode()))


async def _caller(node: Node, request: Request) -> Caller:
    """The caller; NOBODY without a key on a server with authentication. Raises Unauthorized for an invalid key."""
    authentication, header = node.guards.authentication, request.headers.get(b"authorization")
    if authentication.required and header is None:
        return NOBODY
    return authentication.recognise(header) or await authentication.identify(header)


def _visible(figures: Figures, caller: Caller) -> Figures:
    return msgspec.structs.replace(
        figures, pushed=_named(figures.pushed, caller), popped=_named(figures.popped, caller)
    )


def _named(sums: dict[str, int], caller: Caller) -> dict[str, int]:
    if "browse" in caller.rights.everywhere:
        return sums
    shown: dict[str, int] = {}
    for queue, count in sums.items():
        name = queue if caller.rights.may("browse", queue) else OTHER
        shown[name] = shown.get(name, 0) + count
    return shown


ROUTES = [
    Route(
        method="GET",
        path="/metrics",
        endpoint=metrics,
        summary="The counters of the answering process",
        right=None,
        answers=wire.MetricsAnswer,
    ),
    Route(
        method="GET",
        path="/metrics/prometheus",
        endpoint=prometheus,
        summary="The counters of all processes behind this port, and the figures of the store, for Prometheus",
        right=None,
        media="text/plain",
    ),
]

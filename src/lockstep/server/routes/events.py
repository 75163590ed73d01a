"""Events: the answers of other routes, sent whenever they change."""

from __future__ import annotations

from msgspec import Struct

from lockstep.core.wire import events as wire
from lockstep.server.auth.callers import NOBODY
from lockstep.server.exchange import EventStream, Request, Response
from lockstep.server.node import Node
from lockstep.server.routing import Route


class EventsQuery(Struct, frozen=True):
    watch: str
    """Paths of GET routes that answer JSON, with their query strings, separated by spaces."""


async def events(node: Node, request: Request) -> Response:
    paths = wire.watched_paths(request.query(EventsQuery).watch)
    caller = request.caller or NOBODY
    return EventStream(node.live.events(paths, caller, last_id=request.header(b"last-event-id")))


ROUTES = [
    Route(
        method="GET",
        path="/api/v1/events",
        endpoint=events,
        summary="Server-sent events: the answers of other routes, whenever they change",
        right="browse",
        query=EventsQuery,
        media="text/event-stream",
    ),
]

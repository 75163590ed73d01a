"""Trace events: what consumers report about a message."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from lockstep.core.wire import traces as wire
from lockstep.core.wire.delivery import partition_number
from lockstep.core.wire.pages import Limit, Offset
from lockstep.server.exchange import Request, Response, answer
from lockstep.server.node import Node
from lockstep.server.routing import Route

_trace_body = msgspec.json.Decoder(wire.TraceBody)


class TracePageQuery(Struct, frozen=True):
    limit: Limit = 100
    offset: Offset = 0


class TraceQuery(Struct, frozen=True):
    limit: Limit = 1000


async def record_trace(node: Node, request: Request) -> Response:
    body = request.json(_trace_body)
    trace_id = await node.engine.record_trace(wire.trace_event(body))
    return answer(wire.TraceAnswer(True, str(trace_id)), 201)


async def traces_of_message(node: Node, request: Request) -> Response:
    partition_id = partition_number(request.parameters["partitionId"])
    limit = node.config.page_items_max
    events = await node.engine.traces_of_message(partition_id, request.parameters["transactionId"], limit=limit)
    return answer(wire.traces_answer(events))


async def traces_by_name(node: Node, request: Request) -> Response:
    query = request.query(TracePageQuery)
    page = await node.engine.traces_by_name(request.parameters["name"], limit=query.limit, offset=query.offset)
    return answer(wire.named_traces_answer(page, limit=query.limit, offset=query.offset))


async def trace_names(node: Node, request: Request) -> Response:
    query = request.query(TracePageQuery)
    page = await node.engine.trace_names(limit=query.limit, offset=query.offset)
    return answer(wire.trace_names_answer(page, limit=query.limit, offset=query.offset))


async def trace(node: Node, request: Request) -> Response:
    trace_id, limit = request.parameters["traceId"], request.query(TraceQuery).limit
    return answer(wire.trace_answer(trace_id, await node.engine.trace(trace_id, limit=limit)))


ROUTES = [
    Route(
        method="GET",
        path="/api/v1/traces/:traceId",
        endpoint=trace,
        summary="The messages of a trace over all queues, by time",
        right="browse",
        query=TraceQuery,
        answers=wire.TraceMessagesAnswer,
    ),
    Route(
        method="POST",
        path="/api/v1/traces",
        endpoint=record_trace,
        summary="Tell something about a message",
        right="pop",
        body=wire.TraceBody,
        answers=wire.TraceAnswer,
        status=201,
    ),
    Route(
        method="GET",
        path="/api/v1/traces/names",
        endpoint=trace_names,
        summary="The names of trace events, the one seen last first",
        right="browse",
        query=TracePageQuery,
        answers=wire.TraceNamesAnswer,
    ),
    Route(
        method="GET",
        path="/api/v1/traces/by-name/:name",
        endpoint=traces_by_name,
        summary="Trace events with a name, newest first",
        right="browse",
        query=TracePageQuery,
        answers=wire.NamedTracesAnswer,
    ),
    Route(
        method="GET",
        path="/api/v1/traces/:partitionId/:transactionId",
        endpoint=traces_of_message,
        summary="The trace events of a message, oldest first",
        right="browse",
        answers=wire.TracesAnswer,
    ),
]

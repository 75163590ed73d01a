"""Stream queries: the server side of stream processing that clients run."""

from __future__ import annotations

import msgspec

from lockstep.core.wire import streams as wire
from lockstep.core.wire.delivery import batches_of
from lockstep.errors import QueueFull, StreamConfigMismatch, TransactionRolledBack
from lockstep.server.exchange import Request, Response, answer
from lockstep.server.node import Node
from lockstep.server.routing import Route

_query_body = msgspec.json.Decoder(wire.QueryBody)
_state_body = msgspec.json.Decoder(wire.StateBody)
_cycle_body = msgspec.json.Decoder(wire.CycleBody)


async def register_stream_query(node: Node, request: Request) -> Response:
    body = request.json(_query_body)
    try:
        query = await node.engine.register_stream_query(wire.new_query(body))
    except StreamConfigMismatch as error:
        return answer(wire.QueryRefused(False, error.message, error.code), error.status)
    return answer(wire.query_answer(query))


async def stream_state(node: Node, request: Request) -> Response:
    body = request.json(_state_body)
    return answer(wire.state_answer(await node.engine.stream_state(wire.state_filter(body))))


async def stream_cycle(node: Node, request: Request) -> Response:
    """Every outcome is a 200: clients repeat a 5xx, and a refused cycle must not be repeated."""
    body = request.json(_cycle_body)
    batches, order = batches_of(body.push_items)
    try:
        result = await node.engine.stream_cycle(wire.cycle_of(body), batches)
    except TransactionRolledBack as error:
        return answer(wire.cycle_refused(body, error.message, code=error.code, outcome=error.details["outcomes"][0]))
    except QueueFull as error:
        return answer(wire.cycle_refused(body, error.message, code=error.code, outcome=None))
    node.counters.messages_pushed += len(result.pushed)
    node.counters.messages_duplicate += result.pushed.duplicates
    node.counters.messages_acked += 0 if result.ack is None else result.ack.messages
    return answer(wire.cycle_answer(body, result, order))


ROUTES = [
    Route(
        method="POST",
        path="/streams/v1/queries",
        endpoint=register_stream_query,
        summary="Find a stream query by its name, or create it",
        right="pop",
        body=wire.QueryBody,
        answers=wire.QueryAnswer,
        also={409: wire.QueryRefused},
    ),
    Route(
        method="POST",
        path="/streams/v1/state/get",
        endpoint=stream_state,
        summary="The state of a stream query on one partition, by key",
        right="browse",
        body=wire.StateBody,
        answers=wire.StateAnswer,
    ),
    Route(
        method="POST",
        path="/streams/v1/cycle",
        endpoint=stream_cycle,
        summary="One step of a stream query: state, pushes and an ack, all or nothing",
        right="pop",
        body=wire.CycleBody,
        answers=wire.CycleAnswer,
    ),
]

"""Queues: configure, delete and clear."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from lockstep.core.names import DEFAULT_PARTITION
from lockstep.core.records import ClearScope
from lockstep.core.wire import queues as wire
from lockstep.server.exchange import Request, Response, answer
from lockstep.server.node import Node
from lockstep.server.routing import Route

_configure_body = msgspec.json.Decoder(wire.ConfigureBody)


class ClearQuery(Struct, frozen=True):
    partition: str | None = None
    scope: ClearScope = "all"
    """`unleased` leaves what is under a live lease."""


async def configure(node: Node, request: Request) -> Response:
    body = await request.json(_configure_body)
    asked = wire.options_of(body.options)
    info = await node.engine.configure(body.queue, wire.queue_options(asked), namespace=body.namespace, task=body.task)
    partition = await node.engine.partition(body.queue, DEFAULT_PARTITION)
    return answer(wire.configure_answer(info, partition.id, asked))


async def delete_queue(node: Node, request: Request) -> Response:
    queue = request.parameters["queue"]
    existed = await node.engine.delete_queue(queue)
    return answer(wire.DeleteQueueAnswer(deleted=True, queue=queue, existed=existed))


async def clear(node: Node, request: Request) -> Response:
    queue, query = request.parameters["queue"], request.query(ClearQuery)
    removed = await node.engine.clear(queue, partition=query.partition, scope=query.scope)
    return answer(wire.ClearAnswer(True, queue, query.partition, query.scope, removed))


ROUTES = [
    Route(
        method="POST",
        path="/api/v1/configure",
        endpoint=configure,
        summary="Create a queue, or replace its whole configuration",
        level="rw",
        body=wire.ConfigureBody,
        answers=wire.ConfigureAnswer,
    ),
    Route(
        method="DELETE",
        path="/api/v1/resources/queues/:queue",
        endpoint=delete_queue,
        summary="Remove a queue with all that belongs to it",
        level="admin",
        answers=wire.DeleteQueueAnswer,
    ),
    Route(
        method="DELETE",
        path="/api/v1/queues/:queue/clear",
        endpoint=clear,
        summary="Remove the messages of a queue or a partition",
        level="admin",
        query=ClearQuery,
        answers=wire.ClearAnswer,
    ),
]

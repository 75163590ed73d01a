"""Queues: configure, delete and clear."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime

import msgspec
from msgspec import Struct

from lockstep.core.names import DEFAULT_PARTITION
from lockstep.core.policy import encryption_stays
from lockstep.core.records import ClearScope
from lockstep.core.wire import queues as wire
from lockstep.core.wire.pages import Limit
from lockstep.core.wire.resources import QueuesAnswer, queue_row
from lockstep.errors import QueueNotFound
from lockstep.server.exchange import Request, Response, answer
from lockstep.server.node import Node
from lockstep.server.routing import Route

_configure_body = msgspec.json.Decoder(wire.ConfigureBody)
_update_body = msgspec.json.Decoder(wire.UpdateBody)


class ClearQuery(Struct, frozen=True):
    partition: str | None = None
    scope: ClearScope = "all"
    """`unleased` keeps messages under a live lease; `scheduled` removes only scheduled messages."""


class QueuePageQuery(Struct, frozen=True):
    namespace: str | None = None
    task: str | None = None
    from_name: str | None = msgspec.field(default=None, name="from")
    """The first name of the page, which need not exist."""
    limit: Limit = 100
    exact: bool = False
    """Count everything now, however long it takes."""


class StatsQuery(Struct, frozen=True):
    after: str | None = None
    """The last partition of the previous page."""
    limit: Limit = 100


class RedriveQuery(Struct, frozen=True):
    limit: Limit = 1000


async def configure(node: Node, request: Request) -> Response:
    body = request.json(_configure_body)
    asked = wire.options_of(body.options)
    await _refuse_to_stop_encryption(node, body)
    info = await node.engine.configure(body.queue, wire.queue_options(asked), namespace=body.namespace, task=body.task)
    if info.options.encryption:  # stays on if the request does not mention it
        asked = msgspec.structs.replace(asked, encryption_enabled=True)
    partition = await node.engine.partition(body.queue, DEFAULT_PARTITION)
    return answer(wire.configure_answer(info, partition.id, asked))


async def _refuse_to_stop_encryption(node: Node, body: wire.ConfigureBody) -> None:
    """The queue of a request without this option stays encrypted. A request to switch it off must not seem to
    succeed.
    """
    if wire.option_changes(body.options).get("encryption") is False:
        with suppress(QueueNotFound):
            if (await node.engine.queue(body.queue)).options.encryption:
                raise encryption_stays()


async def update(node: Node, request: Request) -> Response:
    body = request.json(_update_body)
    changes = wire.option_changes(body.options)
    info = await node.engine.update_queue(
        request.parameters["queue"], changes, namespace=body.namespace, task=body.task
    )
    shown = wire.shown_options(info.options)
    return answer(wire.UpdateAnswer(True, info.name, info.namespace, info.task, shown))


async def queues(node: Node, request: Request) -> Response:
    query = request.query(QueuePageQuery)
    infos = await node.engine.queues(
        namespace=query.namespace, task=query.task, from_name=query.from_name, limit=query.limit, exact=query.exact
    )
    now = datetime.now(UTC)
    return answer(QueuesAnswer([queue_row(info, now) for info in infos]))


async def stats(node: Node, request: Request) -> Response:
    queue, query = request.parameters["queue"], request.query(StatsQuery)
    return answer(wire.stats_answer(queue, await node.engine.stats(queue, after=query.after, limit=query.limit)))


async def redrive(node: Node, request: Request) -> Response:
    queue, query = request.parameters["queue"], request.query(RedriveQuery)
    return answer(wire.RedriveQueueAnswer(queue, await node.engine.redrive_queue(queue, limit=query.limit)))


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
        method="GET",
        path="/api/v1/queues",
        endpoint=queues,
        summary="Queues by name, from a name on",
        right="browse",
        query=QueuePageQuery,
        answers=QueuesAnswer,
    ),
    Route(
        method="PATCH",
        path="/api/v1/queues/:queue",
        endpoint=update,
        summary="Change some options of a queue; the others stay",
        right="manage",
        body=wire.UpdateBody,
        answers=wire.UpdateAnswer,
    ),
    Route(
        method="GET",
        path="/api/v1/queues/:queue/stats",
        endpoint=stats,
        summary="What lies in the partitions of a queue now",
        right="browse",
        query=StatsQuery,
        answers=wire.StatsAnswer,
    ),
    Route(
        method="POST",
        path="/api/v1/queues/:queue/redrive",
        endpoint=redrive,
        summary="Send messages of a dead queue back to where they came from",
        right="push",
        query=RedriveQuery,
        answers=wire.RedriveQueueAnswer,
    ),
    Route(
        method="POST",
        path="/api/v1/configure",
        endpoint=configure,
        summary="Create a queue, or replace its whole configuration",
        right="manage",
        body=wire.ConfigureBody,
        answers=wire.ConfigureAnswer,
    ),
    Route(
        method="DELETE",
        path="/api/v1/resources/queues/:queue",
        endpoint=delete_queue,
        summary="Remove a queue with all that belongs to it",
        right="configure",
        answers=wire.DeleteQueueAnswer,
    ),
    Route(
        method="DELETE",
        path="/api/v1/queues/:queue/clear",
        endpoint=clear,
        summary="Remove the messages of a queue or a partition",
        right="configure",
        query=ClearQuery,
        answers=wire.ClearAnswer,
    ),
]

"""Dead letters: list, show, redrive and purge."""

from __future__ import annotations

import msgspec
from msgspec import Struct, field

from lockstep.core.names import DEFAULT_PARTITION
from lockstep.core.records import DeadLetterFilter
from lockstep.core.wire import dead_letters as wire
from lockstep.core.wire.numbers import number_of
from lockstep.core.wire.pages import Limit, Offset
from lockstep.core.wire.times import Time, parse_time_or_none
from lockstep.server.exchange import Request, Response, answer
from lockstep.server.node import Node
from lockstep.server.routing import Route

_redrive_body = msgspec.json.Decoder(wire.RedriveBody)
_purge_body = msgspec.json.Decoder(wire.DeadLetterSelection)


class DeadLettersQuery(Struct, rename="camel", frozen=True):
    queue: str | None = None
    consumer_group: str | None = None
    partition: str | None = None
    """`Default` does not filter: clients always send it."""
    from_: Time | None = field(default=None, name="from")
    """Failed at or after."""
    to: Time | None = None
    """Failed before."""
    limit: Limit = 100
    offset: Offset = 0


async def dead_letters(node: Node, request: Request) -> Response:
    query = request.query(DeadLettersQuery)
    where = DeadLetterFilter(
        queue=query.queue or None,
        partition=None if query.partition in ("", DEFAULT_PARTITION) else query.partition,
        group=query.consumer_group or None,
        from_at=parse_time_or_none(query.from_, what="from"),
        to_at=parse_time_or_none(query.to, what="to"),
    )
    page = await node.engine.dead_letters(where, limit=query.limit, offset=query.offset)
    return answer(wire.dead_letters_answer(page, limit=query.limit, offset=query.offset))


async def dead_letter(node: Node, request: Request) -> Response:
    letter = await node.engine.dead_letter(number_of(request.parameters["id"], what="id"))
    return answer(wire.dead_letter_row(letter))


async def redrive(node: Node, request: Request) -> Response:
    body = request.json(_redrive_body)
    return answer(wire.RedriveAnswer(True, await node.engine.redrive(wire.selected(body), limit=body.limit)))


async def purge(node: Node, request: Request) -> Response:
    body = request.json(_purge_body)
    return answer(wire.PurgeAnswer(True, await node.engine.purge(wire.selected(body))))


ROUTES = [
    Route(
        method="GET",
        path="/api/v1/dlq",
        endpoint=dead_letters,
        summary="Dead letters, newest first",
        right="browse",
        query=DeadLettersQuery,
        answers=wire.DeadLettersAnswer,
    ),
    Route(
        method="GET",
        path="/api/v1/dlq/:id",
        endpoint=dead_letter,
        summary="One dead letter",
        right="browse",
        answers=wire.DeadLetterRow,
    ),
    Route(
        method="POST",
        path="/api/v1/dlq/redrive",
        endpoint=redrive,
        summary="Push the messages of dead letters again, oldest first",
        right="push",
        body=wire.RedriveBody,
        answers=wire.RedriveAnswer,
    ),
    Route(
        method="POST",
        path="/api/v1/dlq/purge",
        endpoint=purge,
        summary="Remove dead letters",
        right="configure",
        body=wire.DeadLetterSelection,
        answers=wire.PurgeAnswer,
    ),
]

"""Scheduled messages: list, show, cancel, reschedule; and recurring messages."""

from __future__ import annotations

import msgspec
from msgspec import Struct, field

from lockstep.core.schedules import ScheduleFilter, ScheduleName, SchedulePage
from lockstep.core.wire import schedules as wire
from lockstep.core.wire.numbers import number_of
from lockstep.core.wire.pages import Limit
from lockstep.core.wire.times import Time, parse_time_or_none
from lockstep.errors import ScheduleNotFound
from lockstep.server.exchange import Request, Response, answer
from lockstep.server.node import Node
from lockstep.server.routing import Route

_reschedule_body = msgspec.json.Decoder(wire.RescheduleBody)
_cron_body = msgspec.json.Decoder(wire.CronBody)


class SchedulesQuery(Struct, rename="camel", frozen=True):
    queue: str | None = None
    partition: str | None = None
    key: str | None = None
    """Only the message with this key; requires a queue, and excludes other filters."""
    key_prefix: str | None = None
    from_: Time | None = field(default=None, name="from")
    """Due at or after."""
    to: Time | None = None
    """Due before."""
    cursor: str | None = None
    """The `nextCursor` of the previous page."""
    limit: Limit = 100


class KeyQuery(Struct, rename="camel", frozen=True):
    queue: str
    key: str


class CronsQuery(Struct, rename="camel", frozen=True):
    after: str | None = None
    """Recurring messages after this name."""
    limit: Limit = 100


async def schedules(node: Node, request: Request) -> Response:
    query = request.query(SchedulesQuery)
    if query.key:
        return answer(wire.schedules_answer(await _page_of_key(node, query)))
    where = ScheduleFilter(
        queue=query.queue or None,
        partition=query.partition or None,
        key_prefix=query.key_prefix or None,
        from_at=parse_time_or_none(query.from_, what="from"),
        to_at=parse_time_or_none(query.to, what="to"),
    )
    page = await node.engine.schedules(where, cursor=query.cursor or None, limit=query.limit)
    return answer(wire.schedules_answer(page))


async def _page_of_key(node: Node, query: SchedulesQuery) -> SchedulePage:
    try:
        found = [await node.engine.schedule(ScheduleName(queue=query.queue or None, key=query.key))]
    except ScheduleNotFound:
        found = []
    return SchedulePage(items=found, next_cursor=None)


def _named(request: Request) -> ScheduleName:
    """Identified by the id in the path, or by queue and key in the query."""
    if "id" in request.parameters:
        return ScheduleName(id=number_of(request.parameters["id"], what="id"))
    query = request.query(KeyQuery)
    return ScheduleName(queue=query.queue, key=query.key)


async def schedule(node: Node, request: Request) -> Response:
    return answer(wire.schedule_row(await node.engine.schedule(_named(request))))


async def cancel(node: Node, request: Request) -> Response:
    return answer(wire.CancelAnswer(await node.engine.cancel_schedule(_named(request))))


async def reschedule(node: Node, request: Request) -> Response:
    body = request.json(_reschedule_body)
    return answer(wire.schedule_row(await node.engine.reschedule(_named(request), wire.new_time(body))))


async def crons(node: Node, request: Request) -> Response:
    query = request.query(CronsQuery)
    found = await node.engine.crons(after=query.after, limit=query.limit)
    return answer(wire.CronsAnswer([wire.cron_row(cron) for cron in found]))


async def cron(node: Node, request: Request) -> Response:
    return answer(wire.cron_row(await node.engine.cron(request.parameters["name"])))


async def set_cron(node: Node, request: Request) -> Response:
    body = request.json(_cron_body)
    return answer(wire.cron_row(await node.engine.set_cron(wire.cron_of(body))))


async def remove_cron(node: Node, request: Request) -> Response:
    return answer(wire.RemoveCronAnswer(await node.engine.remove_cron(request.parameters["name"])))


ROUTES = [
    Route(
        method="GET",
        path="/api/v1/schedules",
        endpoint=schedules,
        summary="Messages that wait for their time, by due time",
        right="browse",
        query=SchedulesQuery,
        answers=wire.SchedulesAnswer,
    ),
    Route(
        method="DELETE",
        path="/api/v1/schedules",
        endpoint=cancel,
        summary="Cancel the waiting message with a key",
        right="push",
        query=KeyQuery,
        answers=wire.CancelAnswer,
    ),
    Route(
        method="PATCH",
        path="/api/v1/schedules",
        endpoint=reschedule,
        summary="Give the waiting message with a key another time",
        right="push",
        query=KeyQuery,
        body=wire.RescheduleBody,
        answers=wire.ScheduleRow,
    ),
    Route(
        method="GET",
        path="/api/v1/schedules/:id",
        endpoint=schedule,
        summary="One waiting message",
        right="browse",
        answers=wire.ScheduleRow,
    ),
    Route(
        method="DELETE",
        path="/api/v1/schedules/:id",
        endpoint=cancel,
        summary="Cancel a waiting message",
        right="push",
        answers=wire.CancelAnswer,
    ),
    Route(
        method="PATCH",
        path="/api/v1/schedules/:id",
        endpoint=reschedule,
        summary="Give a waiting message another time",
        right="push",
        body=wire.RescheduleBody,
        answers=wire.ScheduleRow,
    ),
    Route(
        method="GET",
        path="/api/v1/crons",
        endpoint=crons,
        summary="Recurring messages, by name",
        right="browse",
        query=CronsQuery,
        answers=wire.CronsAnswer,
    ),
    Route(
        method="POST",
        path="/api/v1/crons",
        endpoint=set_cron,
        summary="Create or replace a recurring message",
        right="push",
        body=wire.CronBody,
        answers=wire.CronRow,
    ),
    Route(
        method="GET",
        path="/api/v1/crons/:name",
        endpoint=cron,
        summary="One recurring message",
        right="browse",
        answers=wire.CronRow,
    ),
    Route(
        method="DELETE",
        path="/api/v1/crons/:name",
        endpoint=remove_cron,
        summary="Remove a recurring message",
        right="push",
        answers=wire.RemoveCronAnswer,
    ),
]

"""Scheduled and recurring messages: promotion, and the verbs of operators."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

import asyncpg

from lockstep.core import crons
from lockstep.core.crons import Cron, NewCron
from lockstep.core.messages import Batch, Columns, NewSchedule, join_columns
from lockstep.core.schedules import (
    Promoted,
    Scheduled,
    ScheduleFilter,
    ScheduleName,
    SchedulePage,
    fields_of,
    parse_schedule_cursor,
    schedule_cursor,
)
from lockstep.core.sealing import cron_binding, waiting_binding
from lockstep.errors import CronNotFound, LockstepError, QueueFull, ScheduleNotFound, Unavailable
from lockstep.storage.postgres import sql
from lockstep.storage.postgres.cache import forgetting_on_failure
from lockstep.storage.postgres.context import Context
from lockstep.storage.postgres.lookups import Lookups
from lockstep.storage.postgres.push.conversation import Pushed
from lockstep.storage.postgres.push.pushes import Pushes
from lockstep.storage.postgres.push.scheduled import pack, unpack


class _NextDue(NamedTuple):
    due_at: datetime | None
    now: datetime


_NEXT_DUE = sql.procedure("next_due", _NextDue)
_CRONS_DUE = "select name from lockstep.cron where next_at <= $1 order by next_at, name limit $2"
_QUEUES_DUE: sql.Procedure[Any] = sql.procedure("queues_due")
_TAKE_DUE: sql.Procedure[Any] = sql.procedure("take_due")
_DELETE = "delete from lockstep.scheduled where id = any ($1::bigint[])"
_ADVANCE_CRON = (
    "update lockstep.cron set next_at = $2::timestamptz, last_at = coalesce($3::timestamptz, last_at) where name = $1"
)
_SET_CRON: sql.Procedure[None] = sql.procedure("set_cron")
_ENABLE_CRON = "update lockstep.cron set enabled = $2, next_at = $3::timestamptz where name = $1"
_REMOVE_CRON = "delete from lockstep.cron where name = $1 returning name"
_CRON_COLUMNS = ("name", "queue", "partition", "expression", "timezone", "catch_up", "enabled")
"""Those that are stored as they are given."""
_NOW = "select coalesce($1::timestamptz, clock_timestamp())"
_PROMOTED_BYTES_MAX = 16 * 1024**2
"""Approximate size of one transaction; a larger message goes alone."""


class PostgresSchedules:
    """Scheduled and recurring messages."""

    def __init__(self, context: Context, lookups: Lookups, pushes: Pushes) -> None:
        self._context = context
        self._lookups = lookups
        self._pushes = pushes

    async def schedules(self, where: ScheduleFilter, *, cursor: str | None = None, limit: int = 100) -> SchedulePage:
        given = (*_begin(where, cursor), where.to_at, where.key_prefix, limit + 1)
        if where.queue is None:
            rows = await self._context.query("schedule_list", *given)
        else:
            queue_id = await self._lookups.queue_id(where.queue)
            rows = await self._context.query("schedule_list_of_queue", *given, queue_id, where.partition)
        items = [self._scheduled(row) for row in rows[:limit]]
        ends = len(rows) <= limit
        return SchedulePage(items=items, next_cursor=None if ends else schedule_cursor(items[-1].due_at, items[-1].id))

    async def schedule(self, which: ScheduleName) -> Scheduled:
        rows = await self._context.query("schedule_find", which.id, which.queue, which.key)
        if not rows:
            raise _no_schedule(which)
        return self._scheduled(rows[0])

    async def cancel_schedule(self, which: ScheduleName) -> bool:
        return bool(await self._context.query("schedule_cancel", which.id, which.queue, which.key))

    async def reschedule(self, which: ScheduleName, schedule: NewSchedule) -> Scheduled:
        moved = (schedule.deliver_at, float(schedule.delay_seconds or 0), self._context.now())
        rows = await self._context.query("schedule_move", which.id, which.queue, which.key, *moved)
        if not rows:
            raise _no_schedule(which)
        return self._scheduled(rows[0])

    def _scheduled(self, row: Any) -> Scheduled:
        schedule_id, queue, partition, due_at, created_at, key, *stored = row
        columns = self._waiting_columns(schedule_id, partition, key, *stored)
        return Scheduled(
            id=schedule_id,
            queue=queue,
            partition=partition,
            due_at=due_at,
            created_at=created_at,
            key=key,
            **fields_of(columns),
        )

    def _waiting_columns(
        self,
        schedule_id: int,
        partition: str,
        key: str | None,
        codec: int,
        body: bytes,
        queue_id: int,
        must_be_sealed: bool,
    ) -> Columns:
        encryption = self._context.encryption
        if must_be_sealed:
            encryption.require_sealed(codec, f"the message that waits as schedule {schedule_id}")
        return unpack(codec, body, encryption, waiting_binding(queue_id, partition, key))

    async def promote(self, *, limit: int) -> Promoted:
        due_at, now = await self._context.database.value(_NEXT_DUE(after=None, at=self._context.now()))
        promoted = Promoted()
        if due_at is not None and due_at <= now:
            for (name,) in await self._context.database.fetch("crons_due", _CRONS_DUE, now, limit):
                await self._run_cron(name, now, limit, promoted)
            for queue_id, queue in await self._context.database.call(_QUEUES_DUE(at=now)):
                await self._promote_queue(queue_id, queue, now, limit, promoted)
            due_at = (await self._context.database.value(_NEXT_DUE(after=now, at=self._context.now()))).due_at
        promoted.next_at = due_at
        promoted.wait_seconds = None if due_at is None else max((due_at - now).total_seconds(), 0.0)
        return promoted

    async def _promote_queue(self, queue_id: int, queue: str, now: datetime, limit: int, promoted: Promoted) -> None:
        """Push the due messages of one queue, as far as they fit, and remove their schedules, in one transaction."""

        async def work(connection: asyncpg.Connection[Any]) -> tuple[list[Any], int, Pushed | None]:
            take = _TAKE_DUE(queue_id=queue_id, limit=limit, bytes=_PROMOTED_BYTES_MAX, at=now)
            rows = await self._context.database.call(take, connection)
            if not rows:
                return [], 0, None
            fitting, pushed = await self._push_fitting(connection, (queue_id, queue), rows)
            await self._context.database.on(connection, "schedule_delete", _DELETE, [row["id"] for row in fitting])
            return fitting, len(rows), pushed

        try:
            fitting, found, pushed = await self._pushes.creating({queue}, work)
        except Unavailable:
            raise
        except LockstepError as error:  # a queue that cannot take its messages must not hold up the others
            promoted.postponed[queue] = f"{type(error).__name__}: {error}"
            return
        if pushed is not None:
            self._pushes.remember(pushed)
            promoted.more |= found == len(fitting)
            for _, partition, *_ in fitting:
                promoted.add(queue, partition, 1)

    async def _push_fitting(
        self, connection: asyncpg.Connection[Any], queue: tuple[int, str], rows: list[Any]
    ) -> tuple[list[Any], Pushed]:
        """Push the messages that were taken; if the queue has no room for all of them, only the first ones. Raises
        QueueFull if there is no room at all."""
        try:
            # A push that is refused must leave no new partitions behind.
            with forgetting_on_failure():
                async with connection.transaction():
                    return rows, await self._push_due(connection, self._batches(*queue, rows))
        except QueueFull as error:
            room = int(error.details["max_size"]) - int(error.details["depth"])
            if room <= 0:
                raise
            # The queue's row has been locked since they were taken, so no other push can use the room.
            fitting = rows[:room]
            return fitting, await self._push_due(connection, self._batches(*queue, fitting))

    async def _push_due(self, connection: asyncpg.Connection[Any], batches: Sequence[Batch]) -> Pushed:
        return await self._pushes.on(connection, batches, overtake=True)

    def _batches(self, queue_id: int, queue: str, rows: Sequence[Any]) -> list[Batch]:
        """A batch for each partition, in due order."""
        columns: dict[str, list[Columns]] = {}
        for schedule_id, partition, codec, body, key, must_be_sealed in rows:
            message = self._waiting_columns(schedule_id, partition, key, codec, body, queue_id, must_be_sealed)
            columns.setdefault(partition, []).append(message)
        return [Batch(queue, partition, join_columns(parts)) for partition, parts in columns.items()]

    async def _run_cron(self, name: str, now: datetime, limit: int, promoted: Promoted) -> None:
        """Push a recurring message, and set its next time, in one transaction that holds its row."""

        async def work(connection: asyncpg.Connection[Any]) -> tuple[Cron, crons.Due, Pushed | None] | None:
            rows = await self._context.database.on(connection, "cron_take", sql.query("cron_take"), name, now)
            if not rows:
                return None
            cron = self._cron(rows[0])
            late = self._context.timing.cron_late_seconds_max
            due = crons.due(cron, cron.next_at or now, now, late_seconds_max=late, limit=limit)
            pushed = None
            if due.times:
                pushed = await self._push_due(connection, [crons.batch_of(cron, due.times)])
            last_at = due.times[-1] if due.times else None
            await self._context.database.on(connection, "cron_advance", _ADVANCE_CRON, name, due.next_at, last_at)
            return cron, due, pushed

        try:
            done = await self._pushes.creating(set(), work)
        except Unavailable:
            raise
        except LockstepError as error:
            promoted.postponed[f"cron {name}"] = f"{type(error).__name__}: {error}"
            return
        if done is None:
            return
        cron, due, pushed = done
        promoted.more |= due.next_at is not None and due.next_at <= now
        if pushed is not None:
            self._pushes.remember(pushed)
            promoted.add(cron.queue, cron.partition, len(due.times) - pushed.result.duplicates)

    async def set_cron(self, cron: NewCron) -> Cron:
        names = await self._lookups.queue(cron.queue)
        keys = self._context.encryption.keys_for(cron.queue) if names is not None and names.encryption else None
        now = (await self._context.database.fetch("now", _NOW, self._context.now()))[0][0]
        binding = cron_binding(cron.name, cron.queue, cron.partition)
        codec, body = pack(crons.batch_of(cron, [now]).columns, keys, binding)
        call = _SET_CRON(
            **{name: getattr(cron, name) for name in _CRON_COLUMNS},
            codec=codec,
            body=body,
            next_at=crons.next_time(cron, now),
            at=now,
        )
        await self._context.database.call(call)
        return await self.cron(cron.name)

    async def crons(self, *, after: str | None = None, limit: int = 100) -> list[Cron]:
        return [self._cron(row) for row in await self._context.query("cron_list", None, after, limit)]

    async def cron(self, name: str) -> Cron:
        rows = await self._context.query("cron_list", name, None, 1)
        if not rows:
            raise _no_cron(name)
        return self._cron(rows[0])

    async def enable_cron(self, name: str, enabled: bool) -> Cron:
        async def work(connection: asyncpg.Connection[Any]) -> None:
            rows = await self._context.database.on(connection, "cron_hold", sql.query("cron_hold"), name)
            known = self._cron(rows[0]) if rows else None
            if known is None:
                raise _no_cron(name)
            if known.enabled != enabled:
                now = (await self._context.database.on(connection, "now", _NOW, self._context.now()))[0][0]
                next_at = crons.next_time(known, now) if enabled else None
                await self._context.database.on(connection, "cron_enable", _ENABLE_CRON, name, enabled, next_at)

        await self._context.database.transaction(work)
        return await self.cron(name)

    async def remove_cron(self, name: str) -> bool:
        return bool(await self._context.database.fetch("remove_cron", _REMOVE_CRON, name))

    def _cron(self, row: Any) -> Cron:
        known = dict(row)
        binding = cron_binding(known["name"], known["queue"], known["partition"])
        message = fields_of(unpack(known.pop("codec"), known.pop("body"), self._context.encryption, binding))
        return Cron(
            **known, **{name: message[name] for name in ("payload", "headers", "kind", "reference", "encoding")}
        )


def _begin(where: ScheduleFilter, cursor: str | None) -> tuple[datetime | None, int]:
    """Due time and id after which the page begins: a single position, where the index scan starts."""
    places = [parse_schedule_cursor(cursor), None if where.from_at is None else (where.from_at, 0)]
    return max([place for place in places if place is not None], default=(None, 0))


def _no_schedule(which: ScheduleName) -> ScheduleNotFound:
    return ScheduleNotFound(f"no message waits as schedule {which}")


def _no_cron(name: str) -> CronNotFound:
    return CronNotFound(f"there is no recurring message {name!r}", name=name)

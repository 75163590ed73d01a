"""Queues and groups as an operator sees them: configure, subscribe, seek, delete a group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lockstep.core import refusals
from lockstep.core.names import QUEUE_MODE
from lockstep.core.policy import OPTION_NAMES, GroupMode, QueueOptions
from lockstep.core.records import GroupInfo, Position, QueueInfo, Subscription
from lockstep.errors import GroupModeMismatch, SparkStreamNotFound
from lockstep.storage.postgres.placing import SUBSCRIBE, Placing

CONFIGURE = f"select lockstep.configure({', '.join(f'${i}' for i in range(1, len(OPTION_NAMES) + 5))})"
_SET_SUBSCRIPTION = """
insert into lockstep.subscription as s (queue_id, group_name, mode, from_at, created_at)
select t.queue_id, $2, $3, $4::timestamptz, coalesce($5::timestamptz, clock_timestamp())
from (
    select g.queue_id from lockstep.consumer_group g where g.name = $2
    union select s.queue_id from lockstep.subscription s where s.group_name = $2
    union select $1::int where $1 is not null
) t
where $1::int is null or t.queue_id = $1
on conflict (queue_id, group_name) do update
set mode = excluded.mode, from_at = excluded.from_at, created_at = excluded.created_at
returning s.queue_id
"""
_SEEK = "select * from lockstep.seek($1, $2::bigint, $3, $4::timestamptz, $5::bigint, $6::timestamptz)"
_SEEK_CURRENT = "select lockstep.seek_current($1, $2::bigint, $3, $4::timestamptz)"
_COUNT_PARTITIONS = "select count(*) from lockstep.partition where queue_id = $1"
_GROUP_QUEUES = """
select q.id, q.name from lockstep.queue q
where ($1::int is null or q.id = $1) and (
    exists (select 1 from lockstep.consumer_group g where g.queue_id = q.id and g.name = $2)
    or exists (select 1 from lockstep.subscription s where s.queue_id = q.id and s.group_name = $2))
order by q.id
"""
_FORGET_FIRST_POLLS = "select lockstep.forget_first_polls($1, $2)"
_DELETE_GROUP = "select * from lockstep.delete_group($1, $2, $3, $4::timestamptz)"
_FORGET_STREAM = "select lockstep.forget_stream($1)"
_ACCEPT_POSITION = "select lockstep.accept_position($1)"


class Administration(Placing):
    async def configure(
        self, queue: str, options: QueueOptions, *, namespace: str | None = None, task: str | None = None
    ) -> QueueInfo:
        values = [getattr(options, name) for name in OPTION_NAMES]

        async def work() -> list[Any]:
            return await self.database.fetch("configure", CONFIGURE, queue, namespace, task, *values, self.now())

        await self._with_names([queue], work)
        self.names.forget(queue)
        return await self.queue(queue)

    async def queue(self, queue: str, *, exact: bool = False) -> QueueInfo:
        found = await self._query(
            "queue_list", queue, None, None, None, 1, self.now(), None, exact, self.figures_units_max
        )
        if not found:
            raise refusals.no_queue(queue)
        return queue_info(found[0])

    async def subscribe(
        self, queue: str, group: str, subscription: Subscription, *, mode: GroupMode | None = None
    ) -> GroupInfo:
        async def work() -> GroupInfo:
            queue_id = await self._queue_id(queue)
            given = (subscription.mode, subscription.from_at, mode)
            rows = await self.database.fetch("subscribe", SUBSCRIBE, queue_id, group, *given, self.now())
            if not rows[0][2]:
                await self._place_group(rows[0][0])
            if mode not in (None, rows[0][1]):
                raise GroupModeMismatch(f"group {group!r} on queue {queue!r} is {rows[0][1]}, not {mode}")
            return group_info((await self._groups(queue_id, group))[0])

        return await self._with_names([queue], work)

    async def set_subscription(self, group: str, subscription: Subscription, *, queue: str | None = None) -> int:
        queue_id = None if queue is None else await self._queue_id(queue)
        given = (subscription.mode, subscription.from_at)
        rows = await self.database.fetch("set_subscription", _SET_SUBSCRIPTION, queue_id, group, *given, self.now())
        if not rows:
            raise refusals.no_group(group, queue)
        return len(rows)

    async def seek(self, queue: str, group: str, position: Position, *, partition: str | None = None) -> int:
        async def work() -> int:
            queue_id = await self._queue_id(queue)
            group_id = await self._group_id(queue, queue_id, group)
            partition_id = None if partition is None else await self._partition_id(queue, queue_id, partition)
            if position.kind == "current" and partition_id is None:
                return await self._seek_current(queue_id, group_id)
            target = (position.kind, position.at, position.seq)
            rows = await self.database.fetch("seek", _SEEK, group_id, partition_id, *target, self.now())
            moved: int = rows[0][0]
            if partition_id is None:
                self.names.forget(queue)
                await self._settle(group_id, rows[0][1])
            return moved

        return await self._with_names([queue], work)

    async def _seek_current(self, queue_id: int, group_id: int) -> int:
        after: int | None = 0
        while after is not None:
            given = (group_id, after, self.slice_partitions_max, self.now())
            after = (await self.database.fetch("seek_current", _SEEK_CURRENT, *given))[0][0]
        counted: int = (await self.database.fetch("count_partitions", _COUNT_PARTITIONS, queue_id))[0][0]
        return counted

    async def delete_group(self, group: str, *, queue: str | None = None, forget_subscription: bool = True) -> int:
        queue_id = None if queue is None else await self._queue_id(queue)
        found = await self.database.fetch("group_queues", _GROUP_QUEUES, queue_id, group)
        if not found:
            raise refusals.no_group(group, queue)

        async def work(connection: Any) -> list[Any]:
            gone = []
            for row in found:
                given = (row[0], group, forget_subscription, self.now())
                gone += await self.database.on(connection, "delete_group", _DELETE_GROUP, *given)
            if forget_subscription:
                await self.database.on(connection, "forget_first_polls", _FORGET_FIRST_POLLS, queue, group)
            return gone

        gone = await self.database.transaction(work)
        for row in found:
            self.names.forget(row[1])
        self.memory.noted.clear()
        await self._settle(*[deleted_id for _, deleted_id in gone if deleted_id is not None])
        return sum(deleted for deleted, _ in gone)

    async def forget_spark_stream(self, stream_id: str) -> int:
        rows = await self.database.fetch("forget_stream", _FORGET_STREAM, stream_id)
        if not rows[0][0]:
            raise SparkStreamNotFound(f"there is no Spark stream {stream_id!r}")
        return int(rows[0][0])

    async def accept_spark_stream(self, stream_id: str) -> int:
        rows = await self.database.fetch("accept_position", _ACCEPT_POSITION, stream_id)
        if not rows[0][0]:
            raise SparkStreamNotFound(f"there is no Spark stream {stream_id!r}")
        return int(rows[0][0])

    async def groups(
        self, *, queue: str | None = None, group: str | None = None, exact: bool = False
    ) -> list[GroupInfo]:
        queue_id = None if queue is None else await self._queue_id(queue)
        return [group_info(row) for row in await self._groups(queue_id, group, exact=exact)]

    async def _groups(self, queue_id: int | None, group: str | None, *, exact: bool = False) -> list[Any]:
        return await self._query("group_list", queue_id, group, self.now(), exact, self.figures_units_max)


def queue_info(row: Any) -> QueueInfo:
    """A queue from a row of `queue_list`."""
    return QueueInfo(
        id=row[0],
        name=row[1],
        namespace=row[2],
        task=row[3],
        created_at=row[4],
        partitions=row[5],
        messages=row[6],
        pending=row[7],
        processing=row[8],
        dead_letters=row[9],
        oldest_at=row[10] if row[7] else None,
        figures_at=row[11],
        options=queue_options(row[12:]),
    )


def queue_options(values: Sequence[Any]) -> QueueOptions:
    """The options of a queue, from the columns that a query has for them."""
    return QueueOptions(**dict(zip(OPTION_NAMES, values, strict=True)))


def group_info(row: Any) -> GroupInfo:
    """A group from a row of `group_list`."""
    return GroupInfo(
        name=row[0],
        queue=row[1],
        created_at=row[2],
        subscription=Subscription("all" if row[0] == QUEUE_MODE or row[3] is None else row[3], row[4]),
        partitions=row[5],
        partitions_with_lag=row[6],
        lag=row[7],
        in_flight=row[8],
        unread=row[7] - row[8],
        leases=row[9],
        oldest_at=row[10],
        mode=row[11],
        figures_at=row[12],
    )

"""Consumer groups: where they begin, where they are, and moving them."""

from __future__ import annotations

from typing import Any

from lockstep.core import refusals
from lockstep.core.names import QUEUE_MODE
from lockstep.core.overview import rest
from lockstep.core.policy import GroupMode
from lockstep.core.records import Depth, GroupInfo, PartitionLag, Position, SeekPreview, SparkStreamInfo, Subscription
from lockstep.errors import GroupModeMismatch, SparkStreamNotFound
from lockstep.storage.postgres import sql
from lockstep.storage.postgres.calls import due_at_of
from lockstep.storage.postgres.context import Context
from lockstep.storage.postgres.lookups import Lookups
from lockstep.storage.postgres.placing import SUBSCRIBE, Placing

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
_PAUSE_GROUP = """
update lockstep.consumer_group g
set paused_at = case when $3 then coalesce(g.paused_at, $4::timestamptz, clock_timestamp()) end
where g.queue_id = $1 and g.name = $2
returning g.id
"""
_SEEK: sql.Procedure[Any] = sql.procedure("seek")
_PREVIEW_SEEK: sql.Procedure[Any] = sql.procedure("preview_seek")
_SEEK_CURRENT: sql.Procedure[int | None] = sql.procedure("seek_current")
_COUNT_PARTITIONS = "select count(*) from lockstep.partition where queue_id = $1"
_GROUP_QUEUES = """
select q.id, q.name from lockstep.queue q
where ($1::int is null or q.id = $1) and (
    exists (select 1 from lockstep.consumer_group g where g.queue_id = q.id and g.name = $2)
    or exists (select 1 from lockstep.subscription s where s.queue_id = q.id and s.group_name = $2))
order by q.id
"""
_FORGET_FIRST_POLLS: sql.Procedure[None] = sql.procedure("forget_first_polls")
_DELETE_GROUP: sql.Procedure[Any] = sql.procedure("delete_group")
_FORGET_STREAM: sql.Procedure[int] = sql.procedure("forget_stream")
_ACCEPT_POSITION: sql.Procedure[int] = sql.procedure("accept_position")


class PostgresGroups:
    """Consumer groups."""

    def __init__(self, context: Context, lookups: Lookups, placing: Placing) -> None:
        self._context = context
        self._lookups = lookups
        self._placing = placing

    async def subscribe(
        self, queue: str, group: str, subscription: Subscription, *, mode: GroupMode | None = None
    ) -> GroupInfo:
        async def work() -> GroupInfo:
            queue_id = await self._lookups.queue_id(queue)
            await self._placing.check_room(queue_id, group)
            call = SUBSCRIBE(
                queue_id=queue_id,
                group=group,
                mode=subscription.mode,
                from_at=subscription.from_at,
                given_mode=mode,
                at=self._context.now(),
            )
            group_id, group_mode, placed = await self._context.database.value(call)
            if not placed:
                await self._placing.group(group_id)
            if mode not in (None, group_mode):
                raise GroupModeMismatch(f"group {group!r} on queue {queue!r} is {group_mode}, not {mode}")
            return _group_info((await self._groups(queue_id, group))[0])

        return await self._lookups.retrying([queue], work)

    async def set_subscription(self, group: str, subscription: Subscription, *, queue: str | None = None) -> int:
        queue_id = None if queue is None else await self._lookups.queue_id(queue)
        given = (subscription.mode, subscription.from_at)
        rows = await self._context.database.fetch(
            "set_subscription", _SET_SUBSCRIPTION, queue_id, group, *given, self._context.now()
        )
        if not rows:
            raise refusals.no_group(group, queue)
        return len(rows)

    async def seek(self, queue: str, group: str, position: Position, *, partition: str | None = None) -> int:
        async def work() -> int:
            queue_id = await self._lookups.queue_id(queue)
            group_id = await self._lookups.group_id(queue, queue_id, group)
            partition_id = None if partition is None else await self._lookups.partition_id(queue, queue_id, partition)
            if position.kind == "current" and partition_id is None:
                return await self._seek_current(queue_id, group_id)
            call = _SEEK(
                group_id=group_id,
                partition_id=partition_id,
                kind=position.kind,
                time=position.at,
                seq=position.seq,
                at=self._context.now(),
            )
            moved, new_id = await self._context.database.value(call)
            if partition_id is None:
                self._context.names.forget(queue)
                await self._placing.settle(group_id, new_id)
            return int(moved)

        return await self._lookups.retrying([queue], work)

    async def preview_seek(
        self, queue: str, group: str, position: Position, *, partition: str | None = None, limit: int = 1000
    ) -> SeekPreview:
        async def work() -> SeekPreview:
            queue_id = await self._lookups.queue_id(queue)
            group_id = await self._lookups.group_id(queue, queue_id, group)
            partition_id = None if partition is None else await self._lookups.partition_id(queue, queue_id, partition)
            call = _PREVIEW_SEEK(
                group_id=group_id,
                partition_id=partition_id,
                kind=position.kind,
                time=position.at,
                seq=position.seq,
                partitions_max=limit,
                at=self._context.now(),
            )
            partitions, read_again, skipped, leases, complete = await self._context.database.value(call)
            return SeekPreview(
                partitions=partitions, read_again=read_again, skipped=skipped, leases=leases, complete=complete
            )

        return await self._lookups.retrying([queue], work)

    async def _seek_current(self, queue_id: int, group_id: int) -> int:
        after: int | None = 0
        while after is not None:
            partitions = self._context.limits.slice_partitions_max
            call = _SEEK_CURRENT(group_id=group_id, after=after, partitions=partitions, at=self._context.now())
            after = await self._context.database.value(call)
        counted: int = (await self._context.database.fetch("count_partitions", _COUNT_PARTITIONS, queue_id))[0][0]
        return counted

    async def pause_group(self, queue: str, group: str, *, paused: bool = True) -> None:
        queue_id = await self._lookups.queue_id(queue)
        given = (queue_id, group, paused, self._context.now())
        # A group that is moved at this moment has another row afterwards, which only another statement sees.
        if not await self._context.database.fetch("pause_group", _PAUSE_GROUP, *given) and not (
            await self._context.database.fetch("pause_group", _PAUSE_GROUP, *given)
        ):
            raise refusals.no_group(group, queue)

    async def delete_group(self, group: str, *, queue: str | None = None, forget_subscription: bool = True) -> int:
        queue_id = None if queue is None else await self._lookups.queue_id(queue)
        found = await self._context.database.fetch("group_queues", _GROUP_QUEUES, queue_id, group)
        if not found:
            raise refusals.no_group(group, queue)

        async def work(connection: Any) -> list[Any]:
            gone = []
            for queue_id, _ in found:
                call = _DELETE_GROUP(
                    queue_id=queue_id, group=group, forget_subscription=forget_subscription, at=self._context.now()
                )
                gone += await self._context.database.call(call, connection)
            if forget_subscription:
                await self._context.database.call(_FORGET_FIRST_POLLS(queue=queue, group=group), connection)
            return gone

        gone = await self._context.database.transaction(work)
        for _, name in found:
            self._context.names.forget(name)
        self._context.memory.noted.clear()
        await self._placing.settle(*[deleted_id for _, deleted_id in gone if deleted_id is not None])
        return sum(deleted for deleted, _ in gone)

    async def groups(
        self, *, queue: str | None = None, group: str | None = None, exact: bool = False
    ) -> list[GroupInfo]:
        queue_id = None if queue is None else await self._lookups.queue_id(queue)
        return [_group_info(row) for row in await self._groups(queue_id, group, exact=exact)]

    async def _groups(self, queue_id: int | None, group: str | None, *, exact: bool = False) -> list[Any]:
        return await self._context.query(
            "group_list", queue_id, group, self._context.now(), exact, self._context.limits.figures_units_max
        )

    async def lag(
        self,
        queue: str,
        *,
        group: str | None = None,
        partition: str | None = None,
        after_partition_id: int = 0,
        limit: int = 1000,
    ) -> list[PartitionLag]:
        queue_id = await self._lookups.queue_id(queue)
        group_id = None if group is None else await self._lookups.group_id(queue, queue_id, group)
        partition_id = None if partition is None else await self._lookups.partition_id(queue, queue_id, partition)
        rows = await self._context.query(
            "cursor_lag", queue_id, group_id, partition_id, after_partition_id, limit, self._context.now()
        )
        return [_partition_lag(queue, row) for row in rows]

    async def depth(self, queue: str, group: str, *, exact: bool = False) -> Depth:
        queue_id = await self._lookups.queue_id(queue)
        found = await self._context.database.fetch(
            "group_find",
            "select id from lockstep.consumer_group where queue_id = $1 and name = $2",
            queue_id,
            group,
        )
        asked = (self._context.now(), exact, self._context.limits.figures_units_max)
        if not found and group == QUEUE_MODE:
            row = (await self._context.query("queue_stored", queue_id, *asked))[0]
        else:
            group_id = await self._lookups.group_id(queue, queue_id, group)
            row = (await self._context.query("group_depth", group_id, *asked))[0]
        pending, partitions, leased, oldest_at, figures_at = row
        return Depth(
            queue=queue,
            group=group,
            pending=pending,
            partitions_pending=partitions,
            leased=leased,
            unread=rest(pending, leased),
            oldest_at=oldest_at if pending else None,
            figures_at=figures_at,
        )

    async def spark_streams(self, *, queue: str | None = None) -> list[SparkStreamInfo]:
        queue_id = None if queue is None else await self._lookups.queue_id(queue)
        return [SparkStreamInfo(**row) for row in await self._context.query("spark_stream_list", queue_id)]

    async def forget_spark_stream(self, stream_id: str) -> int:
        return _of_stream(stream_id, await self._context.database.value(_FORGET_STREAM(stream_id=stream_id)))

    async def accept_spark_stream(self, stream_id: str) -> int:
        return _of_stream(stream_id, await self._context.database.value(_ACCEPT_POSITION(stream_id=stream_id)))


def _of_stream(stream_id: str, queues: int) -> int:
    if not queues:
        raise SparkStreamNotFound(f"there is no Spark stream {stream_id!r}")
    return queues


def _group_info(row: Any) -> GroupInfo:
    """A group from a row of `group_list`."""
    found = dict(row)
    mode, from_at = found.pop("subscription_mode"), found.pop("from_at")
    subscription = Subscription("all" if found["name"] == QUEUE_MODE or mode is None else mode, from_at)
    return GroupInfo(**found, subscription=subscription, unread=rest(found["lag"], found["in_flight"]))


def _partition_lag(queue: str, row: Any) -> PartitionLag:
    found = {**row, "due_at": due_at_of(row["due_at"])}
    return PartitionLag(queue=queue, unread=row["lag"] - row["in_flight"], **found)

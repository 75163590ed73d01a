"""Consumer groups: where they begin, where they are, and moving them."""

from __future__ import annotations

from datetime import datetime

from lockstep.core import refusals
from lockstep.core.names import QUEUE_MODE
from lockstep.core.policy import GroupMode
from lockstep.core.records import Depth, GroupInfo, PartitionLag, Position, SeekPreview, SparkStreamInfo, Subscription
from lockstep.core.rules import STOPPED, Cursor, place
from lockstep.core.shared import again, due_at
from lockstep.errors import SparkStreamNotFound
from lockstep.storage.memory.first_polls import MemoryFirstPolls
from lockstep.storage.memory.log import Log
from lockstep.storage.memory.state import Group, Partition, Queue, State, StoredSubscription


class MemoryGroups:
    """Consumer groups."""

    def __init__(self, state: State, first_polls: MemoryFirstPolls) -> None:
        self._state = state
        self._first_polls = first_polls

    async def subscribe(
        self, queue: str, group: str, subscription: Subscription, *, mode: GroupMode | None = None
    ) -> GroupInfo:
        now = self._state.now()
        subscribed = self._state.group(self._state.queue(queue), group, subscription, now, mode=mode)
        return group_info(subscribed, now)

    async def set_subscription(self, group: str, subscription: Subscription, *, queue: str | None = None) -> int:
        state, now = self._state, self._state.now()
        queues = [state.queue(queue)] if queue is not None else _known_on(state, group, None)
        for one in queues:
            one.subscriptions[group] = StoredSubscription(subscription, now)
        return len(queues)

    async def seek(self, queue: str, group: str, position: Position, *, partition: str | None = None) -> int:
        state, now = self._state, self._state.now()
        found = state.queue(queue).group(group)
        partitions = found.queue.chosen(partition)
        for one in partitions:
            cursor = found.cursors[one.id]
            moved = place(cursor, _target(one.log, cursor, position))
            state.put_released(found, one, moved, not_before=now)
            released = [again(in_flight, due_at=now, attempts=0) for in_flight in found.ranges.get(one.id, ())]
            state.put_ranges(found, one, released if position.kind == "current" else [])
        return len(partitions)

    async def preview_seek(
        self, queue: str, group: str, position: Position, *, partition: str | None = None, limit: int = 1000
    ) -> SeekPreview:
        state, now = self._state, self._state.now()
        found = state.queue(queue).group(group)
        partitions = sorted(found.queue.chosen(partition), key=lambda one: one.id)
        looked_at = partitions[:limit]
        moves = [
            (one.log, found.done_upto(one), _target(one.log, found.cursors[one.id], position)) for one in looked_at
        ]
        return SeekPreview(
            partitions=len(looked_at),
            read_again=sum(log.count_after(target) - log.count_after(max(done, target)) for log, done, target in moves),
            skipped=sum(log.count_after(done) - log.count_after(max(done, target)) for log, done, target in moves),
            leases=sum(found.leased(one, now) > 0 for one in looked_at),
            complete=len(looked_at) == len(partitions),
        )

    async def pause_group(self, queue: str, group: str, *, paused: bool = True) -> None:
        found = self._state.queue(queue).group(group)
        found.paused_at = (found.paused_at or self._state.now()) if paused else None

    async def delete_group(self, group: str, *, queue: str | None = None, forget_subscription: bool = True) -> int:
        state = self._state
        removed = 0
        for one in _known_on(state, group, queue):
            if group in one.groups:
                removed += len(one.groups[group].cursors)
                state.remove_group(one.groups[group])
            if forget_subscription:
                one.subscriptions.pop(group, None)
        if forget_subscription:
            self._first_polls.forget(group, queue)
        return removed

    async def groups(
        self,
        *,
        queue: str | None = None,
        group: str | None = None,
        exact: bool = False,  # noqa: ARG002
    ) -> list[GroupInfo]:
        state, now = self._state, self._state.now()
        return [
            group_info(one.groups[name], now)
            for one in state.chosen(queue)
            for name in sorted(one.groups)
            if group in (None, name)
        ]

    async def lag(
        self,
        queue: str,
        *,
        group: str | None = None,
        partition: str | None = None,
        after_partition_id: int = 0,
        limit: int = 1000,
    ) -> list[PartitionLag]:
        state, now = self._state, self._state.now()
        found = state.queue(queue)
        names = sorted(found.groups) if group is None else [found.group(group).name]
        partitions = sorted(found.chosen(partition), key=lambda one: one.id)
        places = [
            _place(found.groups[name], one, now) for one in partitions if one.id > after_partition_id for name in names
        ]
        return places[:limit]

    async def depth(self, queue: str, group: str, *, exact: bool = False) -> Depth:  # noqa: ARG002
        state, now = self._state, self._state.now()
        found = state.queue(queue)
        partitions = found.partitions.values()
        if group == QUEUE_MODE and group not in found.groups:
            counts = [len(partition.log) for partition in partitions]
            ages = [one.log.runs[0].created_at if one.log.runs else None for one in partitions]
            leased = 0
        else:
            asked = found.group(group)
            counts = [asked.lag_of(one) for one in partitions]
            ages = [asked.oldest_at(one) for one in partitions]
            leased = sum(asked.leased(one, now) for one in partitions)
        return Depth(
            queue=queue,
            group=group,
            pending=sum(counts),
            partitions_pending=sum(1 for one in counts if one),
            leased=leased,
            unread=sum(counts) - leased,
            oldest_at=min((at for at in ages if at is not None), default=None),
        )

    async def spark_streams(self, *, queue: str | None = None) -> list[SparkStreamInfo]:
        if queue is not None:
            self._state.queue(queue)
        return []

    async def forget_spark_stream(self, stream_id: str) -> int:
        raise SparkStreamNotFound(f"there is no Spark stream {stream_id!r}")

    async def accept_spark_stream(self, stream_id: str) -> int:
        raise SparkStreamNotFound(f"there is no Spark stream {stream_id!r}")


def _known_on(state: State, group: str, queue: str | None) -> list[Queue]:
    """The queues on which a group exists or has a stored subscription."""
    queues = [one for one in state.chosen(queue) if group in one.groups or group in one.subscriptions]
    if not queues:
        raise refusals.no_group(group, queue)
    return queues


def _target(log: Log, cursor: Cursor, position: Position) -> int:
    start = log.first_seq - 1
    if position.kind == "start":
        return start
    if position.kind == "end":
        return log.last_seq
    if position.kind == "seq":
        assert position.seq is not None
        return max(start, min(position.seq - 1, log.last_seq))
    if position.kind == "time":
        at = position.at
        assert at is not None
        return log.place_after(lambda run: run.created_at <= at)
    return cursor.acked


def group_info(group: Group, now: datetime) -> GroupInfo:
    stored = group.queue.subscriptions.get(group.name)
    places = [_place(group, partition, now) for partition in group.queue.partitions.values()]
    return GroupInfo(
        name=group.name,
        queue=group.queue.name,
        created_at=group.created_at,
        subscription=Subscription() if stored is None else stored.subscription,
        mode=group.mode,
        partitions=len(places),
        partitions_with_lag=sum(1 for one in places if one.lag),
        lag=sum(one.lag for one in places),
        leases=sum(1 for one in places if one.leased),
        oldest_at=min((one.oldest_at for one in places if one.oldest_at is not None), default=None),
        in_flight=sum(one.in_flight for one in places),
        unread=sum(one.unread for one in places),
        paused_at=group.paused_at,
    )


def _place(group: Group, partition: Partition, now: datetime) -> PartitionLag:
    cursor = group.cursors[partition.id]
    ranges = group.ranges.get(partition.id, [])
    retrying = sum(partition.stored(one) for one in ranges if not one.leased(now))
    in_flight = group.leased(partition, now)
    return PartitionLag(
        queue=group.queue.name,
        partition=partition.name,
        partition_id=partition.id,
        group=group.name,
        acked=group.done_upto(partition),
        last_seq=partition.log.last_seq,
        lag=group.lag_of(partition),
        oldest_at=group.oldest_at(partition),
        due_at=due_at(cursor, ranges),
        stopped=STOPPED in [cursor.due_at, *(one.due_at for one in ranges)],
        attempts=ranges[0].attempts if ranges else cursor.attempts,
        leased=group.is_leased(partition, now),
        consumed_at=cursor.consumed_at,
        in_flight=in_flight,
        unread=group.lag_of(partition) - in_flight,
        retrying=retrying,
    )

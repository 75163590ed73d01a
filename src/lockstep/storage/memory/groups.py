"""Consumer groups: where they begin, where they are, and moving them."""

from __future__ import annotations

from datetime import datetime

from lockstep.core import refusals
from lockstep.core.names import QUEUE_MODE
from lockstep.core.records import Depth, GroupInfo, PartitionLag, Position, Subscription
from lockstep.core.rules import STOPPED, Cursor, place
from lockstep.core.shared import again, due_at
from lockstep.storage.memory.log import Log
from lockstep.storage.memory.state import Group, Partition, Queue, State, StoredSubscription


def set_subscription(state: State, group: str, subscription: Subscription, *, queue: str | None, now: datetime) -> int:
    queues = [state.queue(queue)] if queue is not None else _known_on(state, group, None)
    for one in queues:
        one.subscriptions[group] = StoredSubscription(subscription, now)
    return len(queues)


def delete_group(state: State, group: str, *, queue: str | None, forget_subscription: bool) -> int:
    removed = 0
    for one in _known_on(state, group, queue):
        if group in one.groups:
            removed += len(one.groups[group].cursors)
            state.remove_group(one.groups[group])
        if forget_subscription:
            one.subscriptions.pop(group, None)
    return removed


def _known_on(state: State, group: str, queue: str | None) -> list[Queue]:
    """The queues on which a group exists or has a stored subscription."""
    queues = [one for one in state.chosen(queue) if group in one.groups or group in one.subscriptions]
    if not queues:
        raise refusals.no_group(group, queue)
    return queues


def seek(state: State, queue: str, group: str, position: Position, *, partition: str | None, now: datetime) -> int:
    found = state.queue(queue).group(group)
    partitions = found.queue.chosen(partition)
    for one in partitions:
        cursor = found.cursors[one.id]
        moved = place(cursor, _target(one.log, cursor, position))
        state.put_released(found, one, moved, not_before=now)
        released = [again(in_flight, due_at=now, attempts=0) for in_flight in found.ranges.get(one.id, ())]
        state.put_ranges(found, one, released if position.kind == "current" else [])
    return len(partitions)


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


def groups(state: State, *, queue: str | None, group: str | None, now: datetime) -> list[GroupInfo]:
    return [
        group_info(one.groups[name], now)
        for one in state.chosen(queue)
        for name in sorted(one.groups)
        if group in (None, name)
    ]


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
    )


def lag(
    state: State,
    queue: str,
    *,
    group: str | None,
    partition: str | None,
    after_partition_id: int,
    limit: int,
    now: datetime,
) -> list[PartitionLag]:
    found = state.queue(queue)
    names = sorted(found.groups) if group is None else [found.group(group).name]
    partitions = sorted(found.chosen(partition), key=lambda one: one.id)
    places = [
        _place(found.groups[name], one, now) for one in partitions if one.id > after_partition_id for name in names
    ]
    return places[:limit]


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


def depth(state: State, queue: str, group: str, now: datetime) -> Depth:
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

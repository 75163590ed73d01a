"""Queues and partitions: configuring, clearing and describing them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

import msgspec

from lockstep.core.names import DEFAULT_PARTITION
from lockstep.core.policy import GroupMode, QueueOptions, changed_options
from lockstep.core.records import ClearScope, PartitionInfo, PartitionStats, QueueInfo
from lockstep.core.rules import place
from lockstep.errors import Conflict, InvalidOption
from lockstep.storage.memory.shared import pass_removed
from lockstep.storage.memory.state import Group, Partition, Queue, State


class MemoryQueues:
    """Queues and their partitions."""

    def __init__(self, state: State) -> None:
        self._state = state

    async def configure(
        self, queue: str, options: QueueOptions, *, namespace: str | None = None, task: str | None = None
    ) -> QueueInfo:
        _check_dead_queue(self._state, queue, options)
        if options.group_mode == "shared":  # a configuration that does not say it means ordered
            self._check_group_mode(queue, options.group_mode)
        now = self._state.now()
        return queue_info(self._configured(queue, options, namespace, task, now), now)

    def _configured(
        self, queue: str, options: QueueOptions, namespace: str | None, task: str | None, now: datetime
    ) -> Queue:
        state = self._state
        found = state.queues.get(queue)
        if found is None:
            found = state.add_queue(queue, options, now, namespace=namespace, task=task)
        # By name, as in the PostgreSQL store: ids rise in this order.
        for name in sorted([DEFAULT_PARTITION, *map(str, range(options.partitions))]):
            if name not in found.partitions:
                state.add_partition(found, name, now)
        kept = found.options.encryption
        found.options = msgspec.structs.replace(options, encryption=True) if kept else options
        found.namespace = found.namespace if namespace is None else namespace
        found.task = found.task if task is None else task
        return found

    async def update_queue(
        self, queue: str, changes: Mapping[str, Any], *, namespace: str | None = None, task: str | None = None
    ) -> QueueInfo:
        options = changed_options(self._state.queue(queue).options, changes)
        if "group_mode" in changes:
            self._check_group_mode(queue, options.group_mode)
        return await self.configure(queue, options, namespace=namespace, task=task)

    async def stop_encryption(self, queue: str) -> QueueInfo:
        found = self._state.queue(queue)
        found.options = msgspec.structs.replace(found.options, encryption=False)
        return queue_info(found, self._state.now())

    def _check_group_mode(self, queue: str, mode: GroupMode) -> None:
        """Raise InvalidOption if the queue has groups of the other mode: groups keep their mode."""
        found = self._state.queues.get(queue)
        if found is None or found.options.group_mode == mode:
            return
        others = sorted(group.name for group in found.groups.values() if group.mode != mode)
        if others:
            group = found.groups[others[0]]
            raise InvalidOption(
                f"group_mode cannot become {mode}: group {group.name} of queue {queue} is {group.mode} and stays so; "
                "delete the group first, or give new groups their mode when they begin"
            )

    async def delete_queue(self, queue: str) -> bool:
        _check_unused(self._state, queue)
        if queue not in self._state.queues:
            return False
        self._state.remove_queue(self._state.queues[queue])
        return True

    async def clear(self, queue: str, *, partition: str | None = None, scope: ClearScope = "all") -> int:
        state, now = self._state, self._state.now()
        if scope == "scheduled":
            return state.waitlist.remove_of(state.queue(queue).name, partition)
        removed = 0
        for one in state.queue(queue).chosen(partition):
            kept = _leased_ranges(state, one, now) if scope == "unleased" else []
            removed += state.remove_messages(one, kept=kept)
            put_right(state, one, scope, now)
        return removed

    async def queues(
        self,
        *,
        namespace: str | None = None,
        task: str | None = None,
        after: str | None = None,
        from_name: str | None = None,
        limit: int = 100,
        exact: bool = False,  # noqa: ARG002
    ) -> list[QueueInfo]:
        state, now = self._state, self._state.now()
        matching = (
            queue
            for queue in state.chosen(None)
            if namespace in (None, queue.namespace)
            and task in (None, queue.task)
            and (after is None or queue.name > after)
            and (from_name is None or queue.name >= from_name)
        )
        return [queue_info(queue, now) for queue in islice(matching, limit)]

    async def queue(self, queue: str, *, exact: bool = False) -> QueueInfo:  # noqa: ARG002
        return queue_info(self._state.queue(queue), self._state.now())

    async def partitions(
        self, queue: str, *, after: str | None = None, prefix: str | None = None, limit: int = 100
    ) -> list[PartitionInfo]:
        state, now = self._state, self._state.now()
        found = state.queue(queue)
        names = (name for name in sorted(found.partitions) if name > (after or "") and name.startswith(prefix or ""))
        return [partition_info(found.partitions[name], now) for name in islice(names, limit)]

    async def partition(self, queue: str, partition: str) -> PartitionInfo:
        return partition_info(self._state.queue(queue).partition(partition), self._state.now())

    async def stats(self, queue: str, *, after: str | None = None, limit: int = 100) -> list[PartitionStats]:
        state, now = self._state, self._state.now()
        found = state.queue(queue)
        waiting = Counter(one.partition for one in state.waitlist.by_id.values() if one.queue == queue)
        names = (name for name in sorted({*found.partitions, *waiting}) if after is None or name > after)
        return [_stats(found.partitions.get(name), name, waiting[name], now) for name in islice(names, limit)]

    async def balanced(self, queue: str) -> int:
        return len(await self.balance(queue))

    async def balance(self, queue: str) -> list[int]:
        state = self._state
        found = state.queues.get(queue)
        if found is None:
            return []
        return [found.partitions[str(number)].pending() for number in range(found.options.partitions)]


def _check_dead_queue(state: State, queue: str, options: QueueOptions) -> None:
    """Check whether a queue may have the requested dead queue, or be a dead queue. Raises InvalidOption."""
    sources = sorted(one.name for one in state.queues.values() if one.options.dead_queue == queue)
    name = options.dead_queue
    if name is None:
        if sources and options.max_size:
            raise InvalidOption(f"queue {queue} is the dead queue of {sources[0]}: it cannot have a max_size")
        return
    if name == queue:
        raise InvalidOption("a queue cannot be its own dead queue")
    if name not in state.queues:
        raise InvalidOption(f"the dead queue {name} does not exist")
    if state.queues[name].options.dead_queue is not None:
        raise InvalidOption(f"the dead queue {name} has a dead queue of its own")
    if state.queues[name].options.max_size:
        raise InvalidOption(f"the dead queue {name} has a max_size: a message that dies must find room")
    if sources:
        raise InvalidOption(f"queue {queue} is the dead queue of {sources[0]}: it cannot have one of its own")


def _check_unused(state: State, queue: str) -> None:
    """Raises Conflict if other queues need this one."""
    sources = sorted(one.name for one in state.queues.values() if one.options.dead_queue == queue)
    if sources:
        raise Conflict(f"queue {queue} is the dead queue of {sources[0]}")


def _leased_ranges(state: State, partition: Partition, now: datetime) -> list[tuple[int, int]]:
    return [
        (cursor.acked + 1, cursor.lease_to)
        for _, cursor in state.cursors(partition)
        if cursor.leased(now) and cursor.lease_to is not None and cursor.lease_to > cursor.acked
    ] + [
        (one.first, one.last)
        for group, _ in state.cursors(partition)
        for one in group.ranges.get(partition.id, ())
        if one.leased(now)
    ]


def put_right(state: State, partition: Partition, scope: ClearScope, now: datetime) -> None:
    """Move the cursors past removed messages. A cursor whose head was removed starts over with the next message."""
    log = partition.log
    pass_removed(state, partition, None if scope == "all" else now)
    for group, cursor in list(state.cursors(partition)):
        if scope == "unleased" and cursor.leased(now):
            continue
        head = log.first_after(cursor.acked)
        target = log.last_seq if head is None else head - 1
        if scope == "all" or target > cursor.acked:
            state.put_released(group, partition, place(cursor, target), not_before=now)


def queue_info(queue: Queue, now: datetime) -> QueueInfo:
    partitions = queue.partitions.values()
    return QueueInfo(
        id=queue.id,
        name=queue.name,
        namespace=queue.namespace,
        task=queue.task,
        options=queue.options,
        created_at=queue.created_at,
        partitions=len(partitions),
        messages=sum(len(one.log) for one in partitions),
        pending=queue.pending(),
        processing=sum(_processing(one, now) for one in partitions),
        dead_letters=sum(_dead_letters(one) for one in partitions),
        oldest_at=_oldest_pending_at(queue) if queue.pending() else None,
    )


def _oldest_pending_at(queue: Queue) -> datetime | None:
    """The creation time of the oldest message that some group has not done, or, without a group, that is stored."""
    partitions = queue.partitions.values()
    if not queue.groups:
        return min((one.log.runs[0].created_at for one in partitions if one.log.runs), default=None)
    found = (group.oldest_at(one) for group in queue.groups.values() for one in partitions)
    return min((at for at in found if at is not None), default=None)


def partition_info(partition: Partition, now: datetime) -> PartitionInfo:
    log = partition.log
    return PartitionInfo(
        id=partition.id,
        queue=partition.queue.name,
        name=partition.name,
        created_at=partition.created_at,
        first_seq=log.first_seq,
        last_seq=log.last_seq,
        messages=len(log),
        pending=partition.pending(),
        processing=_processing(partition, now),
        dead_letters=_dead_letters(partition),
        oldest_at=log.runs[0].created_at if log.runs else None,
        newest_at=log.runs[-1].created_at if log.runs else None,
    )


def _stats(partition: Partition | None, name: str, scheduled: int, now: datetime) -> PartitionStats:
    if partition is None:
        return PartitionStats(partition=name, scheduled=scheduled)
    done = min((group.done_upto(partition) for group in partition.queue.groups.values()), default=0)
    ages = [(run.created_at, len(run)) for run in partition.log.read(done, len(partition.log))]
    leases = [held for group in partition.queue.groups.values() for held in _held(group, partition, now)]
    return PartitionStats(
        partition=name,
        total=sum(count for _, count in ages),
        leased=sum(count for _, count in leases),
        scheduled=scheduled,
        age_seconds_average=_average_age(ages, now),
        lease_age_seconds_average=_average_age(leases, now),
        oldest_at=min((created_at for created_at, _ in ages), default=None),
    )


def _held(group: Group, partition: Partition, now: datetime) -> Iterator[tuple[datetime, int]]:
    """The live leases: since when, and on how many stored messages."""
    cursor = group.cursors[partition.id]
    if cursor.leased(now) and cursor.leased_at is not None:
        yield cursor.leased_at, partition.leased(cursor, now)
    for one in group.ranges.get(partition.id, ()):
        if one.leased(now) and one.leased_at is not None:
            yield one.leased_at, partition.stored(one)


def _average_age(since: list[tuple[datetime, int]], now: datetime) -> float | None:
    count = sum(messages for _, messages in since)
    microseconds = sum((now - at) // timedelta(microseconds=1) * messages for at, messages in since)
    return microseconds / (1_000_000 * count) if count else None


def _processing(partition: Partition, now: datetime) -> int:
    """Messages under a live lease, over all groups."""
    return sum(group.leased(partition, now) for group in partition.queue.groups.values())


def _dead_letters(partition: Partition) -> int:
    return sum(map(len, partition.dead.values()))

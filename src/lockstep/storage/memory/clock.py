"""Adjusts waiting times after the clock was set back."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from lockstep.core.rules import STOPPED, due_after_release, due_after_set_back
from lockstep.storage.memory.state import Group, Partition, State


def move_back(state: State, back: timedelta, now: datetime) -> int:
    """Shorten the waits of cursors and ranges; returns how many were changed."""
    groups = [(group, partition) for partition in state.partitions.values() for group, _ in state.cursors(partition)]
    return sum(
        _move_cursor(state, group, partition, back, now) + _move_ranges(state, group, partition, back, now)
        for group, partition in groups
    )


def _move_cursor(state: State, group: Group, partition: Partition, back: timedelta, now: datetime) -> int:
    cursor, options = group.cursors[partition.id], group.queue.options
    if cursor.due_at is None or not _waits(group, cursor.due_at, cursor.lease_id, now):
        return 0
    due_at = due_after_set_back(cursor.due_at, back, lease=_lease(group, cursor.lease_id), now=now)
    if cursor.lease_id is None:
        # A delay and a window count from the times of the messages, which stay.
        by_messages = due_after_release(partition.log.ahead(cursor.acked), options, not_before=due_at)
        due_at = min(cursor.due_at, by_messages or due_at)
    state.put(group, partition, replace(cursor, due_at=due_at))
    return 1


def _move_ranges(state: State, group: Group, partition: Partition, back: timedelta, now: datetime) -> int:
    ranges = group.ranges.get(partition.id, [])
    waiting = [one for one in ranges if _waits(group, one.due_at, one.lease_id, now)]
    if waiting:
        moved = [
            replace(one, due_at=due_after_set_back(one.due_at, back, lease=_lease(group, one.lease_id), now=now))
            for one in waiting
        ]
        state.put_ranges(group, partition, [*(one for one in ranges if one not in waiting), *moved])
    return len(waiting)


def _waits(group: Group, due_at: datetime, lease_id: str | None, now: datetime) -> bool:
    """Whether it waits for a time, and is not under a lease that may be from the new clock."""
    return now + (_lease(group, lease_id) or timedelta()) < due_at < STOPPED


def _lease(group: Group, lease_id: str | None) -> timedelta | None:
    return None if lease_id is None else timedelta(seconds=group.queue.options.lease_seconds)

"""Messages that are too old to be delivered: skipped by the pop that finds them, and by prune."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime

from lockstep.core.messages import DeliveryFields, Run
from lockstep.core.policy import QueueOptions
from lockstep.core.rules import Cursor, is_expired, overdue
from lockstep.storage.memory.state import Group, Partition, State


def pass_expired(state: State, group: Group, partition: Partition, cursor: Cursor, now: datetime) -> Cursor:
    """The cursor, which nobody leases, past the expired messages that come next; their deaths are recorded."""
    options = group.queue.options
    for run in partition.log.read(cursor.acked, len(partition.log)):
        alive = before_expired(run, options, now, expired=False)
        for seq in range(run.first_seq, run.first_seq + alive):
            cursor, death = overdue(cursor, seq, options, now)
            state.add_dead_letter(group, partition, death, now)
        if alive < len(run):
            break
    return cursor


def head_expired(partition: Partition, cursor: Cursor, group: Group, now: datetime) -> bool:
    """Whether the next message after a cursor is expired."""
    head = next(iter(partition.log.read(cursor.acked, 1)), None)
    return head is not None and before_expired(head, group.queue.options, now) == 0


def before_expired(run: Run, options: QueueOptions, now: datetime, *, expired: bool = True) -> int:
    """How many messages of a run come before the first that is expired; or, the other way round, that is not."""
    own = run.columns.expires_at
    if own is None:
        return 0 if is_expired(run.created_at, None, options, now) is expired else len(run)
    found = (at for at, time in enumerate(own) if is_expired(run.created_at, time, options, now) is expired)
    return next(found, len(run))


def next_runs(
    partition: Partition,
    cursor: Cursor,
    options: QueueOptions,
    messages_max: int,
    now: datetime,
    delivery: DeliveryFields,
) -> Iterator[Run]:
    """What comes next after a cursor, up to the first message that is delayed or expired."""
    for run in partition.log.read(cursor.acked, messages_max):
        if options.delay and run.created_at + options.delay > now:
            return
        alive = deliverable(run, options, now)
        if len(alive):
            yield replace(alive, delivery=delivery)
        if len(alive) < len(run):
            return


def deliverable(run: Run, options: QueueOptions, now: datetime) -> Run:
    """The run up to its first message that is expired."""
    count = before_expired(run, options, now)
    return run if count == len(run) else replace(run, columns=run.columns.slice(0, count))

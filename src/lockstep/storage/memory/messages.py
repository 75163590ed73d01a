"""Looking at messages."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from itertools import islice
from uuid import UUID

from lockstep.core import refusals
from lockstep.core.messages import Message
from lockstep.core.records import (
    GroupProgress,
    MessageFilter,
    MessagePage,
    MessageView,
    newest_cursor,
    page_cursor,
    parse_newest_cursor,
    parse_page_cursor,
)
from lockstep.core.rules import message_status
from lockstep.storage.memory.state import Partition, Queue, State

_PageCursor = tuple[int, int]
"""Partition id and seq of the last message of a page."""


def messages(
    state: State, where: MessageFilter, *, newest_first: bool, cursor: str | None, limit: int, now: datetime
) -> MessagePage:
    if newest_first:
        return _newest(state, where, cursor=cursor, limit=limit, now=now)
    after = parse_page_cursor(cursor)
    queues = [queue for queue in state.chosen(where.queue) if _has_labels(queue, where)]
    partitions = sorted((one for queue in queues for one in queue.chosen(where.partition)), key=lambda one: one.id)
    views = (view for one in partitions for view in _views(state, one, where, after, now))
    found = list(islice(views, limit + 1))
    if len(found) <= limit:
        return MessagePage(items=found, next_cursor=None)
    last = found[limit - 1].message
    return MessagePage(items=found[:limit], next_cursor=page_cursor(last.partition_id, last.seq))


def _newest(state: State, where: MessageFilter, *, cursor: str | None, limit: int, now: datetime) -> MessagePage:
    """The last stored first: ids rise from one segment to the next, and within it."""
    before = _ID_MAX if cursor is None else parse_newest_cursor(cursor)
    queues = [queue for queue in state.chosen(where.queue) if _has_labels(queue, where)]
    partitions = [one for queue in queues for one in queue.chosen(where.partition)]
    views = [view for one in partitions for view in _views(state, one, where, (0, 0), now)]
    found = sorted((view for view in views if _halves(view) < before), key=_halves, reverse=True)
    last = _halves(found[limit - 1]) if len(found) > limit else None
    return MessagePage(items=found[:limit], next_cursor=None if last is None else newest_cursor(*last))


_ID_MAX = (2**64, 0)


def _halves(view: MessageView) -> tuple[int, int]:
    """The id of the message as two numbers that a cursor can hold."""
    number = UUID(view.message.id).int
    return number >> 64, number & (2**62 - 1)


def _has_labels(queue: Queue, where: MessageFilter) -> bool:
    return where.namespace in (None, queue.namespace) and where.task in (None, queue.task)


def _views(
    state: State, partition: Partition, where: MessageFilter, after: _PageCursor, now: datetime
) -> Iterator[MessageView]:
    if partition.id < after[0]:
        return
    first = after[1] if partition.id == after[0] else 0
    for run in partition.log.read(first, len(partition.log)):
        if where.from_at is not None and run.created_at < where.from_at:
            continue
        if where.to_at is not None and run.created_at >= where.to_at:
            continue
        for message in run.messages():
            view = _view(state, partition, message, now)
            if where.status in (None, view.status):
                yield view


def _view(state: State, partition: Partition, message: Message, now: datetime) -> MessageView:
    cursors = [(group, group.seen_at(partition, message.seq)) for group, _ in state.cursors(partition)]
    dead = message.seq in partition.dead
    groups = []
    for group, cursor in cursors:
        leased = cursor.leased(now) and cursor.acked < message.seq <= (cursor.lease_to or 0)
        groups.append(
            GroupProgress(
                group=group.name,
                consumed=message.seq <= cursor.acked,
                lease_expires_at=cursor.due_at if leased else None,
            )
        )
    status = message_status(message.seq, (cursor for _, cursor in cursors), dead=dead, now=now)
    return MessageView(message=message, status=status, groups=groups)


def message(state: State, identity: str, *, partition_id: int | None, now: datetime) -> MessageView:
    if partition_id is None:
        found = ((one, one.log.find_id(identity)) for one in state.partitions.values())
    else:
        candidates = [state.partitions[partition_id]] if partition_id in state.partitions else []
        found = ((one, one.resolve(identity)) for one in candidates)
    for partition, seq in found:
        if seq is not None:
            return _view(state, partition, partition.message(seq), now)
    raise refusals.no_message(identity, partition_id)


def trace(state: State, trace_id: str, *, limit: int) -> list[Message]:
    places = state.traces.get(trace_id, ())
    found = [state.partitions[partition_id].message(seq) for partition_id, seq in places]
    return sorted(found, key=lambda one: (one.created_at, one.id))[:limit]

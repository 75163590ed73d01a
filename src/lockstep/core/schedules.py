"""Scheduled messages.

A scheduled message has no place in its partition yet: it waits in a separate list, ordered by due time, and gets its
seq when it is *promoted*, which is an ordinary push. It never blocks messages that are pushed in the meantime, and its
partition need not exist before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

import msgspec

from lockstep.core.messages import Appointment, Batch, Columns, Described, Message, NewSchedule, Placement
from lockstep.errors import InvalidRequest

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class ScheduleName(msgspec.Struct, frozen=True, kw_only=True):
    """Names a scheduled message: by its id, or by its producer's key, which is unique in its queue."""

    id: int | None = None
    queue: str | None = None
    key: str | None = None

    def __str__(self) -> str:
        return f"{self.id}" if self.id is not None else f"{self.key!r} on queue {self.queue!r}"


class Scheduled(Described, frozen=True, kw_only=True):
    """A scheduled message."""

    id: int
    queue: str
    partition: str
    due_at: datetime
    created_at: datetime
    payload: bytes
    key: str | None = None
    producer_sub: str | None = None
    expires_at: datetime | None = None

    json = Message.json


class ScheduleFilter(msgspec.Struct, frozen=True, kw_only=True):
    queue: str | None = None
    partition: str | None = None
    """Requires a queue."""
    key_prefix: str | None = None
    from_at: datetime | None = None
    """Due at or after."""
    to_at: datetime | None = None
    """Due before."""


class SchedulePage(msgspec.Struct, frozen=True, kw_only=True):
    items: list[Scheduled]
    next_cursor: str | None
    """Pass it to get the next page; None at the end."""


@dataclass(frozen=True, slots=True)
class Timing:
    """The settings about time that a store needs."""

    schedule_seconds_min: float = 0.1
    """Setting schedule_min_seconds."""
    cron_late_seconds_max: float = 60.0
    """Setting cron_late_seconds_max."""


@dataclass(slots=True)
class Promoted:
    """What one promotion did with scheduled and recurring messages."""

    messages: int = 0
    partitions_by_queue: dict[str, set[str]] = field(default_factory=dict)
    """The partitions that received messages, by queue."""
    messages_by_queue: dict[str, int] = field(default_factory=dict)
    """How many messages, per queue."""
    postponed: dict[str, str] = field(default_factory=dict)
    """Why due messages still wait, by queue: the queue is full, or its messages cannot be decrypted here."""
    more: bool = False
    """A limit ended the promotion: more messages are due."""
    next_at: datetime | None = None
    """When the next message is due that is not due yet."""
    wait_seconds: float | None = None
    """The time until then, by the store's clock."""

    def add(self, queue: str, partition: str, messages: int) -> None:
        self.messages += messages
        self.partitions_by_queue.setdefault(queue, set()).add(partition)
        self.messages_by_queue[queue] = self.messages_by_queue.get(queue, 0) + messages


_TEXTS = ("transaction_id", "trace_id", "kind", "reference", "encoding", "producer_sub")


def fields_of(columns: Columns) -> dict[str, Any]:
    """The fields of the only message in the columns, by their names in `Scheduled`."""
    columns_by_name = {name: getattr(columns, f"{name}s") for name in _TEXTS} | {"expires_at": columns.expires_at}
    fields = {name: None if column is None else column[0] for name, column in columns_by_name.items()}
    headers = None if columns.headers is None else columns.headers[0]
    decoded = None if headers is None else msgspec.json.decode(headers, type=dict[str, str])
    return {**fields, "payload": columns.payloads[0], "headers": decoded}


def columns_of(waiting: Scheduled) -> Columns:
    """The columns for a single message."""
    columns = Columns([waiting.payload])
    for name in _TEXTS:
        if getattr(waiting, name) is not None:
            setattr(columns, f"{name}s", [getattr(waiting, name)])
    if waiting.headers is not None:
        columns.headers = [msgspec.json.encode(waiting.headers)]
    if waiting.expires_at is not None:
        columns.expires_at = [waiting.expires_at]
    return columns


def due_at(schedule: NewSchedule, now: datetime) -> datetime:
    """When to deliver the message."""
    if schedule.deliver_at is not None:
        return schedule.deliver_at
    return now + timedelta(seconds=schedule.delay_seconds or 0.0)


def split(batches: Sequence[Batch], now: datetime, *, seconds_min: float) -> tuple[list[int], dict[int, datetime]]:
    """Which batches are pushed now, by index, and the due time of each of the others.

    A message that would wait for less than `seconds_min` is pushed now, because promoting it would take about as long.
    """
    soon = now + timedelta(seconds=seconds_min)
    later = {
        index: due
        for index, batch in enumerate(batches)
        if batch.schedule is not None and (due := due_at(batch.schedule, now)) >= soon
    }
    return [index for index in range(len(batches)) if index not in later], later


@dataclass(slots=True)
class NewWaiting:
    """One message to add to the scheduled messages."""

    queue: str
    partition: str
    due_at: datetime
    columns: Columns
    """Of this message only."""
    key: str | None
    transaction_id: str | None


def waiting_of(batches: Sequence[Batch], later: dict[int, datetime]) -> list[NewWaiting]:
    """The messages of the scheduled batches, one by one, in order."""
    found: list[NewWaiting] = []
    for index, due in later.items():
        batch = batches[index]
        ids = batch.columns.transaction_ids or [None] * len(batch.columns)
        key = batch.schedule.key if batch.schedule is not None else None
        for position, transaction_id in enumerate(ids):
            columns = batch.columns.take([position])
            found.append(NewWaiting(batch.queue, batch.partition, due, columns, key, transaction_id))
    return found


def placements_of(
    batches: Sequence[Batch],
    placed: Mapping[int, Placement],
    later: Iterable[int],
    appointments: Iterable[Appointment],
) -> list[Placement]:
    """The placements of all batches, pushed or scheduled; the appointments come in order."""
    made = iter(appointments)
    waiting = {index: Placement.waiting(list(islice(made, len(batches[index].columns)))) for index in later}
    return [placed[index] if index in placed else waiting[index] for index in range(len(batches))]


def find_repeats(items: Sequence[NewWaiting]) -> dict[int, int]:
    """Items whose key or transaction id an earlier item of the same call has: maps each index to that of the earlier
    item.
    """
    first: dict[tuple[str, ...], int] = {}
    repeats: dict[int, int] = {}
    for index, item in enumerate(items):
        for name in _names(item):
            earlier = first.setdefault(name, index)
            if earlier != index:
                repeats[index] = repeats.get(earlier, earlier)
    return repeats


def _names(item: NewWaiting) -> Iterable[tuple[str, ...]]:
    """The key and the transaction id by which the message may already be known."""
    if item.key is not None:
        yield item.queue, item.key
    if item.transaction_id is not None:
        yield item.queue, item.partition, item.transaction_id


def schedule_cursor(due: datetime, schedule_id: int) -> str:
    """The cursor of the page after a scheduled message."""
    return f"{(due - _EPOCH) // _MICROSECOND}.{schedule_id}"


def parse_schedule_cursor(cursor: str | None) -> tuple[datetime, int] | None:
    """The due time and id after which a page starts. Raises InvalidRequest."""
    if cursor is None:
        return None
    microseconds, _, schedule_id = cursor.partition(".")
    try:
        if len(cursor) > 64 or not (cursor.isascii() and schedule_id.isdigit()):
            raise ValueError(cursor)
        number = int(schedule_id)
        if number >= 2**63:
            raise ValueError(cursor)
        return _EPOCH + int(microseconds) * _MICROSECOND, number
    except (ValueError, OverflowError):
        raise InvalidRequest(f"not a page cursor: {cursor[:64]!r}") from None

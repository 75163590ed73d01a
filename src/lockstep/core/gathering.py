"""Converts single messages to batches of columns, the form in which they travel and are stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import TypeGuard, TypeVar

import msgspec

from lockstep.core.ids import all_canonical_uuids, parse_uuid
from lockstep.core.messages import Batch, Columns, NewMessage, NewSchedule, schedule_of
from lockstep.core.names import check_name
from lockstep.core.operations import Order
from lockstep.core.policy import SECONDS_MAX
from lockstep.core.times import check_kept_time, check_seconds
from lockstep.errors import InvalidRequest

_Value = TypeVar("_Value")


def gather(messages: Sequence[NewMessage]) -> tuple[list[Batch], Order]:
    """Group single messages into batches, one per queue, partition and schedule, in order of first appearance."""
    queues = [message.queue for message in messages]
    partitions = [message.partition for message in messages]
    for what, names in (("queue", queues), ("partition", partitions)):
        if set(map(type, names)) != {str}:
            # Values that are not strings fail the check; they may not even be hashable.
            for name in names:
                check_name(name, what=what)
    schedules = [_schedule_of(message) for message in messages]
    batch_indexes: dict[tuple[str, str, NewSchedule | None], int] = {}
    gathered: list[list[NewMessage]] = []
    order: Order = []
    for message, key in zip(messages, zip(queues, partitions, schedules, strict=True), strict=True):
        index = batch_indexes.setdefault(key, len(gathered))
        if index == len(gathered):
            gathered.append([])
        order.append((index, len(gathered[index])))
        gathered[index].append(message)
    batches = [
        Batch(queue, partition, _columns(gathered[index]), schedule)
        for (queue, partition, schedule), index in batch_indexes.items()
    ]
    return batches, order


def _columns(messages: list[NewMessage]) -> Columns:
    return Columns(
        payloads=[message.payload for message in messages],
        transaction_ids=_used([message.transaction_id for message in messages]),
        trace_ids=_used([message.trace_id for message in messages]),
        kinds=_used([message.kind for message in messages]),
        references=_used([message.reference for message in messages]),
        encodings=_used([message.encoding for message in messages]),
        headers=_encoded([message.headers for message in messages]),
        producer_subs=_used([message.producer_sub for message in messages]),
        expires_at=_expiries(messages),
    )


def _expiries(messages: list[NewMessage]) -> list[datetime | timedelta | None] | None:
    expiries = [_expiry_of(message) for message in messages]
    return expiries if any(expiry is not None for expiry in expiries) else None


def _expiry_of(message: NewMessage) -> datetime | timedelta | None:
    if message.expire_seconds is None:
        return message.expires_at
    if message.expires_at is not None:
        raise InvalidRequest("a message has expires_at or expire_seconds, and not both")
    check_seconds(message.expire_seconds, what="expire_seconds", high=SECONDS_MAX)
    return timedelta(seconds=message.expire_seconds)


def _used(column: list[_Value | None]) -> list[_Value | None] | None:
    """The column, or None if no message uses it."""
    return column if any(value is not None for value in column) else None


def _encoded(column: list[Mapping[str, str] | None]) -> list[bytes | None] | None:
    if _used(column) is None:
        return None
    return [None if headers is None else _encode_headers(headers) for headers in column]


def _encode_headers(headers: object) -> bytes:
    if not _is_headers(headers):
        raise InvalidRequest("headers must be a mapping of strings to strings")
    try:
        return msgspec.json.encode(dict(headers))
    except UnicodeEncodeError as error:
        raise InvalidRequest("headers contain a lone surrogate") from error


def _is_headers(headers: object) -> TypeGuard[Mapping[str, str]]:
    return isinstance(headers, Mapping) and all(
        isinstance(name, str) and isinstance(value, str) for name, value in headers.items()
    )


def _schedule_of(message: NewMessage) -> NewSchedule | None:
    """Checks the schedule before it is compared with others: a value that is not a time may not be hashable."""
    schedule = schedule_of(message)
    return None if schedule is None else check_schedule(schedule, messages=1)


def check_schedule(schedule: object, *, messages: int) -> NewSchedule:
    """When to deliver the messages. Raises InvalidRequest for an ambiguous request."""
    if not isinstance(schedule, NewSchedule):
        raise InvalidRequest(f"expected NewSchedule, not {type(schedule).__name__}")
    if (schedule.deliver_at is None) == (schedule.delay_seconds is None):
        raise InvalidRequest("a schedule needs deliver_at or delay_seconds, and not both")
    if schedule.deliver_at is not None:
        check_kept_time(schedule.deliver_at, what="deliver_at")
    else:
        check_seconds(schedule.delay_seconds, what="delay_seconds", high=SECONDS_MAX)
    if schedule.key is not None:
        check_name(schedule.key, what="schedule key")
        if messages != 1:
            raise InvalidRequest(f"a schedule key is for one message, not for {messages}")
    return schedule


def canonical_trace_ids(trace_ids: list[str | None]) -> list[str | None]:
    """The same list if every UUID has its canonical spelling, otherwise a new list in which each has."""
    if set(map(type, trace_ids)) <= {str, type(None)}:
        texts = [text for text in trace_ids if text is not None]
        if all_canonical_uuids(texts):
            return trace_ids
    return [None if text is None else str(parse_uuid(text, what="trace id")) for text in trace_ids]

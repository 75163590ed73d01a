"""Converts the client's arguments to records: pops, seeks, starts of groups, filters of dead letters."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal, TypedDict

from lockstep.core.policy import GroupMode
from lockstep.core.records import DeadLetterFilter, PopRequest, Position, Subscription
from lockstep.errors import InvalidRequest

Begin = Subscription | Literal["all", "new"] | datetime
"""Where a group starts on a queue that it reads for the first time."""
SeekTarget = Position | Literal["start", "end", "current"] | datetime | int
"""The target of a seek: with a time, messages created at or before it count as done; a number is the next seq."""


class PopOptions(TypedDict, total=False):
    """What to pop, and how. The defaults: from all partitions, for the queue's own group, from the first message."""

    partition: str | None
    namespace: str | None
    task: str | None
    group: str
    batch: int
    """Maximum number of messages."""
    partitions: int
    """Maximum number of partitions that they come from; the default is 1."""
    lease_seconds: float | None
    """How long they are leased; by default as long as the queue says."""
    auto_ack: bool
    subscription: Begin
    """Where a new group starts."""
    mode: GroupMode | None
    """The mode of a new group: ordered, or shared, with leases on single messages."""


def pop_request(queue: str | None, options: PopOptions, *, batch: int) -> PopRequest:
    """`batch` is the number of messages unless the options set it."""
    wanted: dict[str, Any] = {"batch": batch, **options}
    wanted["subscription"] = subscription_of(options.get("subscription", "all"))
    return PopRequest(queue=queue, **wanted)


WAIT_SECONDS = 30.0
"""How long a pop waits by default."""


def wait_seconds(wait: bool, timeout_seconds: float | None) -> float:
    """How long a pop waits."""
    if timeout_seconds is not None and not wait:
        raise InvalidRequest("timeout_seconds says how long a pop waits: it goes with wait=True")
    patience_seconds = WAIT_SECONDS if timeout_seconds is None else timeout_seconds
    check_seconds(patience_seconds, "timeout_seconds")
    return patience_seconds


def check_seconds(value: object, what: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise InvalidRequest(f"{what} must be a number of seconds from 0 on, not {value!r}")


def subscription_of(begin: Begin) -> Subscription:
    if isinstance(begin, Subscription):
        return begin
    if isinstance(begin, datetime):
        return Subscription("from", begin)
    if begin in ("all", "new"):
        return Subscription(begin)
    raise InvalidRequest(f"a group begins with all, with new or at a time, not with {begin!r}")


def position_of(place: SeekTarget) -> Position:
    if isinstance(place, Position):
        return place
    if isinstance(place, datetime):
        return Position("time", at=place)
    if isinstance(place, int) and not isinstance(place, bool):
        return Position("seq", seq=place)
    if place in ("start", "end", "current"):
        return Position(place)
    raise InvalidRequest(f"a seek goes to start, end, current, a time or a seq, not to {place!r}")


def selected(where: DeadLetterFilter, all: bool) -> DeadLetterFilter:
    """The filter; one that is empty by mistake must not select all dead letters."""
    if where == DeadLetterFilter() and all is not True:
        raise InvalidRequest("name the dead letters by ids, queue, partition, group, from_at or to_at; or say all=True")
    return where


def dead_letter_filter(
    queue: str | None,
    partition: str | None,
    group: str | None,
    ids: Sequence[int] | None,
    from_at: datetime | None,
    to_at: datetime | None,
) -> DeadLetterFilter:
    if ids is not None and not isinstance(ids, Sequence):
        raise InvalidRequest(f"ids must be a list of dead letter ids, not {type(ids).__name__}")
    return DeadLetterFilter(
        ids=None if ids is None else tuple(ids),
        queue=queue,
        partition=partition,
        group=group,
        from_at=from_at,
        to_at=to_at,
    )

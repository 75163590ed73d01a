"""The rules of delivery: every change of a cursor, as a function of (state, now).

A *cursor* is a group's position in one partition. Everything up to `acked` is done. It is in one of these states:

    drained    due_at is None                      nothing to deliver
    due        no lease, due_at <= now             a pop takes it
    waiting    no lease, due_at > now              delayed, backing off after a failure, or held by a window
    stopped    no lease, due_at is STOPPED         a message was exhausted and the queue's policy is `stop`
    leased     lease_id, due_at > now              due_at is the lease's deadline
    expired    lease_id, due_at <= now             nobody has noticed yet; the next pop charges the attempt

`attempts` counts the failed deliveries of the head, the first message after `acked`. It starts again at 0
whenever the cursor moves: the new head has not failed yet.

The memory store calls these functions. The SQL procedures say the same in SQL, and the model tests hold them
to it; a change here is a change there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from lockstep.core.endings import ENDINGS, AckStatus
from lockstep.core.messages import Message
from lockstep.core.policy import QueueOptions, charged
from lockstep.core.records import AckError, GroupProgress, MessageStatus, MessageView

STOPPED = datetime.max.replace(tzinfo=UTC)
"""The due_at of a stopped cursor: never due, and never overwritten by a push. PostgreSQL stores infinity."""

LEASE_EXPIRED = "lease expired"
RETRIED_TOO_OFTEN = "retried too often"
"""The error of a dead letter whose last delivery asked for a retry without a reason."""
EXPIRED = "expired"
"""The error of a dead letter for a message that expired before delivery."""


@dataclass(frozen=True, slots=True)
class Cursor:
    acked: int = 0
    due_at: datetime | None = None
    lease_id: str | None = None
    lease_to: int | None = None
    leased_at: datetime | None = None
    attempts: int = 0
    consumed_at: datetime | None = None

    def leased(self, now: datetime) -> bool:
        return self.lease_id is not None and self.due_at is not None and self.due_at > now

    def expired(self, now: datetime) -> bool:
        return self.lease_id is not None and self.due_at is not None and self.due_at <= now

    def due(self, now: datetime) -> bool:
        return self.due_at is not None and self.due_at <= now


@dataclass(frozen=True, slots=True)
class Ahead:
    """What a partition holds after a cursor; determines when the cursor is due."""

    next_created_at: datetime
    """Creation time of the first message after the cursor."""
    newest_created_at: datetime


@dataclass(frozen=True, slots=True)
class Death:
    """A message that a cursor passed although it was not completed."""

    seq: int
    attempts: int
    error: str | None
    recorded: bool
    """False when the policy says `drop`."""


def due_after_release(ahead: Ahead | None, options: QueueOptions, *, not_before: datetime) -> datetime | None:
    """due_at of a cursor without a lease. `not_before` is now, or the time of a retry.

    Without a delay or window on the queue, the creation time of a message does not matter: it may be in the future
    after the clock was set back.
    """
    if ahead is None:
        return None
    due_at = not_before
    if options.delay:
        due_at = max(due_at, ahead.next_created_at + options.delay)
    if options.window:
        due_at = max(due_at, ahead.newest_created_at + options.window)
    return due_at


def due_after_set_back(due_at: datetime, back: timedelta, *, lease: timedelta | None, now: datetime) -> datetime:
    """due_at of a waiting cursor after the clock was set back by `back`. A leased cursor keeps at least `lease`, the
    queue's lease time: it may have been leased after the change.
    """
    moved = due_at - back
    return moved if lease is None else min(due_at, max(moved, now + lease))


def due_after_push(cursor: Cursor, created_at: datetime, options: QueueOptions) -> datetime | None:
    """due_at after a push: set if the partition was drained, moved later if a window is open."""
    if cursor.due_at is None:
        return created_at + max(options.delay, options.window)
    if options.window_seconds and cursor.lease_id is None:
        return max(cursor.due_at, created_at + options.window)
    return cursor.due_at


def is_expired(created_at: datetime, own: datetime | timedelta | None, options: QueueOptions, now: datetime) -> bool:
    """Whether a message is too old to be delivered. `own` is the expiry time set by its producer, or None.

    Messages under a live lease are not considered. A pop checks this before it leases a message, and skips an expired
    one (`overdue`). A lease ends before the first expired message, so that the next pop handles that message.
    """
    if isinstance(own, datetime):
        return own <= now
    return options.expires_after is not None and created_at + options.expires_after <= now


def overdue(cursor: Cursor, seq: int, options: QueueOptions, now: datetime) -> tuple[Cursor, Death]:
    """The cursor past its expired head, and the attempts of that head."""
    death = Death(seq, cursor.attempts, EXPIRED, recorded=options.on_expired == "dead")
    return move(cursor, seq, now), death


def lease(cursor: Cursor, *, lease_id: str, to: int, since: datetime, until: datetime) -> Cursor:
    """Lease the cursor. `since` is now or, for a continued lease, the time of the first lease."""
    return replace(cursor, lease_id=lease_id, lease_to=to, leased_at=since, due_at=until)


def is_kept(leased_at: datetime, hold: timedelta, now: datetime) -> bool:
    """Whether a consumer that continues its lease keeps a partition that it has held since `leased_at`, in one lease or
    in several that continued each other. After that the partition takes its turn like any other.

    A time in the future, after the clock was set back, counts as long ago.
    """
    return timedelta(0) <= now - leased_at < hold


def share(messages_left: int, partitions_left: int) -> int:
    """How many messages of a batch the next of these partitions may have, so that every partition gets some."""
    return -(-messages_left // partitions_left)


def give_way(cursor: Cursor, now: datetime) -> Cursor:
    """A released cursor that is left to other consumers: due a moment from now, so that this call does not take it."""
    return replace(cursor, due_at=now + timedelta(microseconds=1)) if cursor.due(now) else cursor


def release(cursor: Cursor) -> Cursor:
    return replace(cursor, lease_id=None, lease_to=None, leased_at=None)


def move(cursor: Cursor, acked: int, now: datetime) -> Cursor:
    """Advance the cursor; the new head has not failed yet."""
    if acked <= cursor.acked:
        return cursor
    return replace(cursor, acked=acked, attempts=0, consumed_at=now)


def place(cursor: Cursor, acked: int) -> Cursor:
    """Set the cursor to another position by command, not by consumption: seek and clear. The caller sets due_at."""
    return replace(release(cursor), acked=acked, due_at=None, attempts=0)


def expire(cursor: Cursor, head: int | None, options: QueueOptions, now: datetime) -> tuple[Cursor, Death | None]:
    """A pop found the lease expired: the delivery of the head failed. The caller sets due_at unless it is STOPPED.

    `head` is the seq of the first message still stored after the cursor. If it lies outside of the lease it was not
    delivered, and is not charged.
    """
    delivered = head is not None and cursor.lease_to is not None and head <= cursor.lease_to
    cursor = release(cursor)
    if head is None or not delivered:
        return cursor, None
    failed = replace(cursor, attempts=charged(cursor.attempts))
    if not options.exhausted(failed.attempts):
        return failed, None
    if options.on_exhausted == "stop":
        return replace(failed, due_at=STOPPED), None
    death = Death(head, failed.attempts, LEASE_EXPIRED, recorded=options.on_exhausted == "dead")
    return move(failed, head, now), death


def keep_lease(held: Cursor, settled: Cursor) -> Cursor:
    """The settled cursor under its previous lease, which may be empty now: its holder keeps the partition."""
    to = max(held.lease_to or 0, settled.acked)
    return replace(settled, lease_id=held.lease_id, lease_to=to, leased_at=held.leased_at, due_at=held.due_at)


def bury(cursor: Cursor, head: int, error: str | None, now: datetime) -> tuple[Cursor, Death]:
    """Give up the head without waiting for its attempts. The caller sets due_at.

    An expired lease that nobody has noticed yet also counts as a failed delivery.
    """
    attempts = cursor.attempts + int(head <= (cursor.lease_to or 0))
    return move(release(cursor), head, now), Death(head, attempts, error, recorded=True)


@dataclass(frozen=True, slots=True)
class AckItem:
    """One ack of a call, resolved to a cursor and a seq."""

    index: int
    seq: int | None
    """None: there is no such message."""
    status: AckStatus
    lease_id: str | None
    error: str | None
    retry_at: datetime | None = None
    whole: bool = False
    """Applies to everything that its lease holds. Only for a shared group; for an ordered group it is resolved to a
    seq.
    """


@dataclass(frozen=True, slots=True)
class ItemOutcome:
    index: int
    error: AckError | None = None
    noop: bool = False
    dead: bool = False
    messages: int = 0


@dataclass(slots=True)
class Settlement:
    """What the acks of one call do to one cursor."""

    cursor: Cursor
    outcomes: list[ItemOutcome] = field(default_factory=list)
    deaths: list[Death] = field(default_factory=list)
    released: bool = False
    """A held lease ended; or a failure ended a delivery that had no live lease."""
    not_before: datetime | None = None
    """When the released cursor may be delivered again; None: now."""
    stopped: bool = False
    """This call stopped the cursor: its due_at is STOPPED. (A cursor that was stopped before goes on when it is
    released or moves: the message that stopped it is retried or passed.)"""


def settle(cursor: Cursor, items: Iterable[AckItem], options: QueueOptions, now: datetime) -> Settlement:
    """Apply all acks that one call has for one cursor, in seq order.

    `completed` commits a prefix. `failed` charges an attempt, and `retry` does not. Both clamp: no later item of this
    call commits. An exhausted message is passed, and so is one with `dlq`. The lease is checked against the state
    before the call, so a release in the middle does not fail later items. The caller sets due_at if the lease was
    released, or if no lease was held and the cursor moved, unless this call stopped it. (If it did not move it keeps
    waiting: an ack without effect does not shorten a retry delay.)
    """
    held = cursor
    result = Settlement(cursor)
    clamped = False
    for item in sorted(items, key=lambda i: (i.seq or 0, i.index)):
        error = _refusal(held, item, now)
        if error is not None:
            result.outcomes.append(ItemOutcome(item.index, error))
        elif clamped:
            passed = ENDINGS[item.status].redelivers
            result.outcomes.append(ItemOutcome(item.index, None if passed else "clamped"))
        elif item.seq is not None and item.seq <= result.cursor.acked:
            done = ENDINGS[item.status].completes
            result.outcomes.append(ItemOutcome(item.index, None if done else "committed", noop=done))
        else:
            clamped = _apply(result, item, options, now)
    if result.cursor.lease_to is not None and result.cursor.acked >= result.cursor.lease_to:
        result.released = True
    if result.released:
        result.cursor = release(result.cursor)
    if result.stopped:
        result.cursor = replace(result.cursor, due_at=STOPPED)
    return result


def _refusal(held: Cursor, item: AckItem, now: datetime) -> AckError | None:
    if item.seq is None:
        return "unresolvable"
    if item.lease_id is None:
        return None
    if not held.leased(now) or held.lease_id != item.lease_id or item.seq > (held.lease_to or 0):
        return "lease_lost"
    return None


def _apply(result: Settlement, item: AckItem, options: QueueOptions, now: datetime) -> bool:
    """Apply an accepted item; returns whether it clamps."""
    assert item.seq is not None
    before = result.cursor.acked
    ending = ENDINGS[item.status]
    if ending.completes:
        result.cursor = move(result.cursor, item.seq, now)
        result.outcomes.append(ItemOutcome(item.index, messages=item.seq - before))
        return False
    result.released = True
    if ending.redelivers and not ending.charges_ordered:
        result.not_before = None if item.retry_at is None else max(now, item.retry_at)
        result.outcomes.append(ItemOutcome(item.index))
        return True
    attempts = charged(result.cursor.attempts)
    exhausted = ending.gives_up or options.exhausted(attempts)
    if not exhausted:
        result.cursor = replace(result.cursor, attempts=attempts)
        delayed_to = now + options.retry_delay(attempts) if ending.delays else now
        result.not_before = delayed_to if item.retry_at is None else max(now, item.retry_at)
        result.outcomes.append(ItemOutcome(item.index))
        return True
    if ending.redelivers and options.on_exhausted == "stop":
        result.cursor = replace(result.cursor, attempts=attempts)
        result.stopped = True
        result.outcomes.append(ItemOutcome(item.index))
        return True
    recorded = ending.gives_up or options.on_exhausted == "dead"
    result.deaths.append(Death(item.seq, attempts, item.error, recorded))
    result.cursor = move(result.cursor, item.seq, now)
    result.outcomes.append(ItemOutcome(item.index, dead=recorded))
    return False


def message_status(seq: int, cursors: Iterable[Cursor], *, dead: bool, now: datetime) -> MessageStatus:
    """A message's status over all groups of its queue: that of the group that has progressed least."""
    if dead:
        return "dead_letter"
    completed = False
    status: MessageStatus = "completed"
    for cursor in cursors:
        completed = True
        if seq <= cursor.acked:
            continue
        if cursor.leased(now) and cursor.lease_to is not None and seq <= cursor.lease_to:
            return "processing"
        status = "pending"
    return status if completed else "pending"


def message_view(message: Message, cursors: Iterable[tuple[str, Cursor]], *, dead: bool, now: datetime) -> MessageView:
    """A message with its status and the progress of each group; the cursors are paired with group names."""
    of_groups = list(cursors)
    status = message_status(message.seq, (cursor for _, cursor in of_groups), dead=dead, now=now)
    groups = []
    for group, cursor in of_groups:
        leased = cursor.leased(now) and cursor.acked < message.seq <= (cursor.lease_to or 0)
        consumed = message.seq <= cursor.acked
        groups.append(GroupProgress(group=group, consumed=consumed, lease_expires_at=cursor.due_at if leased else None))
    return MessageView(message=message, status=status, groups=groups)

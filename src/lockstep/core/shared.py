"""The rules of shared groups, which lease single messages, as functions of (state, now).

A shared group has a cursor in each partition, as every group has, but its `acked` says how far messages were handed
out, not how far they are done. Messages handed out and not done are *in flight*, in *ranges* of seqs. A message is in
one of these states:

    new        after `acked`                            the cursor's due_at says from when, as in rules.py
    leased     in a range with a lease, due_at > now    due_at is the lease's deadline
    expired    in a range with a lease, due_at <= now   nobody has noticed yet; the next pop charges the attempt
    waiting    in a range without a lease               due_at is when it is delivered again
    stopped    in a range whose due_at is STOPPED       it was exhausted and the queue's policy is `stop`
    done       up to `acked`, and in no range

A message that is done leaves nothing behind, and a lease costs one range, however many messages it has. A range is
split only when its messages end differently. The low-water mark, up to which everything is done, is just before the
first range. `attempts` counts the deliveries of each message of a range that ended without completing it: by `failed`,
by `retry`, or by a lease that ran out; each of them may exhaust it. `released` counts as not delivered. Ranges do not
overlap and lie up to `acked`; some of their messages may have been removed since.

The memory store calls these functions. The SQL procedures say the same in SQL, and the model tests hold them to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import chain

from lockstep.core.endings import ENDINGS
from lockstep.core.policy import QueueOptions, charged
from lockstep.core.records import AckError
from lockstep.core.rules import LEASE_EXPIRED, RETRIED_TOO_OFTEN, STOPPED, AckItem, Cursor, Death, ItemOutcome


@dataclass(frozen=True, slots=True)
class Range:
    """Seqs in flight, from `first` to `last`, that share the same state."""

    first: int
    last: int
    due_at: datetime
    lease_id: str | None = None
    leased_at: datetime | None = None
    attempts: int = 0

    def __len__(self) -> int:
        return self.last - self.first + 1

    def __contains__(self, seq: int) -> bool:
        return self.first <= seq <= self.last

    def leased(self, now: datetime) -> bool:
        return self.lease_id is not None and self.due_at > now

    def due(self, now: datetime) -> bool:
        return self.due_at <= now


Stored = Callable[[Range], Iterable[int]]
"""The seqs of a range whose messages are still stored."""


def low_water(acked: int, ranges: Sequence[Range]) -> int:
    """The seq up to which everything is done."""
    return ranges[0].first - 1 if ranges else acked


def find(ranges: Iterable[Range], seq: int) -> Range | None:
    return next((one for one in ranges if seq in one), None)


def seen_at(cursor: Cursor, ranges: Iterable[Range], seq: int) -> Cursor:
    """The cursor of an ordered group with the same progress at this message."""
    found = find(ranges, seq)
    if found is None:
        return Cursor(acked=seq if seq <= cursor.acked else seq - 1)
    return Cursor(acked=seq - 1, lease_id=found.lease_id, lease_to=seq, due_at=found.due_at)


def due_at(cursor: Cursor, ranges: Iterable[Range]) -> datetime | None:
    """When a pop may find something, new or redelivered."""
    times = [one.due_at for one in ranges]
    return min(times if cursor.due_at is None else [cursor.due_at, *times], default=None)


def again(one: Range, *, due_at: datetime, attempts: int) -> Range:
    """The range without its lease, to be delivered again."""
    return Range(one.first, one.last, due_at, attempts=attempts)


def expire(one: Range, stored: Sequence[int], options: QueueOptions) -> tuple[Range | None, list[Death]]:
    """A pop found the lease expired: the delivery of each message failed. None: the range is done."""
    failed = again(one, due_at=one.due_at, attempts=charged(one.attempts))
    if not options.exhausted(failed.attempts):
        return failed, []
    if options.on_exhausted == "stop":
        return replace(failed, due_at=STOPPED), []
    recorded = options.on_exhausted == "dead"
    return None, [Death(seq, failed.attempts, LEASE_EXPIRED, recorded) for seq in stored]


def lease(one: Range, *, lease_id: str, to: int, now: datetime, until: datetime) -> tuple[Range, Range | None]:
    """The range leased up to a seq, and the unchanged rest."""
    leased = replace(one, last=to, lease_id=lease_id, leased_at=now, due_at=until)
    return leased, replace(one, first=to + 1) if to < one.last else None


def without(one: Range, seqs: Sequence[int]) -> list[Range]:
    """What remains of a range without some of its seqs, which are sorted."""
    gaps = zip([one.first - 1, *seqs], [*seqs, one.last + 1], strict=True)
    return [replace(one, first=before + 1, last=after - 1) for before, after in gaps if before + 1 < after]


def give_up(ranges: Iterable[Range], seq: int) -> tuple[list[Range], int]:
    """The ranges without a given message, and the attempts of that message.

    An expired lease that nobody has noticed yet also counts as a failed delivery.
    """
    kept: list[Range] = []
    attempts = 0
    for one in ranges:
        kept += without(one, [seq]) if seq in one else [one]
        if seq in one:
            attempts = one.attempts + int(one.lease_id is not None)
    return kept, attempts


# --- Acks -------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class SharedSettlement:
    """What the acks of one call do to the ranges of one cursor."""

    ranges: list[Range]
    outcomes: list[ItemOutcome] = field(default_factory=list)
    deaths: list[Death] = field(default_factory=list)
    put_back: set[int] = field(default_factory=set)
    """The acks, by index, that put messages back."""


@dataclass(frozen=True, slots=True)
class _Fate:
    """How a delivery ends: done, or delivered again at some time."""

    due_at: datetime | None = None
    attempts: int = 0
    died: bool = False
    recorded: bool = False

    @property
    def done(self) -> bool:
        return self.due_at is None


def settle(
    cursor: Cursor,
    ranges: Sequence[Range],
    items: Iterable[AckItem],
    options: QueueOptions,
    now: datetime,
    stored: Stored,
) -> SharedSettlement:
    """Apply all acks that one call has for one cursor: first those of single messages, in seq order, then those by
    lease, which apply to everything that the lease still holds.

    Each message ends once per call, by the first valid ack. An ack for one message does not affect other messages. A
    lease is checked against the state before the call.
    """
    items = list(items)
    live = {one.lease_id for one in ranges if one.leased(now)}
    result = SharedSettlement(list(ranges))
    singles = sorted((item for item in items if not item.whole), key=lambda item: (item.seq or 0, item.index))
    fates: dict[int, _Fate] = {}
    for item in singles:
        _settle_message(result, item, cursor, fates, live, options, now)
    result.ranges = _cut(ranges, fates)
    for item in items:
        if item.whole:
            _settle_lease(result, item, live, options, now, stored)
    return result


def _settle_message(
    result: SharedSettlement,
    item: AckItem,
    cursor: Cursor,
    fates: dict[int, _Fate],
    live: set[str | None],
    options: QueueOptions,
    now: datetime,
) -> None:
    found = None if item.seq is None else find(result.ranges, item.seq)
    error = _refusal(item, found, cursor, live, now)
    if error is not None:
        result.outcomes.append(ItemOutcome(item.index, error))
        return
    assert item.seq is not None
    ended = fates.get(item.seq) if found is not None else _Fate()
    if ended is not None:
        result.outcomes.append(_again(item, ended))
        return
    assert found is not None
    fate = fates[item.seq] = _fate(item, found.attempts, options, now)
    if fate.died:
        result.deaths.append(Death(item.seq, fate.attempts, _reason(item), fate.recorded))
    if not fate.done:
        result.put_back.add(item.index)
    messages = int(ENDINGS[item.status].completes)
    result.outcomes.append(ItemOutcome(item.index, dead=fate.recorded, messages=messages))


def _refusal(
    item: AckItem, found: Range | None, cursor: Cursor, live: set[str | None], now: datetime
) -> AckError | None:
    if item.seq is None:
        return "unresolvable"
    if found is None:
        lost = item.seq > cursor.acked or (item.lease_id is not None and item.lease_id not in live)
        return "lease_lost" if lost else None
    if item.lease_id is not None and (found.lease_id != item.lease_id or not found.leased(now)):
        return "lease_lost"
    return None


def _again(item: AckItem, ended: _Fate) -> ItemOutcome:
    """An ack of a message that has already ended, before or during this call."""
    if not ended.done:
        return ItemOutcome(item.index, "lease_lost")
    done = ENDINGS[item.status].completes
    return ItemOutcome(item.index, None if done else "committed", noop=done)


def _fate(item: AckItem, attempts: int, options: QueueOptions, now: datetime) -> _Fate:
    ending = ENDINGS[item.status]
    if ending.completes:
        return _Fate()
    if ending.redelivers and not ending.charges_shared:
        return _Fate(now, attempts)
    attempts = charged(attempts)
    if ending.redelivers and not options.exhausted(attempts):
        delay = options.retry_delay(attempts) if ending.delays else timedelta(0)
        return _Fate(now + delay if item.retry_at is None else max(now, item.retry_at), attempts)
    if ending.redelivers and options.on_exhausted == "stop":
        return _Fate(STOPPED, attempts)
    return _Fate(None, attempts, died=True, recorded=ending.gives_up or options.on_exhausted == "dead")


def _reason(item: AckItem) -> str | None:
    again = ENDINGS[item.status].redelivers and not ENDINGS[item.status].delays
    return RETRIED_TOO_OFTEN if again and item.error is None else item.error


def _cut(ranges: Iterable[Range], fates: dict[int, _Fate]) -> list[Range]:
    """The ranges without the messages that ended. Messages to be delivered again form new ranges; neighbours with the
    same state share one."""
    if not fates:
        return list(ranges)
    kept = chain.from_iterable(without(one, sorted(seq for seq in fates if seq in one)) for one in ranges)
    back: list[Range] = []
    for seq, fate in sorted(fates.items()):
        if fate.due_at is None:
            continue
        last = back[-1] if back else None
        if last is not None and (last.last + 1, last.due_at, last.attempts) == (seq, fate.due_at, fate.attempts):
            back[-1] = replace(last, last=seq)
        else:
            back.append(Range(seq, seq, fate.due_at, attempts=fate.attempts))
    return sorted([*kept, *back], key=lambda one: one.first)


def _settle_lease(
    result: SharedSettlement, item: AckItem, live: set[str | None], options: QueueOptions, now: datetime, stored: Stored
) -> None:
    if item.lease_id not in live:
        result.outcomes.append(ItemOutcome(item.index, "lease_lost"))
        return
    held = [one for one in result.ranges if one.lease_id == item.lease_id]
    kept = [one for one in result.ranges if one.lease_id != item.lease_id]
    dead = False
    for one in held:
        fate = _fate(item, one.attempts, options, now)
        if fate.due_at is not None:
            kept.append(again(one, due_at=fate.due_at, attempts=fate.attempts))
            result.put_back.add(item.index)
        if fate.died:
            result.deaths += [Death(seq, fate.attempts, _reason(item), fate.recorded) for seq in stored(one)]
            dead = dead or fate.recorded
    result.ranges = sorted(kept, key=lambda one: one.first)
    messages = sum(map(len, held)) if ENDINGS[item.status].completes else 0
    result.outcomes.append(ItemOutcome(item.index, noop=not held, dead=dead, messages=messages))

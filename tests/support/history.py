"""A record of what clients saw, and what must hold of it whatever crashed meanwhile.

Clients write events as JSON lines, one file each, so that what they saw survives a kill -9. An event has the
time at which its request was sent and the time at which the answer came, on the one clock that all processes
of a machine share (`time.monotonic`). What the store did lies between the two, so `check` accuses it only
where every possible moment is wrong: it may miss a violation that was over in an instant, and never invents
one.

Histories with `seek`, `clear`, deleted groups or `on_exhausted=drop` are not understood.
"""

from __future__ import annotations

import itertools
import os
import time
import zlib
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple
from uuid import uuid4

import msgspec

from lockstep.core.messages import Message, Receipt
from lockstep.core.records import AckOutcome, AckStatus, Popped, Renewed


class Lane(NamedTuple):
    """A partition, as one group sees it; or, with no group, as producers do."""

    queue: str
    partition: str
    group: str = ""


# --- Events


class Event(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    sent_at: float
    at: float


class Push(Event, frozen=True, kw_only=True):
    """An acknowledged push of one message."""

    queue: str
    partition: str
    seq: int
    message_id: str
    payload: bytes
    transaction_id: str | None = None
    duplicate: bool = False
    partition_id: int | None = None


class Buffered(Event, frozen=True, kw_only=True):
    """A push to one partition that a server answered from its buffer: it is stored later, once."""

    queue: str
    partition: str
    payloads: list[bytes]


class Delivery(Event, frozen=True, kw_only=True):
    """What one pop gave of one partition."""

    group: str
    queue: str
    partition: str
    seqs: list[int]
    message_ids: list[str]
    lease_id: str | None
    """None: acknowledged at once."""
    lease_seconds: float
    checksums: list[int] | None = None
    """Of the payloads."""
    partition_id: int | None = None
    lasting: bool = True
    """False: a failover may have undone it."""


class Settling(Event, frozen=True, kw_only=True):
    """An ack that was sent. What became of it is unknown unless a `Settled` follows."""

    id: str
    group: str
    queue: str
    partition: str
    seq: int
    status: AckStatus
    lease_id: str | None


class Settled(Event, frozen=True, kw_only=True):
    """The answer to an ack."""

    id: str
    success: bool
    dead: bool


class Extension(Event, frozen=True, kw_only=True):
    """A lease that was renewed."""

    lease_id: str
    seconds: float


AnyEvent = Push | Buffered | Delivery | Settling | Settled | Extension
_decode = msgspec.json.Decoder(AnyEvent).decode


class Recorder:
    """Keeps events, and appends them to a file if there is one."""

    def __init__(self, path: Path | None = None, *, now: Callable[[], float] = time.monotonic) -> None:
        self.events: list[AnyEvent] = []
        self.now = now
        self._file = None if path is None else os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def pushed(self, receipts: Iterable[Receipt], payloads: Iterable[bytes], *, sent_at: float) -> None:
        """The receipts of a push that answered, with the payloads in the same order."""
        at = self.now()
        self._keep(
            Push(
                sent_at=sent_at,
                at=at,
                queue=receipt.queue,
                partition=receipt.partition,
                seq=receipt.seq,
                message_id=receipt.message_id,
                payload=payload,
                transaction_id=None if receipt.transaction_id == receipt.message_id else receipt.transaction_id,
                duplicate=receipt.status == "duplicate",
                partition_id=receipt.partition_id,
            )
            for receipt, payload in zip(receipts, payloads, strict=True)
        )

    def buffered(self, queue: str, partition: str, payloads: Iterable[bytes], *, sent_at: float) -> None:
        self._keep(
            [Buffered(sent_at=sent_at, at=self.now(), queue=queue, partition=partition, payloads=list(payloads))]
        )

    def delivered(self, popped: Popped, *, sent_at: float, lease_seconds: float) -> None:
        """What a pop gave; nothing if it gave nothing."""
        lanes: dict[Lane, list[Message]] = defaultdict(list)
        for message in popped.messages():
            lanes[Lane(message.queue, message.partition, popped.group)].append(message)
        for lane, messages in lanes.items():
            self.delivered_to(lane, messages, lease_id=popped.lease_id, sent_at=sent_at, lease_seconds=lease_seconds)

    def delivered_to(
        self, lane: Lane, messages: Sequence[Message], *, lease_id: str | None, sent_at: float, lease_seconds: float
    ) -> None:
        """What a pop gave of one partition."""
        event = Delivery(
            sent_at=sent_at,
            at=self.now(),
            group=lane.group,
            queue=lane.queue,
            partition=lane.partition,
            seqs=[message.seq for message in messages],
            message_ids=[message.id for message in messages],
            lease_id=lease_id,
            lease_seconds=lease_seconds,
            checksums=[zlib.crc32(message.payload) for message in messages],
            partition_id=messages[0].partition_id,
        )
        self._keep([event])

    def settling(self, lane: Lane, seq: int, *, lease_id: str | None, status: AckStatus = "completed") -> str:
        """To be called before an ack is sent; returns the id for `settled`."""
        at = self.now()
        event = Settling(
            sent_at=at,
            at=at,
            id=uuid4().hex,
            group=lane.group,
            queue=lane.queue,
            partition=lane.partition,
            seq=seq,
            status=status,
            lease_id=lease_id,
        )
        self._keep([event])
        return event.id

    def settled(self, settling_id: str, outcome: AckOutcome) -> None:
        at = self.now()
        self._keep([Settled(sent_at=at, at=at, id=settling_id, success=outcome.success, dead=outcome.dead)])

    def extended(self, renewed: Renewed, *, seconds: float, sent_at: float) -> None:
        if renewed.partitions:
            self._keep([Extension(sent_at=sent_at, at=self.now(), lease_id=renewed.lease_id, seconds=seconds)])

    def _keep(self, events: Iterable[AnyEvent]) -> None:
        events = list(events)
        self.events += events
        if self._file is not None and events:
            os.write(self._file, b"".join(msgspec.json.encode(event) + b"\n" for event in events))


def load(paths: Iterable[Path]) -> list[AnyEvent]:
    """The events of several clients. A last line that a kill cut off is left out."""
    events: list[AnyEvent] = []
    for path in paths:
        lines = path.read_bytes().split(b"\n")
        events += map(_decode, filter(None, lines[:-1]))
    return events


def without_lost(events: Iterable[AnyEvent], stored: Collection[str], *, since: float, until: float) -> list[AnyEvent]:
    """A history of which a failover has taken away what happened between two times, or some of it; `stored` are the ids
    of the messages that are there. Messages that were pushed meanwhile may be lost, leases that began then may have
    ended, and what was acknowledged meanwhile may not be done. Everything else is as it was."""
    kept: list[AnyEvent] = []
    for event in events:
        if event.at <= since or event.sent_at >= until:
            kept.append(event)
        elif isinstance(event, Delivery):
            there = [place for place, one in enumerate(event.message_ids) if one in stored]
            if there:
                kept.append(_reduced(event, there))
        elif isinstance(event, Settling) or (isinstance(event, Push) and event.message_id in stored):
            kept.append(event)
    return kept


def _reduced(event: Delivery, places: Sequence[int]) -> Delivery:
    """Some messages of a delivery whose lease may have ended at any time."""
    return msgspec.structs.replace(
        event,
        seqs=[event.seqs[place] for place in places],
        message_ids=[event.message_ids[place] for place in places],
        checksums=None if event.checksums is None else [event.checksums[place] for place in places],
        lease_seconds=0.0,
        lasting=False,
    )


# --- The checker

ViolationKind = Literal[
    "lost",  # an acknowledged message is not there
    "changed",  # it is there with another id or payload
    "gap",  # stored seqs are not dense
    "reordered",  # a later push has a lower seq, or a delivery is not in seq order
    "stored_twice",  # a transaction id, or a message id, has two messages
    "phantom",  # a message was delivered that is not stored
    "skipped",  # delivered before everything before it was done
    "below_cursor",  # delivered again though it was done
    "two_leases",  # two live leases on a partition of one group
    "stale_lease",  # a lease changed something after its successor was there
    "undelivered",  # a group that was drained never saw a message
    "id_reused",  # an id has named two partitions
]


class Violation(NamedTuple):
    kind: ViolationKind
    text: str


class Attempt(NamedTuple):
    """An ack and its answer."""

    sent: Settling
    answer: Settled | None

    @property
    def confirmed(self) -> bool:
        """The cursor has certainly passed the message."""
        if self.answer is None or not self.answer.success:
            return False
        return self.sent.status == "completed" or self.answer.dead

    @property
    def possible(self) -> bool:
        """The cursor may have passed the message."""
        return self.sent.status not in ("retry", "released") and (self.answer is None or self.answer.success)


def check(
    events: Collection[AnyEvent],
    stored: Iterable[Message],
    *,
    dead: Collection[tuple[Lane, int]] = (),
    drained: Collection[str] = (),
) -> list[Violation]:
    """What is wrong with a history, given all that the store holds at its end.

    `dead` names the dead letters: a cursor may pass those without an ack. `drained` names groups that
    consumed until nothing was left.
    """
    lanes: dict[Lane, list[Message]] = defaultdict(list)
    for message in sorted(stored, key=lambda m: m.seq):
        lanes[Lane(message.queue, message.partition)].append(message)
    return [
        *_check_stored(lanes),
        *_check_pushes([event for event in events if isinstance(event, Push)], lanes),
        *_check_buffered([event for event in events if isinstance(event, Buffered)], lanes),
        *_check_deliveries(events, lanes, dead=set(dead)),
        *_check_drained(events, lanes, drained),
    ]


def _check_stored(lanes: dict[Lane, list[Message]]) -> Iterator[Violation]:
    places: dict[str, Message] = {}
    for lane, messages in lanes.items():
        seqs = [message.seq for message in messages]
        if seqs != list(range(1, len(seqs) + 1)):
            yield Violation("gap", f"{lane}: stored seqs are {_short(seqs)}")
        transactions: dict[str, Message] = {}
        for message in messages:
            first = transactions.setdefault(message.transaction_id, message)
            if first is not message:
                yield Violation("stored_twice", f"{lane}: {message.transaction_id} at {first.seq} and {message.seq}")
            first = places.setdefault(message.id, message)
            if first is not message:
                yield Violation("stored_twice", f"message id {message.id} at {first} and {message}")


def _check_pushes(pushes: list[Push], lanes: dict[Lane, list[Message]]) -> Iterator[Violation]:
    stored = {(lane, message.seq): message for lane, messages in lanes.items() for message in messages}
    fresh: dict[Lane, list[Push]] = defaultdict(list)
    for push in pushes:
        lane = Lane(push.queue, push.partition)
        message = stored.get((lane, push.seq))
        if message is None:
            yield Violation("lost", f"{lane}: seq {push.seq} was acknowledged and is not there")
        elif message.id != push.message_id or (not push.duplicate and message.payload != push.payload):
            yield Violation("changed", f"{lane}: seq {push.seq} is not what was acknowledged")
        elif push.transaction_id is not None and message.transaction_id != push.transaction_id:
            yield Violation("changed", f"{lane}: seq {push.seq} has transaction id {message.transaction_id}")
        if not push.duplicate:
            fresh[lane].append(push)
    for lane, group in fresh.items():
        yield from _check_push_order(lane, group)


def _check_buffered(pushes: list[Buffered], lanes: dict[Lane, list[Message]]) -> Iterator[Violation]:
    """Payloads must be unique within a partition."""
    stored = {lane: Counter(message.payload for message in messages) for lane, messages in lanes.items()}
    for push in pushes:
        lane = Lane(push.queue, push.partition)
        for payload in push.payloads:
            count = stored.get(lane, Counter())[payload]
            if count != 1:
                yield Violation(
                    "stored_twice" if count else "lost", f"{lane}: {payload!r} was buffered, is {count} times there"
                )


def _check_push_order(lane: Lane, pushes: list[Push]) -> Iterator[Violation]:
    """What was acknowledged before another was sent comes before it; no place is given twice."""
    for seq, twice in itertools.groupby(sorted(pushes, key=lambda p: p.seq), key=lambda p: p.seq):
        if len(list(twice)) > 1:
            yield Violation("stored_twice", f"{lane}: seq {seq} was acknowledged as new twice")
    answered = sorted(pushes, key=lambda p: p.at)
    highest, position = 0, 0
    for push in sorted(pushes, key=lambda p: p.sent_at):
        while position < len(answered) and answered[position].at < push.sent_at:
            highest = max(highest, answered[position].seq)
            position += 1
        if push.seq < highest:
            yield Violation("reordered", f"{lane}: seq {push.seq} was pushed after {highest} was acknowledged")


def _check_deliveries(
    events: Collection[AnyEvent], lanes: dict[Lane, list[Message]], *, dead: set[tuple[Lane, int]]
) -> Iterator[Violation]:
    answers = {event.id: event for event in events if isinstance(event, Settled)}
    attempts: dict[Lane, list[Attempt]] = defaultdict(list)
    deliveries: dict[Lane, list[Delivery]] = defaultdict(list)
    extensions: dict[str, list[Extension]] = defaultdict(list)
    for event in events:
        if isinstance(event, Settling):
            attempts[_lane(event)].append(Attempt(event, answers.get(event.id)))
        elif isinstance(event, Delivery):
            deliveries[_lane(event)].append(event)
        elif isinstance(event, Extension):
            extensions[event.lease_id].append(event)
    for lane, group in deliveries.items():
        group.sort(key=lambda d: d.at)
        stored = {message.seq: message for message in lanes.get(lane._replace(group=""), [])}
        yield from _check_contents(lane, group, stored)
        yield from _check_order(lane, group, attempts[lane], {seq for where, seq in dead if where == lane})
        yield from _check_leases(lane, group, attempts[lane], extensions)


def _check_contents(lane: Lane, deliveries: list[Delivery], stored: dict[int, Message]) -> Iterator[Violation]:
    for delivery in deliveries:
        for place, (seq, message_id) in enumerate(zip(delivery.seqs, delivery.message_ids, strict=True)):
            message = stored.get(seq)
            if message is None or message.id != message_id:
                yield Violation("phantom", f"{lane}: {message_id} was delivered as {seq} and is not stored there")
            elif delivery.checksums is not None and delivery.checksums[place] != zlib.crc32(message.payload):
                yield Violation("changed", f"{lane}: {message_id} was delivered with another payload than is stored")
        if delivery.seqs != list(range(delivery.seqs[0], delivery.seqs[0] + len(delivery.seqs))):
            yield Violation("reordered", f"{lane}: delivered {_short(delivery.seqs)}")


def _check_order(
    lane: Lane, deliveries: list[Delivery], attempts: list[Attempt], dead: set[int]
) -> Iterator[Violation]:
    """A delivery begins right after the cursor: at what is not done, and with nothing undone before it."""
    at_once = [delivery for delivery in deliveries if delivery.lease_id is None]
    done = _Highest(
        [
            *((a.answer.at, a.sent.seq) for a in attempts if a.confirmed and a.answer),
            *((d.at, d.seqs[-1]) for d in at_once),
            # A lease that begins at a seq shows that the cursor has passed what comes before it.
            *((d.at, d.seqs[0] - 1) for d in deliveries if d.lasting),
        ]
    )
    maybe = _Highest([(a.sent.at, a.sent.seq) for a in attempts if a.possible])
    maybe_at_once = _Highest([(d.sent_at, d.seqs[-1]) for d in at_once])
    for delivery in deliveries:
        first = delivery.seqs[0]
        completed = done.before(delivery.sent_at)
        if first <= completed:
            yield Violation("below_cursor", f"{lane}: {first} was delivered after {completed} was completed")
        # Another delivery, acknowledged at once and under way at the same time, may have come first.
        under_way = [seq for seq in maybe_at_once.between(delivery.sent_at, delivery.at) if seq < first]
        reached = max(maybe.before(delivery.at), maybe_at_once.before(delivery.sent_at), *under_way, 0)
        undone = [seq for seq in range(reached + 1, first) if seq not in dead]
        if undone:
            yield Violation("skipped", f"{lane}: {first} was delivered while {_short(undone)} was not done")


class _Highest:
    """The highest seq of all that happened before a time."""

    def __init__(self, happened: list[tuple[float, int]]) -> None:
        happened.sort()
        self._times = [at for at, _ in happened]
        self._seqs = [seq for _, seq in happened]
        self._highest = list(itertools.accumulate(self._seqs, max, initial=0))

    def before(self, at: float) -> int:
        return self._highest[bisect_left(self._times, at)]

    def between(self, start: float, end: float) -> list[int]:
        return self._seqs[bisect_left(self._times, start) : bisect_left(self._times, end)]


def _check_leases(
    lane: Lane, deliveries: list[Delivery], attempts: list[Attempt], extensions: dict[str, list[Extension]]
) -> Iterator[Violation]:
    by_lease: dict[str | None, list[Attempt]] = defaultdict(list)
    for attempt in attempts:
        by_lease[attempt.sent.lease_id].append(attempt)
    for position, first in enumerate(deliveries):
        if first.lease_id is None:
            continue
        successor = _successor(deliveries, position)
        if successor is None:
            continue
        # An ack without a lease id may end any lease.
        own = by_lease[first.lease_id]
        until = _certainly_live_until(first, [*own, *by_lease[None]], extensions[first.lease_id])
        if successor.at < until:
            yield Violation("two_leases", f"{lane}: {successor.lease_id} was given while {first.lease_id} lived")
        for attempt in own:
            if attempt.answer and attempt.answer.success and attempt.sent.at > successor.at:
                yield Violation("stale_lease", f"{lane}: {first.lease_id} acknowledged after it was lost")


def _successor(deliveries: list[Delivery], position: int) -> Delivery | None:
    """The first answer to a request that was sent when the delivery at `position` was there already."""
    delivery = deliveries[position]
    for index in range(position + 1, len(deliveries)):
        other = deliveries[index]
        if other.lease_id != delivery.lease_id and other.sent_at >= delivery.at:
            return other
    return None


def _certainly_live_until(delivery: Delivery, attempts: list[Attempt], extensions: list[Extension]) -> float:
    """A lease lives at least until its length after the request, unless an ack may have ended it."""
    until = delivery.sent_at + delivery.lease_seconds
    until = max([until, *(extension.sent_at + extension.seconds for extension in extensions)])
    for attempt in attempts:
        ends = attempt.sent.status != "completed" or attempt.sent.seq >= delivery.seqs[-1]
        if ends and attempt.sent.at >= delivery.sent_at:
            until = min(until, attempt.sent.at)
    return until


def check_ids(events: Iterable[AnyEvent]) -> Iterator[Violation]:
    """Whether a partition's id was given out twice: a client may still hold the one that a failover took away."""
    names: dict[int, Lane] = {}
    for event in events:
        if isinstance(event, Push | Delivery) and event.partition_id is not None:
            lane = Lane(event.queue, event.partition)
            first = names.setdefault(event.partition_id, lane)
            if first != lane:
                yield Violation("id_reused", f"partition {event.partition_id} is {first} and {lane}")


def _check_drained(
    events: Collection[AnyEvent], lanes: dict[Lane, list[Message]], groups: Collection[str]
) -> Iterator[Violation]:
    seen: dict[Lane, set[int]] = defaultdict(set)
    for event in events:
        if isinstance(event, Delivery):
            seen[_lane(event)].update(event.seqs)
    for group in groups:
        for lane, messages in lanes.items():
            missing = [m.seq for m in messages if m.seq not in seen[lane._replace(group=group)]]
            if missing:
                yield Violation("undelivered", f"{lane._replace(group=group)}: {_short(missing)}")


def _lane(event: Delivery | Settling) -> Lane:
    return Lane(event.queue, event.partition, event.group)


def _short(seqs: list[int]) -> str:
    return str(seqs) if len(seqs) <= 20 else f"{seqs[:10]} ... {seqs[-10:]}"

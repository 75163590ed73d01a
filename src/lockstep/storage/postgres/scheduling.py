"""The conversation of a push some of whose messages wait for their time: those are put among the waiting ones, the
others are pushed. It is one transaction, whoever drives it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import Any

from lockstep.core.codec import Codec, decode, encode, seal, unseal
from lockstep.core.ids import SEGMENT_MESSAGES_MAX
from lockstep.core.messages import Appointment, Batch, Columns, PushResult
from lockstep.core.schedules import NewWaiting, find_repeats, placements_of, split, waiting_of
from lockstep.errors import OperationPending, TooLarge, Unavailable
from lockstep.storage.postgres import pushing
from lockstep.storage.postgres.cache import NameCache
from lockstep.storage.postgres.calls import Call, Conversation, Work
from lockstep.storage.postgres.pushing import Encryption, Pushed

_NOW = "select coalesce($1::timestamptz, clock_timestamp())"
_RESOLVE = "select queue_id, encryption from lockstep.resolve($1::text, $2::text[], $3::timestamptz)"
_SCHEDULE = (
    "select * from lockstep.schedule($1::int[], $2::text[], $3::timestamptz[], $4::text[], $5::text[], $6::smallint[], "
    "$7::bytea[], $8::timestamptz)"
)

PACK_APART_MESSAGES_MIN = 64
"""From here the messages are packed in a thread of their own: each is compressed for itself."""


def may_wait(batches: Sequence[Batch]) -> bool:
    """Whether any of the batches is not simply for now."""
    return any([batch.schedule is not None for batch in batches])


def push(
    batches: Sequence[Batch],
    names: NameCache,
    *,
    encryption: Encryption,
    seconds_min: float,
    at: datetime | None,
    lock_seconds: float | None = None,
    overtake: bool = False,
) -> Conversation[Pushed]:
    """Push the batches, at once or for later; `at` is the time where it is set."""
    if not may_wait(batches):
        return (
            yield from pushing.push(
                batches, names, encryption=encryption, at=at, lock_seconds=lock_seconds, overtake=overtake
            )
        )
    if sum(len(batch.columns) for batch in batches) > SEGMENT_MESSAGES_MAX:
        raise TooLarge(f"one call may push at most {SEGMENT_MESSAGES_MAX} messages")
    now = (yield Call("now", _NOW, (at,)))[0][0]
    at_once, later = split(batches, now, seconds_min=seconds_min)
    pushed_now = [batches[index] for index in at_once]
    queues = yield from _lock_queues(batches, pushed_now, at)
    items = waiting_of(batches, later)
    appointments = yield from _schedule(items, queues, encryption, at)
    pushing_now = pushing.push(
        pushed_now, names, encryption=encryption, at=at, lock_seconds=lock_seconds, overtake=overtake
    )
    pushed = yield from _renumbered(pushing_now, at_once)
    placed = dict(zip(at_once, pushed.result.placements, strict=True))
    placements = placements_of(batches, placed, later, appointments)
    return Pushed(PushResult(batches, placements, occupancy=pushed.result.occupancy), pushed.segments)


def _renumbered(pushing_now: Conversation[Pushed], at_once: Sequence[int]) -> Conversation[Pushed]:
    """A push of some of the batches; its refusal names them as the caller counts them."""
    try:
        return (yield from pushing_now)
    except OperationPending as error:
        raise OperationPending(batches=[at_once[index] for index in error.details["batches"]]) from error


def resolve(
    batches: Sequence[Batch], names: NameCache, *, at: datetime | None
) -> Conversation[dict[tuple[str, str], int]]:
    """Create the queues and partitions of the batches that are missing, except partitions of messages that may wait;
    hold the queues of those. Returns the ids of the partitions."""
    for queue in sorted({batch.queue for batch in batches if batch.schedule is not None}):
        yield from pushing.hold_queue(queue, names, at=at)
    return (yield from pushing.resolve([batch for batch in batches if batch.schedule is None], names, at=at))


def _lock_queues(
    batches: Sequence[Batch], pushed_now: Sequence[Batch], at: datetime | None
) -> Conversation[dict[str, tuple[int, bool]]]:
    """Create what is missing, and hold all queues of the call, in order of their names; a queue that is being deleted
    would leave messages behind that wait for ever. Returns their ids, and whether they are encrypted."""
    partitions: dict[str, set[str]] = {batch.queue: set() for batch in batches}
    for batch in pushed_now:
        partitions[batch.queue].add(batch.partition)
    queues = {}
    for queue in sorted(partitions):
        row = (yield Call("resolve", _RESOLVE, (queue, sorted(partitions[queue]), at)))[0]
        queues[queue] = (row[0], row[1])
    return queues


def _schedule(
    items: list[NewWaiting], queues: dict[str, tuple[int, bool]], encryption: Encryption, at: datetime | None
) -> Conversation[list[Appointment]]:
    """Put the messages among the waiting ones; returns the place of each."""
    repeats = find_repeats(items)
    sent = [index for index in range(len(items)) if index not in repeats]
    if not sent:
        return []
    keys = {queue: encryption.key_for(queue) if encrypted else None for queue, (_, encrypted) in queues.items()}
    packing = partial(_packed, [items[index] for index in sent], keys)
    codecs, bodies = (yield Work(packing)) if len(sent) >= PACK_APART_MESSAGES_MIN else packing()
    columns = (
        [queues[items[index].queue][0] for index in sent],
        [items[index].partition for index in sent],
        [items[index].due_at for index in sent],
        [items[index].key for index in sent],
        [items[index].transaction_id for index in sent],
    )
    places: dict[int, Appointment] = {}
    for row in (yield Call("schedule", _SCHEDULE, (*columns, codecs, bodies, at))):
        places[sent[row[0] - 1]] = Appointment(row[1], row[2], row[3])
    if len(places) < len(sent):
        raise Unavailable("what waits under the same key kept changing during the push")
    for index, first in repeats.items():
        places[index] = Appointment(places[first].schedule_id, places[first].due_at, True)
    return [places[index] for index in range(len(items))]


def _packed(items: Sequence[NewWaiting], keys: dict[str, bytes | None]) -> tuple[list[int], list[bytes]]:
    packed = [pack(item.columns, keys[item.queue]) for item in items]
    return [codec for codec, _ in packed], [body for _, body in packed]


def pack(columns: Columns, key: bytes | None) -> tuple[int, bytes]:
    """Messages as they are stored while they wait: codec and body."""
    codec = Codec.PACKED if key is None else Codec.PACKED | Codec.ENCRYPTED
    return codec.value, seal(encode(columns), key=key)


def unpack(codec: int, body: Any, key: bytes | None) -> Columns:
    """Raises CorruptSegment, EncryptionUnavailable."""
    return decode(unseal(codec, body, key=key))

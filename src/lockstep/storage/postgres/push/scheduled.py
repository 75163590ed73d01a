"""The conversation of a push in which some messages may be scheduled: those are stored as scheduled messages, the
others are pushed. It is one transaction, whichever driver runs it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

from lockstep.core.codec import decode, encode, seal
from lockstep.core.ids import SEGMENT_MESSAGES_MAX
from lockstep.core.messages import Appointment, Batch, Columns, PushResult
from lockstep.core.schedules import NewWaiting, find_repeats, placements_of, split, waiting_of
from lockstep.core.sealing import Keyring, waiting_binding
from lockstep.errors import OperationPending, TooLarge, Unavailable
from lockstep.storage.postgres import sql
from lockstep.storage.postgres.cache import NameCache
from lockstep.storage.postgres.calls import Call, Conversation, Work
from lockstep.storage.postgres.encryption import Encryption
from lockstep.storage.postgres.push.conversation import Pushed, hold_queue, push_now, resolve_now, resolving


class _Waiting(NamedTuple):
    """Where a message waits; items are numbered from 1."""

    item: int
    id: int
    due_at: datetime
    duplicate: bool


_NOW = "select coalesce($1::timestamptz, clock_timestamp())"
_SCHEDULE = sql.procedure("schedule", _Waiting)

PACK_APART_MESSAGES_MIN = 64
"""From this size on, messages are packed in a thread, because each is compressed on its own."""


def may_wait(batches: Sequence[Batch]) -> bool:
    """Whether any of the batches is scheduled."""
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
    """Push the batches, at once or for later; `at` is the time of a test clock."""
    pushing = partial(push_now, encryption=encryption, at=at, lock_seconds=lock_seconds, overtake=overtake)
    if may_wait(batches):
        return _push_some(batches, names, pushing, encryption, seconds_min, at)
    return pushing(batches, names)


def _push_some(
    batches: Sequence[Batch],
    names: NameCache,
    pushing: Callable[[Sequence[Batch], NameCache], Conversation[Pushed]],
    encryption: Encryption,
    seconds_min: float,
    at: datetime | None,
) -> Conversation[Pushed]:
    if sum(len(batch.columns) for batch in batches) > SEGMENT_MESSAGES_MAX:
        raise TooLarge(f"one call may push at most {SEGMENT_MESSAGES_MAX} messages")
    now = (yield Call("now", _NOW, (at,)))[0][0]
    at_once, later = split(batches, now, seconds_min=seconds_min)
    pushed_now = [batches[index] for index in at_once]
    queues = yield from _lock_queues(batches, pushed_now, names, at)
    items = waiting_of(batches, later)
    appointments = yield from _schedule(items, queues, encryption, at)
    pushed = yield from _renumbered(pushing(pushed_now, names), at_once)
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
    """Create missing queues and partitions of the batches, except partitions of messages that may be scheduled; lock
    the queues of those. Returns the ids of the partitions."""
    for queue in sorted({batch.queue for batch in batches if batch.schedule is not None}):
        yield from hold_queue(queue, names, at=at)
    return (yield from resolve_now([batch for batch in batches if batch.schedule is None], names, at=at))


def _lock_queues(
    batches: Sequence[Batch], pushed_now: Sequence[Batch], names: NameCache, at: datetime | None
) -> Conversation[dict[str, tuple[int, bool]]]:
    """Create missing queues, and lock all queues of the call in the order of their names: the deletion of a queue at
    the same time would leave behind messages that wait forever. Returns their ids, and whether they are encrypted."""
    partitions: dict[str, set[str]] = {batch.queue: set() for batch in batches}
    for batch in pushed_now:
        partitions[batch.queue].add(batch.partition)
    queues = {}
    for queue in sorted(partitions):
        _, found = yield from resolving(queue, sorted(partitions[queue]), names, at)
        queues[queue] = (found.queue_id, found.encryption)
    return queues


def _schedule(
    items: list[NewWaiting], queues: dict[str, tuple[int, bool]], encryption: Encryption, at: datetime | None
) -> Conversation[list[Appointment]]:
    """Store the messages as waiting; returns the place of each."""
    repeats = find_repeats(items)
    sent = [index for index in range(len(items)) if index not in repeats]
    if not sent:
        return []
    forms = {
        queue: (queue_id, encryption.keys_for(queue) if encrypted else None)
        for queue, (queue_id, encrypted) in queues.items()
    }
    packing = partial(_packed, [items[index] for index in sent], forms)
    codecs, bodies = (yield Work(packing)) if len(sent) >= PACK_APART_MESSAGES_MIN else packing()
    waiting: list[_Waiting] = yield _SCHEDULE(
        queue_ids=[queues[items[index].queue][0] for index in sent],
        partitions=[items[index].partition for index in sent],
        due_ats=[items[index].due_at for index in sent],
        keys=[items[index].key for index in sent],
        transaction_ids=[items[index].transaction_id for index in sent],
        codecs=codecs,
        bodies=bodies,
        at=at,
    )
    places = {sent[one.item - 1]: Appointment(one.id, one.due_at, one.duplicate) for one in waiting}
    if len(places) < len(sent):
        raise Unavailable("what waits under the same key kept changing during the push")
    for index, first in repeats.items():
        places[index] = Appointment(places[first].schedule_id, places[first].due_at, True)
    return [places[index] for index in range(len(items))]


def _packed(items: Sequence[NewWaiting], forms: dict[str, tuple[int, Keyring | None]]) -> tuple[list[int], list[bytes]]:
    packed = []
    for item in items:
        queue_id, keys = forms[item.queue]
        packed.append(pack(item.columns, keys, waiting_binding(queue_id, item.partition, item.key)))
    return [codec for codec, _ in packed], [body for _, body in packed]


def pack(columns: Columns, keys: Keyring | None, binding: bytes) -> tuple[int, bytes]:
    """Messages as they are stored while they wait: codec and body."""
    codec, body = seal(encode(columns), keys=keys, binding=binding)
    return codec.value, body


def unpack(codec: int, body: Any, encryption: Encryption, binding: bytes) -> Columns:
    """Raises CorruptSegment, EncryptionUnavailable."""
    return decode(encryption.open(codec, body, binding))

"""The batches of a push as the body of a record, compressed; and encrypted if there is a key, because some of the
queues may be encrypted, which only the database knows."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec

from lockstep.core import codec
from lockstep.core.codec import Codec
from lockstep.core.messages import Batch, NewSchedule
from lockstep.engine.spool.frames import Content
from lockstep.errors import CorruptSegment


class _Stored(msgspec.Struct, array_like=True):
    queue: str
    partition: str
    layout: bytes
    deliver_at: datetime | None = None
    key: str | None = None


_decode = msgspec.msgpack.Decoder(list[_Stored]).decode


def contents_of(batches: Sequence[Batch], *, key: bytes | None, now: datetime) -> Content:
    """The batches as a record. What is to wait for a while waits from now, and not from when it is drained."""
    stored = [
        _Stored(batch.queue, batch.partition, codec.encode(batch.columns), *_appointment(batch, now))
        for batch in batches
    ]
    kind = Codec.PACKED if key is None else Codec.PACKED | Codec.ENCRYPTED
    body = bytes([kind]) + codec.seal(msgspec.msgpack.encode(stored), key=key)
    return Content(sum([len(batch.columns) for batch in batches]), body)


def batches_of(body: bytes, *, key: bytes | None) -> list[Batch]:
    """The batches of a record. Raises EncryptionUnavailable, CorruptSegment."""
    try:
        stored = _decode(codec.unseal(body[0], body[1:], key=key))
    except (msgspec.DecodeError, IndexError) as error:
        raise CorruptSegment(f"a record of the spool cannot be decoded: {error}") from error
    return [Batch(one.queue, one.partition, codec.decode(one.layout), _schedule(one)) for one in stored]


def _appointment(batch: Batch, now: datetime) -> tuple[datetime | None, str | None]:
    schedule = batch.schedule
    if schedule is None:
        return None, None
    if schedule.deliver_at is not None:
        return schedule.deliver_at, schedule.key
    return now + timedelta(seconds=schedule.delay_seconds or 0), schedule.key


def _schedule(stored: _Stored) -> NewSchedule | None:
    if stored.deliver_at is None:
        return None
    return NewSchedule(deliver_at=stored.deliver_at, key=stored.key)

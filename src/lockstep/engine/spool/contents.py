"""The batches of a push as the body of a record: compressed, and encrypted if a key is configured, because only the
database knows whether any of the queues is encrypted."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec

from lockstep.core import codec
from lockstep.core.messages import Batch, NewSchedule
from lockstep.core.sealing import SPOOL, Keyring
from lockstep.engine.spool.frames import RecordContent
from lockstep.errors import CorruptSegment


class _StoredBatch(msgspec.Struct, array_like=True):
    queue: str
    partition: str
    layout: bytes
    deliver_at: datetime | None = None
    key: str | None = None


_decode = msgspec.msgpack.Decoder(list[_StoredBatch]).decode


def contents_of(batches: Sequence[Batch], *, keys: Keyring, now: datetime) -> RecordContent:
    """The batches as a record. Delays count from now, not from when the record is drained."""
    stored = [
        _StoredBatch(batch.queue, batch.partition, codec.encode(batch.columns), *_appointment(batch, now))
        for batch in batches
    ]
    kind, body = codec.seal(msgspec.msgpack.encode(stored), keys=keys or None, binding=SPOOL)
    return RecordContent(sum([len(batch.columns) for batch in batches]), bytes([kind]) + body)


def batches_of(body: bytes, *, keys: Keyring) -> list[Batch]:
    """The batches of a record. Raises EncryptionUnavailable, CorruptSegment."""
    try:
        stored = _decode(codec.unseal(body[0], body[1:], keys=keys, binding=SPOOL))
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


def _schedule(stored: _StoredBatch) -> NewSchedule | None:
    if stored.deliver_at is None:
        return None
    return NewSchedule(deliver_at=stored.deliver_at, key=stored.key)

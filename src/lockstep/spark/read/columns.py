"""Segments as Arrow arrays, without work per message.

The packed form of a segment is columnar: lengths and concatenated values, from which an Arrow array's buffers differ
only by a running sum. Values that are not stored (seqs, message ids, times) are computed for whole runs at once.
Removed messages are still in their segment; the runs say which ones are left.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain, groupby
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lockstep.core.codec import NO_KEYS, STORED_COLUMNS, Codec
from lockstep.core.messages import COLUMNS_OF_FIELDS
from lockstep.core.sealing import Keyring
from lockstep.spark.read.packed import BYTE_TEXTS, UUID_BYTES, Packed, fixed_texts, uuid_texts
from lockstep.spark.read.segments import Ints

_ORDINALS = np.arange(65_536)
_ORDINAL_TEXTS = BYTE_TEXTS[np.stack([_ORDINALS >> 8, _ORDINALS & 255], axis=1)].reshape(-1, 4).view(np.uint32).ravel()
"""By ordinal: its four hex digits as a four-byte number, which is copied at once."""

# The columns of a row, by the name of their stored form.
_STORED = {
    name: COLUMNS_OF_FIELDS[name] for name in ("payload", "kind", "reference", "encoding", "headers", "producer_sub")
}


PLAIN_COLUMNS = tuple(name for name in STORED_COLUMNS if name not in ("transaction_uuids", "expires_at"))
"""The columns of a segment that is stored as SQL arrays; all its transaction ids are texts."""


@dataclass(slots=True)
class StoredSegment:
    """A segment as fetched, and which of its messages are left."""

    id: int
    queue: str
    uuid: bytes
    created_us: int
    codec: int
    message_count: int
    body: bytes | None
    plain: Sequence[list[Any] | None]
    """For a segment without a body: the messages' values, in the order of PLAIN_COLUMNS."""
    partition_ids: Sequence[int]
    """One for each remaining run, in the order of the messages; so are the next three."""
    first_seqs: Sequence[int]
    counts: Sequence[int]
    ordinals: Sequence[int]
    binding: bytes = b""
    """The binding of an encrypted body."""
    expires_at: Sequence[datetime | None] | None = None
    """By ordinal; None if no message has an expiry time."""
    attempts: Sequence[int] = ()
    """The delivery attempt of each run, if requested; 0 if unknown."""


class Rows:
    """The remaining messages of some segments, and their columns."""

    def __init__(
        self, segments: Sequence[StoredSegment], partitions: Mapping[int, str], *, keys: Keyring = NO_KEYS
    ) -> None:
        self._segments = segments
        self._partitions = partitions
        self._keys = keys
        self._counts = _chained([segment.counts for segment in segments])
        self._segment_of_run = np.repeat(np.arange(len(segments)), [len(segment.counts) for segment in segments])
        self.count = int(self._counts.sum())
        # Where the messages of each run are among these rows.
        self._starts = np.cumsum(self._counts) - self._counts
        self._taken = self._find_taken()
        self._made: dict[str, pa.Array] = {}
        self._groups: list[_SegmentGroup] | None = None

    def _find_taken(self) -> pa.Array | None:
        """The positions of the remaining messages among all stored ones; None if all remain."""
        stored = np.array([segment.message_count for segment in self._segments], np.int64)
        if self.count == int(stored.sum()):
            return None
        before = np.cumsum(stored) - stored
        return pa.array(self._counted_from(before[self._segment_of_run] + self._ordinals()))

    def _ordinals(self) -> Ints:
        """The ordinal of the first message of each run."""
        return _chained([segment.ordinals for segment in self._segments])

    def column(self, name: str) -> pa.Array:
        """A column of the rows; the payload as bytes."""
        if name not in self._made:
            self._made[name] = self._make(name)
        return self._made[name]

    def texts(self) -> pa.Array:
        """The payloads as text."""
        is_ascii = all(group.is_ascii for group in self._all_groups())
        return texts_of(self.column("payload"), self.column("encoding"), is_ascii=is_ascii)

    def _make(self, name: str) -> pa.Array:
        if name in _STORED:
            return self._stored(_STORED[name], pa.binary() if name == "payload" else pa.string())
        making: dict[str, Callable[[], pa.Array]] = {
            "queue": self._queues,
            "partition": self._partition_names,
            "seq": self._seqs,
            "message_id": self._message_ids,
            "transaction_id": self._transaction_ids,
            "trace_id": lambda: self._uuids("trace_ids"),
            "created_at": self._created_at,
            "expires_at": self._expires_at,
            "attempt": self._attempts,
        }
        return making[name]()

    def _per_run(self, values: Ints) -> Ints:
        return np.repeat(values, self._counts, axis=0)

    def _counted_from(self, firsts: Ints) -> Ints:
        """For each run, the consecutive numbers from its first one."""
        return self._per_run(firsts - self._starts) + np.arange(self.count, dtype=np.int64)

    def _queues(self) -> pa.Array:
        return self._repeated([segment.queue for segment in self._segments for _ in segment.counts])

    def _partition_names(self) -> pa.Array:
        return self._repeated([self._partitions[id_] for segment in self._segments for id_ in segment.partition_ids])

    def _repeated(self, texts: Sequence[str]) -> pa.Array:
        """A text per run, repeated for all its messages."""
        ends = pa.array((self._starts + self._counts).astype(np.int32))
        return pc.run_end_decode(pa.RunEndEncodedArray.from_arrays(ends, pa.array(texts, pa.string())))

    def _seqs(self) -> pa.Array:
        return pa.array(self._counted_from(_chained([segment.first_seqs for segment in self._segments])))

    def _created_at(self) -> pa.Array:
        times = np.array([segment.created_us for segment in self._segments], np.int64)
        return pa.array(self._per_run(times[self._segment_of_run])).view(pa.timestamp("us", "UTC"))

    def _expires_at(self) -> pa.Array:
        kind = pa.timestamp("us", "UTC")
        if all(segment.expires_at is None for segment in self._segments):
            return pa.nulls(self.count, kind)
        parts: list[datetime | None] = []
        for segment in self._segments:
            times = segment.expires_at or [None] * segment.message_count
            for ordinal, count in zip(segment.ordinals, segment.counts, strict=True):
                parts += times[ordinal : ordinal + count]
        return pa.array(parts, kind)

    def _attempts(self) -> pa.Array:
        if not all(segment.attempts for segment in self._segments):
            return pa.nulls(self.count, pa.int32())
        attempts = self._per_run(_chained([segment.attempts for segment in self._segments]))
        return pa.array(attempts, pa.int32(), mask=attempts == 0)

    def _message_ids(self) -> pa.Array:
        """The text of the segment's UUID with the ordinal in its last four digits."""
        uuids = np.frombuffer(b"".join(segment.uuid for segment in self._segments), np.uint8)
        texts = self._per_run(uuid_texts(uuids.reshape(-1, UUID_BYTES))[self._segment_of_run])
        texts.view(np.uint32)[:, -1] = _ORDINAL_TEXTS[self._counted_from(self._ordinals())]
        return fixed_texts(texts)

    def _transaction_ids(self) -> pa.Array:
        """The producer's transaction id, or the message's own id."""
        given = [
            column
            for column in (self._uuids("transaction_uuids"), self._stored("transaction_texts", pa.string()))
            if column.null_count < len(column)
        ]
        return pc.coalesce(*given, self.column("message_id")) if given else self.column("message_id")

    def _uuids(self, name: str) -> pa.Array:
        return self._taken_of([group.uuids(name) for group in self._all_groups()], pa.string())

    def _stored(self, name: str, kind: pa.DataType) -> pa.Array:
        return self._taken_of([group.values(name, kind) for group in self._all_groups()], kind)

    def _taken_of(self, parts: list[pa.Array], kind: pa.DataType) -> pa.Array:
        whole = parts[0] if len(parts) == 1 else pa.concat_arrays(parts) if parts else pa.array([], kind)
        return whole if self._taken is None else whole.take(self._taken)

    def _all_groups(self) -> list[_SegmentGroup]:
        """All messages of the segments in order, in separate groups for packed and plain segments."""
        if self._groups is None:
            by_codec = groupby(self._segments, key=lambda segment: segment.codec == Codec.PLAIN)
            self._groups = [
                _Plain(list(members)) if is_plain else Packed(list(members), self._keys)
                for is_plain, members in by_codec
            ]
        return self._groups


def texts_of(payloads: pa.Array, encodings: pa.Array, *, is_ascii: bool = False) -> pa.Array:
    """Payloads as text: JSON unchanged, opaque bytes as base64. Examines single messages only if some are opaque."""
    if encodings.null_count == len(encodings):
        if is_ascii:
            return payloads.view(pa.string())
        try:
            return payloads.cast(pa.string())
        except pa.ArrowInvalid:
            pass
    return pa.array(
        [
            _text_of(payload, is_json)
            for payload, is_json in zip(payloads.to_pylist(), encodings.is_null(), strict=True)
        ],
        pa.string(),
    )


def _text_of(payload: bytes, is_json: Any) -> str:
    if is_json.as_py():
        try:
            return payload.decode()
        except UnicodeDecodeError:
            pass
    return b64encode(payload).decode()


class _SegmentGroup(Protocol):
    """All messages of consecutive segments with the same storage form."""

    is_ascii: bool
    """Whether all payloads are known to be ASCII."""

    def values(self, name: str, kind: pa.DataType) -> pa.Array: ...

    def uuids(self, name: str) -> pa.Array:
        """A column of UUIDs as text."""
        ...


class _Plain:
    is_ascii = False

    def __init__(self, segments: Sequence[StoredSegment]) -> None:
        self._counts = [segment.message_count for segment in segments]
        self._columns = dict(
            zip(PLAIN_COLUMNS, zip(*[segment.plain for segment in segments], strict=True), strict=True)
        )

    def values(self, name: str, kind: pa.DataType) -> pa.Array:
        column = self._columns.get(name, ())
        if column.count(None) == len(column):
            return pa.nulls(sum(self._counts), kind)
        filled = [[None] * n if values is None else values for values, n in zip(column, self._counts, strict=True)]
        return pa.array(list(chain.from_iterable(filled)), _binary_of(kind)).cast(kind)

    def uuids(self, name: str) -> pa.Array:
        # Formatted by PostgreSQL; all transaction ids are texts here.
        return self.values(name, pa.string())


def _binary_of(kind: pa.DataType) -> pa.DataType | None:
    """Texts may be bytes or strings, so Arrow infers the type; payloads are always bytes, even if there are none."""
    return kind if pa.types.is_binary(kind) else None


def _chained(lists: Sequence[Sequence[int]]) -> Ints:
    # Through a single list: otherwise a segment of one message would cost as much as one of a thousand.
    return np.array(list(chain.from_iterable(lists)), np.int64)

"""Segments as Arrow arrays, without work per message.

The packed form of a segment is columnar: lengths and concatenated values, which are an Arrow array's buffers but for a
running sum. What is not stored (seqs, message ids, times) is computed for whole runs at once. Messages that were
removed lie in their segment still; the runs say which ones are left.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lockstep.core.codec import HEADER_BYTES, STORED_COLUMNS, Codec, header, unseal
from lockstep.errors import CorruptSegment

Ints = np.ndarray[Any, np.dtype[Any]]

_UUID_BYTES = 16
_UUID_TEXT_BYTES = 36
_PREFIX_BYTES = 32
"""Of a message id's text: all but the ordinal."""
_OFFSETS_MAX = 2**31 - 1

_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
_BYTE_TEXTS = np.stack([_HEX[np.arange(256) >> 4], _HEX[np.arange(256) & 15]], axis=1)
"""By byte: its two hex digits."""
_ORDINAL_TEXTS = _BYTE_TEXTS[np.stack([np.arange(65536) >> 8, np.arange(65536) & 255], axis=1)].reshape(65536, 4)
"""By ordinal: its four hex digits."""
# Where the hex digits of a UUID stand in its text; the rest are dashes.
_DIGIT_PLACES = np.array([place for place in range(_UUID_TEXT_BYTES) if place not in (8, 13, 18, 23)])

# The columns of a row, by the name of what is stored for them.
_STORED = {
    "payload": "payloads",
    "kind": "kinds",
    "reference": "references",
    "encoding": "encodings",
    "headers": "headers",
    "producer_sub": "producer_subs",
}


PLAIN_COLUMNS = (
    "payloads",
    "transaction_texts",
    "trace_ids",
    "kinds",
    "references",
    "encodings",
    "headers",
    "producer_subs",
)
"""The columns of a segment that is stored as SQL arrays; all its transaction ids are texts."""


@dataclass(slots=True)
class StoredSegment:
    """A segment as it was fetched, and which of its messages are left."""

    id: int
    queue: str
    uuid: bytes
    created_us: int
    codec: int
    message_count: int
    body: bytes | None
    plain: Sequence[list[Any] | None]
    """Without a body: the messages' values, in the order of PLAIN_COLUMNS."""
    partition_ids: Sequence[int]
    """One for each run that is left, in the order of the messages; as the next three."""
    first_seqs: Sequence[int]
    counts: Sequence[int]
    ordinals: Sequence[int]


class Rows:
    """The messages that are left of some segments, and their columns."""

    def __init__(
        self, segments: Sequence[StoredSegment], partitions: Mapping[int, str], *, key: bytes | None = None
    ) -> None:
        self._segments = segments
        self._partitions = partitions
        self._key = key
        self._counts = _chained([segment.counts for segment in segments])
        self._segment_of_run = np.repeat(np.arange(len(segments)), [len(segment.counts) for segment in segments])
        self.count = int(self._counts.sum())
        # Where each run's messages are among these rows.
        self._starts = np.cumsum(self._counts) - self._counts
        self._taken = self._find_taken()
        self._made: dict[str, pa.Array] = {}
        self._groups: list[_Group] | None = None

    def _find_taken(self) -> pa.Array | None:
        """The places of the messages that are left among all that are stored; None if those are all."""
        stored = np.array([segment.message_count for segment in self._segments], np.int64)
        if self.count == int(stored.sum()):
            return None
        before = np.cumsum(stored) - stored
        return pa.array(self._counted_from(before[self._segment_of_run] + self._ordinals()))

    def _ordinals(self) -> Ints:
        """Of each run: the place of its first message in its segment."""
        return _chained([segment.ordinals for segment in self._segments])

    def column(self, name: str) -> pa.Array:
        """A column of the row of a message; the payload as bytes."""
        if name not in self._made:
            self._made[name] = self._make(name)
        return self._made[name]

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
        }
        return making[name]()

    def _per_run(self, values: Ints) -> Ints:
        return np.repeat(values, self._counts)

    def _counted_from(self, firsts: Ints) -> Ints:
        """For each run the numbers from its first on."""
        return self._per_run(firsts - self._starts) + np.arange(self.count, dtype=np.int64)

    def _queues(self) -> pa.Array:
        return self._repeated([segment.queue for segment in self._segments], self._segment_of_run)

    def _partition_names(self) -> pa.Array:
        ids, runs = np.unique(_chained([segment.partition_ids for segment in self._segments]), return_inverse=True)
        return self._repeated([self._partitions[int(id_)] for id_ in ids], runs)

    def _repeated(self, texts: list[str], text_of_run: Ints) -> pa.Array:
        distinct = list(dict.fromkeys(texts))
        if len(distinct) == 1:
            return pa.repeat(pa.scalar(distinct[0], pa.string()), self.count)
        return pa.array(texts, pa.string()).take(pa.array(self._per_run(text_of_run)))

    def _seqs(self) -> pa.Array:
        return pa.array(self._counted_from(_chained([segment.first_seqs for segment in self._segments])))

    def _created_at(self) -> pa.Array:
        times = np.array([segment.created_us for segment in self._segments], np.int64)
        return pa.array(self._per_run(times[self._segment_of_run])).cast(pa.timestamp("us", "UTC"))

    def _message_ids(self) -> pa.Array:
        """The text of the segment's UUID with the ordinal in its last four digits."""
        uuids = np.frombuffer(b"".join(segment.uuid for segment in self._segments), np.uint8)
        prefixes = _uuid_texts(uuids.reshape(-1, _UUID_BYTES))[:, :_PREFIX_BYTES]
        texts = np.empty((self.count, _UUID_TEXT_BYTES), np.uint8)
        texts[:, :_PREFIX_BYTES] = np.repeat(prefixes[self._segment_of_run], self._counts, axis=0)
        texts[:, _PREFIX_BYTES:] = _ORDINAL_TEXTS[self._counted_from(self._ordinals())]
        return _fixed_texts(texts)

    def _transaction_ids(self) -> pa.Array:
        """What the producer gave, or the message's own id."""
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

    def _all_groups(self) -> list[_Group]:
        """All that is stored in the segments, packed and plain ones apart, and in their order."""
        if self._groups is None:
            by_codec = groupby(self._segments, key=lambda segment: segment.codec == Codec.PLAIN)
            self._groups = [
                _Plain(list(members)) if is_plain else _Packed(list(members), self._key)
                for is_plain, members in by_codec
            ]
        return self._groups


def texts_of(payloads: pa.Array, encodings: pa.Array) -> pa.Array:
    """Payloads as text: JSON as it is, opaque bytes as base64. Looks at single messages only where some are opaque."""
    if encodings.null_count == len(encodings):
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


class _Group:
    """All messages of consecutive segments that are stored in the same form."""

    def values(self, name: str, kind: pa.DataType) -> pa.Array:
        raise NotImplementedError

    def uuids(self, name: str) -> pa.Array:
        """A column of UUIDs as text."""
        raise NotImplementedError


class _Plain(_Group):
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
        # Spelled by PostgreSQL; transaction ids of any kind are texts here.
        return self.values(name, pa.string())


def _binary_of(kind: pa.DataType) -> pa.DataType | None:
    """Texts may come as bytes or as strings, so Arrow is to find out; payloads are bytes, also where there is none."""
    return kind if pa.types.is_binary(kind) else None


class _Packed(_Group):
    def __init__(self, segments: Sequence[StoredSegment], key: bytes | None) -> None:
        self._count = sum(segment.message_count for segment in segments)
        self._layouts = [_Layout.of(segment, key) for segment in segments]

    def values(self, name: str, kind: pa.DataType) -> pa.Array:
        gathered = self._gather(name)
        if gathered is None:
            return pa.nulls(self._count, kind)
        lengths, parts = gathered
        array = _variable(lengths, _buffer(parts))
        return array if pa.types.is_binary(kind) else _as_texts(array, name)

    def uuids(self, name: str) -> pa.Array:
        gathered = self._gather(name)
        if gathered is None:
            return pa.nulls(self._count, pa.string())
        lengths, parts = gathered
        given = lengths >= 0
        if (lengths[given] != _UUID_BYTES).any():
            raise CorruptSegment("a segment's body has a UUID of the wrong length")
        texts = _uuid_texts(np.frombuffer(b"".join(parts), np.uint8).reshape(-1, _UUID_BYTES))
        if given.all():
            return _fixed_texts(texts)
        array = _variable(np.where(given, _UUID_TEXT_BYTES, -1), pa.py_buffer(texts.tobytes()))
        return array.cast(pa.string())

    def _gather(self, name: str) -> tuple[Ints, list[memoryview]] | None:
        """The lengths of a column over all segments, and its values; None if no segment has it."""
        number = STORED_COLUMNS.index(name)
        found = [layout.columns[number] for layout in self._layouts]
        if all(column is None for column in found):
            return None
        lengths, parts = [], []
        for layout, column in zip(self._layouts, found, strict=True):
            if column is None:
                lengths.append(np.full(layout.count, -1, np.int32))
            else:
                lengths.append(column[0])
                parts.append(column[1])
        return _joined(lengths), parts


def _buffer(parts: Sequence[memoryview]) -> pa.Buffer:
    """The values of one segment lie under the array as they are; those of several are copied together."""
    return pa.py_buffer(parts[0] if len(parts) == 1 else b"".join(parts))


def _as_texts(array: pa.Array, name: str) -> pa.Array:
    try:
        return array.cast(pa.string())
    except pa.ArrowInvalid as error:
        raise CorruptSegment(f"a segment's body has among its {name} a text that is none") from error


@dataclass(slots=True)
class _Layout:
    """A packed segment, taken apart into its columns: lengths (-1: no value) and values."""

    count: int
    columns: list[tuple[Ints, memoryview] | None]

    @classmethod
    def of(cls, segment: StoredSegment, key: bytes | None) -> _Layout:
        assert segment.body is not None
        layout = unseal(segment.codec, segment.body, key=key)
        count, mask = header(layout)
        if count != segment.message_count:
            raise CorruptSegment(f"segment {segment.id} has {count} messages, and should have {segment.message_count}")
        return cls(count, _split(layout, count, mask))


def _split(layout: bytes, count: int, mask: int) -> list[tuple[Ints, memoryview] | None]:
    view = memoryview(layout)
    columns: list[tuple[Ints, memoryview] | None] = []
    position = HEADER_BYTES
    for bit in range(len(STORED_COLUMNS)):
        if not mask >> bit & 1:
            columns.append(None)
            continue
        start = position + 4 * count
        if start > len(layout):
            raise CorruptSegment("a segment's body is cut short")
        lengths = np.frombuffer(layout, "<i4", count, position)
        if count and lengths.min() < -1:
            raise CorruptSegment("a segment's body has a negative length")
        # Each missing value counted as -1.
        position = start + int(lengths.sum(dtype=np.int64)) + int(np.count_nonzero(lengths < 0))
        if position > len(layout):
            raise CorruptSegment("a segment's body is cut short")
        columns.append((lengths, view[start:position]))
    if position != len(layout):
        raise CorruptSegment("a segment's body has the wrong length")
    return columns


def _variable(lengths: Ints, values: pa.Buffer) -> pa.Array:
    """Values of any length; -1 is null."""
    missing = lengths < 0
    has_missing = bool(missing.any())
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(np.where(missing, 0, lengths) if has_missing else lengths, out=offsets[1:])
    if offsets[-1] > _OFFSETS_MAX:
        raise CorruptSegment("the messages of one batch are too large for Arrow")
    validity = pa.py_buffer(np.packbits(~missing, bitorder="little").tobytes()) if has_missing else None
    buffers = [validity, pa.py_buffer(offsets.astype(np.int32)), values]
    return pa.Array.from_buffers(pa.binary(), len(lengths), buffers, int(missing.sum()))


def _fixed_texts(texts: Ints) -> pa.Array:
    """Rows of ASCII characters, all of one length."""
    count, width = texts.shape
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(width)
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(texts)))


def _uuid_texts(uuids: Ints) -> Ints:
    """UUIDs, 16 bytes a row, in their spelling."""
    texts = np.full((len(uuids), _UUID_TEXT_BYTES), ord("-"), np.uint8)
    texts[:, _DIGIT_PLACES] = _BYTE_TEXTS[uuids].reshape(len(uuids), 2 * _UUID_BYTES)
    return texts


def _joined(arrays: Sequence[Ints]) -> Ints:
    return np.concatenate(arrays) if arrays else np.empty(0, np.int64)


def _chained(lists: Sequence[Sequence[int]]) -> Ints:
    # By way of one list: a segment of a single message would cost as much as one of a thousand.
    return np.array(list(chain.from_iterable(lists)), np.int64)

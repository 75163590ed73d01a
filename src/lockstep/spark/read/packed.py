"""Packed segments as Arrow arrays.

A layout has lengths and concatenated values, from which an Arrow array's buffers differ only by a running sum. Each
segment is decompressed and, while it is in the processor's cache, scanned and appended to the previous ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa

from lockstep.core.codec import STORED_COLUMNS, Codec, decrypted, unseal
from lockstep.core.layouts import HEADER_BYTES, header, layout_bytes
from lockstep.core.sealing import Keyring
from lockstep.errors import CorruptSegment, EncryptionUnavailable
from lockstep.spark.read.segments import Ints

UUID_BYTES = 16
UUID_TEXT_BYTES = 36

_PAYLOADS = STORED_COLUMNS.index("payloads")
_ASCII_MAX = 127
_LENGTH_BYTES = 4
_OFFSETS_MAX = 2**31 - 1

_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
BYTE_TEXTS = np.stack([_HEX[np.arange(256) >> 4], _HEX[np.arange(256) & 15]], axis=1)
"""By byte: its two hex digits."""
# The positions of the hex digits in the text of a UUID; the rest are dashes.
_DIGIT_PLACES = np.array([place for place in range(UUID_TEXT_BYTES) if place not in (8, 13, 18, 23)])

Column = tuple[Ints, bytes | memoryview]
"""Lengths (-1: no value) and values."""


class StoredBody(Protocol):
    """The needed parts of a segment."""

    id: int
    queue: str
    codec: int
    message_count: int
    body: bytes | None
    binding: bytes


class Packed:
    """All messages of consecutive packed segments."""

    def __init__(self, segments: Sequence[StoredBody], keys: Keyring) -> None:
        self._counts = [segment.message_count for segment in segments]
        self._lengths: list[Ints] = []
        self._others: list[dict[int, Column]] = []
        """By segment: the columns other than the payloads, by number."""
        self.is_ascii = True
        """Whether all payloads are known to be ASCII."""
        bodies = [_decrypted(segment, keys) for segment in segments]
        room = _room(bodies)
        end = 0
        for segment, body in zip(segments, bodies, strict=True):
            end = self._append(segment, unseal(Codec.PACKED, body), room, end)
        self._payloads = pa.py_buffer(room[:end])

    def _append(self, segment: StoredBody, layout: bytes, room: Ints, start: int) -> int:
        """Split a layout, and copy what is needed of it: it is then freed, and the next one reuses its memory and
        cache. Returns where the payloads end."""
        count, mask = header(layout)
        if count != segment.message_count:
            raise CorruptSegment(f"segment {segment.id} has {count} messages, and should have {segment.message_count}")
        columns = _split(layout, count, mask)
        if _PAYLOADS not in columns:
            raise CorruptSegment("a segment's body has no payloads")
        lengths, values = columns.pop(_PAYLOADS)
        end = start + len(values)
        room[start:end] = payloads = np.frombuffer(values, np.uint8)
        self.is_ascii = self.is_ascii and (start == end or payloads.max() <= _ASCII_MAX)
        self._lengths.append(lengths.copy())
        self._others.append({number: (column[0].copy(), bytes(column[1])) for number, column in columns.items()})
        return end

    def values(self, name: str, kind: pa.DataType) -> pa.Array:
        """A column of bytes or strings."""
        gathered = self._gather(name)
        if gathered is None:
            return pa.nulls(sum(self._counts), kind)
        array = _variable(*gathered)
        return array if pa.types.is_binary(kind) else _as_texts(array, name)

    def uuids(self, name: str) -> pa.Array:
        """A column of UUIDs as text."""
        gathered = self._gather(name)
        if gathered is None:
            return pa.nulls(sum(self._counts), pa.string())
        lengths, values = gathered
        given = lengths >= 0
        if (lengths[given] != UUID_BYTES).any():
            raise CorruptSegment("a segment's body has a UUID of the wrong length")
        texts = uuid_texts(np.frombuffer(values, np.uint8).reshape(-1, UUID_BYTES))
        if given.all():
            return fixed_texts(texts)
        array = _variable(np.where(given, UUID_TEXT_BYTES, -1), pa.py_buffer(texts.tobytes()))
        return array.cast(pa.string())

    def _gather(self, name: str) -> tuple[Ints, pa.Buffer] | None:
        """The lengths of a column over all segments, and its values; None if no segment has the column."""
        number = STORED_COLUMNS.index(name)
        if number == _PAYLOADS:
            return np.concatenate(self._lengths), self._payloads
        found = [columns.get(number) for columns in self._others]
        if not any(found):
            return None
        lengths = [
            np.full(count, -1, np.int32) if column is None else column[0]
            for count, column in zip(self._counts, found, strict=True)
        ]
        return np.concatenate(lengths), pa.py_buffer(b"".join([column[1] for column in found if column is not None]))


def _decrypted(segment: StoredBody, keys: Keyring) -> bytes:
    try:
        return decrypted(segment.codec, segment.body or b"", keys=keys, binding=segment.binding)
    except EncryptionUnavailable as error:
        raise EncryptionUnavailable(
            f"queue {segment.queue!r} is encrypted: {error.message}. The key is LOCKSTEP_ENCRYPTION_KEY on every node, "
            "or the variable that the option encryptionKeyEnv names"
        ) from error


def _room(bodies: Sequence[bytes]) -> Ints:
    """Memory for all payloads: unused parts are never touched and cost nothing."""
    size = sum(layout_bytes(body) for body in bodies)
    if size > _OFFSETS_MAX:
        raise CorruptSegment("the messages of one batch are too large for Arrow")
    return np.empty(size, np.uint8)


def _split(layout: bytes, count: int, mask: int) -> dict[int, Column]:
    """The columns of a layout, by number."""
    view = memoryview(layout)
    columns: dict[int, Column] = {}
    position = HEADER_BYTES
    for number in range(mask.bit_length()):
        if not mask >> number & 1:
            continue
        start = position + _LENGTH_BYTES * count
        if start > len(layout):
            raise CorruptSegment("a segment's body is cut short")
        lengths = np.frombuffer(layout, "<i4", count, position)
        position = start + _values_bytes(lengths, has_all=number == _PAYLOADS)
        if position > len(layout):
            raise CorruptSegment("a segment's body is cut short")
        columns[number] = lengths, view[start:position]
    if position != len(layout):
        raise CorruptSegment("a segment's body has the wrong length")
    return columns


def _values_bytes(lengths: Ints, *, has_all: bool) -> int:
    """The sum of the lengths, where a missing value counts as -1; payloads are never missing."""
    if len(lengths) and lengths.min() < (0 if has_all else -1):
        raise CorruptSegment("a segment's body has a negative length")
    size = int(lengths.sum(dtype=np.int64))
    return size if has_all else size + int(np.count_nonzero(lengths < 0))


def _as_texts(array: pa.Array, name: str) -> pa.Array:
    try:
        return array.cast(pa.string())
    except pa.ArrowInvalid as error:
        raise CorruptSegment(f"a segment's body contains a value in {name} that is not a string") from error


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


def fixed_texts(texts: Ints) -> pa.Array:
    """Rows of ASCII characters of equal length."""
    count, width = texts.shape
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(width)
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(texts)))


def uuid_texts(uuids: Ints) -> Ints:
    """UUIDs, 16 bytes per row, in canonical spelling."""
    texts = np.full((len(uuids), UUID_TEXT_BYTES), ord("-"), np.uint8)
    texts[:, _DIGIT_PLACES] = BYTE_TEXTS[uuids].reshape(len(uuids), 2 * UUID_BYTES)
    return texts

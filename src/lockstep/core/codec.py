"""The packed form of a segment: all its messages as columns in one block of bytes.

    magic "LSG1" | count int32 | mask int32 | column 0 | column 1 | …        little endian
    a column:    lengths int32[count] (-1: no value) | all values, concatenated

Column 0, the payloads, is always present and has no -1. Bit i of the mask says whether column i is present. A reader
slices values by offsets alone, and an Arrow binary array can use the lengths and values in place. Transaction ids take
one of two columns: UUIDs in canonical spelling as 16 bytes, anything else as text. The expiry times of a segment's
messages are stored outside its body, where SQL can read them; only a scheduled message has its expiry time in here. The
layout is compressed with zstd (`core/layouts.py`) and, for an encrypted queue, sealed afterwards (`core/sealing.py`).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from enum import IntFlag
from itertools import accumulate, pairwise
from uuid import UUID

from lockstep.core.ids import all_canonical_uuids, is_canonical_uuid
from lockstep.core.layouts import HEADER_BYTES, column_lengths, decompress, header, layout_bytes, pack, write_header
from lockstep.core.messages import COLUMN_NAMES, Block, BlockPart, Columns
from lockstep.core.sealing import Keyring
from lockstep.errors import CorruptSegment


class Codec(IntFlag):
    """How the messages of a segment are stored; the value of the column `segment.codec`."""

    PLAIN = 0
    """SQL arrays, for small pushes and for readers in SQL."""
    PACKED = 1
    ENCRYPTED = 2
    BOUND = 4
    """Encrypted and bound to its place. Without this bit, an encrypted body has the older form, which names neither the
    place nor the key."""


SEALED = Codec.PACKED | Codec.ENCRYPTED | Codec.BOUND
"""How encrypted bodies are written. Bodies with ENCRYPTED alone can still be read."""


_TIME = struct.Struct("<q")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_UUID_BYTES = 16

NO_KEYS = Keyring()

Buffer = bytes | memoryview

STORED_COLUMNS = (COLUMN_NAMES[0], "transaction_uuids", "transaction_texts", *COLUMN_NAMES[2:])
"""The columns of a layout, in order."""

# The order of the columns is the order of the mask's bits; it is part of the stored form.
(
    _PAYLOADS,
    _TRANSACTION_UUIDS,
    _TRANSACTION_TEXTS,
    _TRACE_IDS,
    _KINDS,
    _REFERENCES,
    _ENCODINGS,
    _HEADERS,
    _SUBS,
    _EXPIRES_AT,
) = range(10)


def seal(layout: bytes, *, keys: Keyring | None = None, binding: bytes = b"") -> tuple[Codec, bytes]:
    """Compress a layout and, with keys, encrypt it."""
    return seal_packed(pack(layout), keys=keys, binding=binding)


def seal_packed(body: bytes, *, keys: Keyring | None = None, binding: bytes = b"") -> tuple[Codec, bytes]:
    """Encrypt a layout that is already compressed."""
    if keys is None:
        return Codec.PACKED, body
    return SEALED, keys.seal(body, binding, codec=SEALED)


def unseal(codec: int, body: bytes, *, keys: Keyring = NO_KEYS, binding: bytes = b"") -> bytes:
    """The layout in a sealed body. Raises CorruptSegment, EncryptionUnavailable."""
    body = decrypted(codec, body, keys=keys, binding=binding)
    # The declared size is allocated before anything else is checked.
    layout_bytes(body)
    return decompress(body)


def decrypted(codec: int, body: bytes, *, keys: Keyring, binding: bytes) -> bytes:
    """The body before encryption; a body that is not encrypted is returned as it is. Raises SealBroken,
    EncryptionUnavailable.
    """
    if codec & Codec.BOUND:
        return keys.open(body, binding, codec=codec)
    return keys.open_unbound(body) if codec & Codec.ENCRYPTED else body


def block_of(columns: Columns) -> Block | None:
    """The block that contains exactly these messages and nothing more about them; None if there is none."""
    part = columns.part
    if part is None or part.start or part.block.count != part.count:
        return None
    mask = part.block.mask
    stored = [_has_transaction_ids(mask), *[bool(mask >> bit & 1) for bit in range(_TRACE_IDS, _EXPIRES_AT + 1)]]
    return part.block if stored == [column is not None for column in columns.described()] else None


def _has_transaction_ids(mask: int) -> bool:
    return bool(mask & (1 << _TRANSACTION_UUIDS | 1 << _TRANSACTION_TEXTS))


def encode(columns: Columns) -> bytes:
    """The columnar layout, uncompressed."""
    uuids, texts = _split_transaction_ids(columns.transaction_ids)
    optional: list[Sequence[bytes | None] | None] = [
        uuids,
        texts,
        None if columns.trace_ids is None else [None if t is None else UUID(t).bytes for t in columns.trace_ids],
        _texts_to_bytes(columns.kinds),
        _texts_to_bytes(columns.references),
        _texts_to_bytes(columns.encodings),
        columns.headers,
        _texts_to_bytes(columns.producer_subs),
        _times_to_bytes(columns.expires_at),
    ]
    stored = [None if values is None else _encode_column(values) for values in optional]
    return assemble(len(columns), [_encode_full(columns.payloads), *stored])


def assemble(count: int, stored: Sequence[Sequence[Buffer] | None]) -> bytes:
    """A layout from columns that already have their stored form, in the order of the mask's bits: per column, the
    lengths and the values in any number of pieces."""
    mask = sum(1 << bit for bit, column in enumerate(stored) if column is not None)
    parts: list[Buffer] = [write_header(count, mask)]
    for column in stored:
        if column is not None:
            parts += column
    return b"".join(parts)


def _encode_full(values: Sequence[bytes]) -> list[bytes]:
    return [_int32s(list(map(len, values))), *values]


def _encode_column(values: Sequence[bytes | None]) -> list[bytes]:
    if None not in values:
        return _encode_full(values)  # type: ignore[arg-type]
    lengths = [-1 if value is None else len(value) for value in values]
    return [_int32s(lengths), *[value for value in values if value is not None]]


def _int32s(numbers: list[int]) -> bytes:
    return struct.pack(f"<{len(numbers)}i", *numbers)


def _texts_to_bytes(values: list[str | None] | None) -> list[bytes | None] | None:
    return None if values is None else [None if value is None else value.encode() for value in values]


def _times_to_bytes(values: list[datetime | timedelta | None] | None) -> list[bytes | None] | None:
    """Microseconds since 1970."""
    if values is None:
        return None
    return [_TIME.pack((value - _EPOCH) // _MICROSECOND) if isinstance(value, datetime) else None for value in values]


def _bytes_to_times(values: list[bytes | None] | None) -> list[datetime | timedelta | None] | None:
    if values is None:
        return None
    try:
        return [None if value is None else _EPOCH + _TIME.unpack(value)[0] * _MICROSECOND for value in values]
    except (struct.error, OverflowError) as error:
        raise CorruptSegment("a segment's body contains a value that is not a time") from error


def _split_transaction_ids(
    values: list[str | None] | None,
) -> tuple[list[bytes | None] | None, list[bytes | None] | None]:
    if values is None:
        return None, None
    try:
        if all_canonical_uuids(values):  # type: ignore[arg-type]
            joined = bytes.fromhex("".join(values).replace("-", ""))  # type: ignore[arg-type]
            return [joined[i : i + 16] for i in range(0, len(joined), 16)], None
    except TypeError:  # some message has no transaction id
        pass
    is_uuid = [value is not None and is_canonical_uuid(value) for value in values]
    uuids = [UUID(v).bytes if u else None for v, u in zip(values, is_uuid, strict=True)]
    texts = [v.encode() if v is not None and not u else None for v, u in zip(values, is_uuid, strict=True)]
    return (uuids if any(is_uuid) else None), (texts if any(t is not None for t in texts) else None)


def decode(layout: bytes) -> Columns:
    """The columns of a layout made by `encode`. Raises CorruptSegment."""
    count, mask = header(layout)
    lengths, start, end = _payload_lengths(layout, count, mask)
    try:
        payloads = [layout[a:b] for a, b in pairwise(accumulate(lengths, initial=start))]
        return _columns(payloads, _stored_columns(layout, count, mask, end))
    except UnicodeDecodeError as error:
        raise CorruptSegment("a segment's body contains a value that is not a string") from error


def decode_block(body: bytes, layout: bytes, *, kept: bool = False) -> Columns:
    """Decode a layout that came from outside. Also returns its block, if the layout may be stored as it is: it must not
    contain times, which a segment stores outside its body, nor both columns of transaction ids, which may contradict
    each other. Raises CorruptSegment."""
    count, mask = header(layout)
    if mask & 1 << _EXPIRES_AT or (mask & 1 << _TRANSACTION_UUIDS and mask & 1 << _TRANSACTION_TEXTS):
        return decode(layout)
    try:
        lengths, start, end = _payload_lengths(layout, count, mask)
        columns = _columns([], _stored_columns(layout, count, mask, end))
    except UnicodeDecodeError as error:
        raise CorruptSegment("a segment's body contains a value that is not a string") from error
    block = Block(body, len(layout), count, mask, end - start, max(lengths, default=0), layout if kept else None)
    columns.lie_in(BlockPart(block, 0, count, block.payload_bytes))
    return columns


def _payload_lengths(layout: bytes, count: int, mask: int) -> tuple[Sequence[int], int, int]:
    """The lengths of the payloads, where they begin, and where they end."""
    if not mask & 1 << _PAYLOADS:
        raise CorruptSegment("a segment's body has a message without a payload")
    lengths, start, end = column_lengths(layout, HEADER_BYTES, count)
    if min(lengths, default=0) < 0:
        raise CorruptSegment("a segment's body has a message without a payload")
    return lengths, start, end


def _stored_columns(layout: bytes, count: int, mask: int, position: int) -> list[list[bytes | None] | None]:
    """The values of the columns that follow the payloads, by bit."""
    stored: list[list[bytes | None] | None] = [None]
    for bit in range(_PAYLOADS + 1, _EXPIRES_AT + 1):
        values = None
        if mask >> bit & 1:
            values, position = _decode_column(layout, position, count)
        stored.append(values)
    if position != len(layout):
        raise CorruptSegment("a segment's body has the wrong length")
    return stored


def _columns(payloads: list[bytes], stored: list[list[bytes | None] | None]) -> Columns:
    return Columns(
        payloads=payloads,
        transaction_ids=_join_transaction_ids(stored[_TRANSACTION_UUIDS], stored[_TRANSACTION_TEXTS]),
        trace_ids=_bytes_to_uuids(stored[_TRACE_IDS]),
        kinds=_bytes_to_texts(stored[_KINDS]),
        references=_bytes_to_texts(stored[_REFERENCES]),
        encodings=_bytes_to_texts(stored[_ENCODINGS]),
        headers=stored[_HEADERS],
        producer_subs=_bytes_to_texts(stored[_SUBS]),
        expires_at=_bytes_to_times(stored[_EXPIRES_AT]),
    )


def _decode_column(layout: bytes, position: int, count: int) -> tuple[list[bytes | None], int]:
    lengths, start, end = column_lengths(layout, position, count)
    if min(lengths, default=0) >= 0:
        return [layout[a:b] for a, b in pairwise(accumulate(lengths, initial=start))], end
    ends = list(accumulate((max(length, 0) for length in lengths), initial=start))
    return [None if length < 0 else layout[a:b] for a, b, length in zip(ends, ends[1:], lengths, strict=False)], end


def _bytes_to_texts(values: list[bytes | None] | None) -> list[str | None] | None:
    return None if values is None else [None if value is None else value.decode() for value in values]


def _bytes_to_uuids(values: list[bytes | None] | None) -> list[str | None] | None:
    if values is None:
        return None
    if any(value is not None and len(value) != _UUID_BYTES for value in values):
        raise CorruptSegment("a segment's body has a UUID of the wrong length")
    return [None if value is None else _uuid_text(value) for value in values]


def _uuid_text(value: bytes) -> str:
    # Costs half as much as str(UUID(bytes=value)), and a segment holds thousands of UUIDs.
    text = value.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def _join_transaction_ids(
    uuids: list[bytes | None] | None, texts: list[bytes | None] | None
) -> list[str | None] | None:
    if uuids is None:
        return _bytes_to_texts(texts)
    if texts is None:
        return _bytes_to_uuids(uuids)
    if any([uuid is not None and text is not None for uuid, text in zip(uuids, texts, strict=True)]):
        raise CorruptSegment("a segment's body has a message with two transaction ids")
    from_uuids, from_texts = _bytes_to_uuids(uuids), _bytes_to_texts(texts)
    assert from_uuids is not None
    assert from_texts is not None
    return [u if u is not None else t for u, t in zip(from_uuids, from_texts, strict=True)]

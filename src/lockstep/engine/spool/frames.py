"""The format of a record in a file of the spool. Whatever happens to the file, no wrong record is ever read.

    marker (8 bytes) | length of the body int32 | messages int32 | digest (16 bytes) | body        little endian

A record's *place* is its offset, in bytes, from the beginning of the spool, over all files that ever existed. The
database stores the place up to which the spool is drained. The digest covers the place, the lengths and the body, and
its key is the id of the spool. So a record is valid only where it was written, and a payload that a user chose cannot
pass for a record. After damaged bytes, the next record is found by its marker.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from hashlib import blake2b
from typing import NamedTuple
from uuid import UUID

MARKER = b"\xf5LSrec\r\n"
_HEADER = struct.Struct("<8sii16s")
_COVERED = struct.Struct("<Qii")
HEADER_BYTES = _HEADER.size
_DIGEST_BYTES = 16


class RecordContent(NamedTuple):
    """What a record carries."""

    messages: int
    body: bytes


class Frame(NamedTuple):
    """A record, and the places where it begins and ends."""

    start: int
    end: int
    messages: int
    body: bytes


def framed(spool: UUID, start: int, content: RecordContent) -> bytes:
    """The bytes to write for this content at a place."""
    digest = _digest(spool, start, content.messages, content.body)
    return _HEADER.pack(MARKER, len(content.body), content.messages, digest) + content.body


def frame_at(spool: UUID, data: bytes, offset: int, start: int) -> Frame | None:
    """The record at an offset of the data, which begins at the place `start`; None if there is no complete, valid
    record."""
    if len(data) - offset < HEADER_BYTES:
        return None
    marker, length, messages, digest = _HEADER.unpack_from(data, offset)
    end = offset + HEADER_BYTES + length
    if marker != MARKER or length < 0 or end > len(data):
        return None
    body = data[offset + HEADER_BYTES : end]
    if digest != _digest(spool, start, messages, body):
        return None
    return Frame(start, start + HEADER_BYTES + length, messages, body)


def frames_in(spool: UUID, data: bytes, start: int) -> Iterator[Frame]:
    """All records in the data, which begins at the place `start`; anything between them is damaged."""
    offset = data.find(MARKER)
    while offset >= 0:
        frame = frame_at(spool, data, offset, start + offset)
        if frame is not None:
            yield frame
            offset = frame.end - start
        else:
            offset += 1
        offset = data.find(MARKER, offset)


def length_at(data: bytes) -> int:
    """The length that the record at the beginning of the data declares; 0 if the data does not begin with a record."""
    if len(data) < HEADER_BYTES:
        return 0
    marker, length, _, _ = _HEADER.unpack_from(data)
    return HEADER_BYTES + length if marker == MARKER and length >= 0 else 0


def _digest(spool: UUID, start: int, messages: int, body: bytes) -> bytes:
    digest = blake2b(_COVERED.pack(start, len(body), messages), digest_size=_DIGEST_BYTES, key=spool.bytes)
    digest.update(body)
    return digest.digest()

"""How a record lies in a file of the spool, so that whatever happens to the file no wrong record is ever read.

    marker (8 bytes) | length of the body int32 | messages int32 | digest (16 bytes) | body        little endian

A record's *place* is its distance, in bytes, from the beginning of the spool, over all files that ever were: it is
what the database remembers of how far it was drained. The digest covers the place, the lengths and the body, and its
key is the id of the spool. So a record is right only where it was written, and bytes that a user chose for a payload
cannot pass for one. Behind damage the next record is found by its marker.
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


class Content(NamedTuple):
    """What a record carries."""

    messages: int
    body: bytes


class Frame(NamedTuple):
    """A record, and from which place to which it lies."""

    start: int
    end: int
    messages: int
    body: bytes


def framed(spool: UUID, start: int, content: Content) -> bytes:
    """The content as it is written at a place."""
    digest = _digest(spool, start, content.messages, content.body)
    return _HEADER.pack(MARKER, len(content.body), content.messages, digest) + content.body


def frame_at(spool: UUID, data: bytes, offset: int, start: int) -> Frame | None:
    """The record at an offset of the data, which is at the place `start`; None if there is no whole and right one."""
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
    """All records in the data, which begins at the place `start`; what lies between them is damaged."""
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
    """How long the record at the beginning of the data says that it is; 0 if it says nothing of the kind."""
    if len(data) < HEADER_BYTES:
        return 0
    marker, length, _, _ = _HEADER.unpack_from(data)
    return HEADER_BYTES + length if marker == MARKER and length >= 0 else 0


def _digest(spool: UUID, start: int, messages: int, body: bytes) -> bytes:
    digest = blake2b(_COVERED.pack(start, len(body), messages), digest_size=_DIGEST_BYTES, key=spool.bytes)
    digest.update(body)
    return digest.digest()

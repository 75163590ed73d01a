"""Ids: UUIDv7 for segments and leases, and message ids, which are never stored.

A message id is its segment's UUIDv7 with the message's ordinal in the low 16 bits. A segment's own UUID has
those bits zero, so one mask goes from any message to its segment.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from functools import lru_cache
from uuid import UUID

from lockstep.errors import InvalidRequest

ORDINAL_BITS = 16
SEGMENT_MESSAGES_MAX = 1 << ORDINAL_BITS
_ORDINAL_MASK = SEGMENT_MESSAGES_MAX - 1

_UUID_TEXT = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_CANONICAL_UUID = re.compile(_UUID_TEXT)
_CANONICAL_UUIDS = re.compile(f"(?:{_UUID_TEXT})*")


def uuid7(unix_ns: int) -> UUID:
    """A UUIDv7 whose 12 bits after the milliseconds hold the fraction of the millisecond, so that ids sort by fine
    time.
    """
    milliseconds, remainder = divmod(unix_ns, 1_000_000)
    fraction = remainder * 4096 // 1_000_000
    random_bits = int.from_bytes(os.urandom(8), "big") & ((1 << 62) - 1)
    return UUID(int=(milliseconds << 80) | (7 << 76) | (fraction << 64) | (2 << 62) | random_bits)


def shared_lease(unix_ns: int) -> UUID:
    """The id of a lease on single messages: a UUIDv7 with version 8, so that it can be recognized."""
    return UUID(int=uuid7(unix_ns).int ^ (15 << 76))


def is_shared_lease(text: str | None) -> bool:
    """Whether a canonical lease id looks like that of a lease on single messages. A hint, not a proof."""
    return text is not None and text[14:15] == "8"


def segment_uuid7(unix_ns: int) -> UUID:
    """A UUIDv7 with room for the ordinal."""
    return UUID(int=uuid7(unix_ns).int & ~_ORDINAL_MASK)


def message_id(segment: UUID, ordinal: int) -> str:
    """The id of the message at `ordinal` of the segment."""
    return str(UUID(int=segment.int | ordinal))


def message_ids(segment: UUID, ordinal: int, count: int) -> list[str]:
    """The ids of `count` messages from `ordinal` of the segment on."""
    prefix = _prefix(segment)
    return [f"{prefix}{place:04x}" for place in range(ordinal, ordinal + count)]


@lru_cache(maxsize=1024)
def _prefix(segment: UUID) -> str:
    """All but the ordinal. Cached, because consecutive requests ask for ids of the same segment."""
    return str(segment)[:-4]


def split_message_id(text: str) -> tuple[UUID, int]:
    """The segment's UUID and the ordinal in a message id."""
    number = parse_uuid(text, what="message id").int
    return UUID(int=number & ~_ORDINAL_MASK), number & _ORDINAL_MASK


def parse_uuid(text: object, *, what: str) -> UUID:
    """Parse a UUID. The error for an invalid text names `what` it should be."""
    if isinstance(text, UUID):
        return text
    if isinstance(text, str):
        try:
            return UUID(text)
        except ValueError:
            pass
    raise InvalidRequest(f"{what} is not a UUID: {str(text)[:64]!r}")


def is_canonical_uuid(text: str) -> bool:
    """Whether the text is a UUID in canonical spelling, which survives a round trip through the type uuid."""
    return len(text) == 36 and _CANONICAL_UUID.fullmatch(text) is not None


def all_canonical_uuids(texts: Sequence[str]) -> bool:
    """`is_canonical_uuid` for every text, with a single match over all of them joined."""
    return set(map(len, texts)) <= {36} and _CANONICAL_UUIDS.fullmatch("".join(texts)) is not None

"""Re-encrypts, in slices, what is stored under other keys, or from before its queue was encrypted.

A segment's body is replaced in place; its messages, and all references to them, stay the same. So readers are not
affected, and it may happen at any time.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple, get_args

import asyncpg

from lockstep.core.codec import SEALED, Codec, decrypted, encode
from lockstep.core.layouts import pack
from lockstep.core.messages import Columns
from lockstep.core.records import EncryptionSlice
from lockstep.core.sealing import cron_binding, key_id_of, segment_binding, waiting_binding
from lockstep.errors import CorruptSegment, EncryptionUnavailable, InvalidRequest, LockstepError
from lockstep.storage.postgres import sql
from lockstep.storage.postgres.context import Context
from lockstep.storage.postgres.encryption import Encryption
from lockstep.storage.postgres.push.attempt import PLAIN_COLUMNS

_Kind = Literal["segments", "waiting", "crons"]
_KINDS: tuple[_Kind, ...] = get_args(_Kind)
_CHUNK_BYTES_MAX = 16 * 1024 * 1024
"""One transaction reads and encrypts about this much, and exceeds it by at most one segment."""
_FAILURES_MAX = 20
"""Maximum number of failures that a slice describes."""

_SEALED_UPTO: sql.Procedure[None] = sql.procedure("note_sealed")


class _Stored(NamedTuple):
    """A stored body, without its messages, and whether its queue is encrypted."""

    id: Any
    encryption: bool
    codec: int
    header: bytes | None
    bytes: int


class _Sealed(NamedTuple):
    id: Any
    body: bytes
    known_codec: int


class PostgresSeals:
    """Re-encrypts stored bodies."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def rotate_encryption(
        self, *, cursor: str | None = None, limit: int = 100, count_only: bool = False
    ) -> EncryptionSlice:
        encryption = self._context.encryption
        if not encryption.keys and not count_only:
            raise EncryptionUnavailable("there is no encryption key to encrypt with: set encryption_key")
        kind, after = _parse(cursor)
        rows = [_Stored(*row) for row in await self._context.query(f"seal_{kind}", after, limit)]
        walked = _Walked(encryption)
        walked.count(rows)
        if not count_only:
            for chunk in _chunks([row for row in rows if walked.is_old(row)]):
                await self._rotate(kind, [row.id for row in chunk], walked)
        next_cursor = f"{kind}:{rows[-1].id}" if len(rows) == limit and kind != "crons" else _following(kind)
        if next_cursor is None and not count_only:
            await self._context.database.call(_SEALED_UPTO())
        return walked.slice(next_cursor, looked_at=len(rows))

    async def _rotate(self, kind: _Kind, ids: Sequence[Any], walked: _Walked) -> None:
        async def work(connection: asyncpg.Connection[Any]) -> tuple[int, list[str]]:
            database = self._context.database
            rows = await database.on(connection, f"seal_{kind}_load", sql.query(f"seal_{kind}_load"), list(ids))
            sealed, failures = await asyncio.to_thread(_seal_all, rows, _SEALING[kind], self._context.encryption)
            for one in sealed:
                await database.on(connection, f"seal_{kind}_put", sql.query(f"seal_{kind}_put"), *one)
            return len(sealed), failures

        walked.note(*await self._context.database.transaction(work))


def _parse(cursor: str | None) -> tuple[_Kind, int]:
    if cursor is None:
        return "segments", 0
    kind, _, after = cursor.partition(":")
    if kind not in _KINDS or not (after or "0").isdecimal():
        raise InvalidRequest("the cursor was not returned by an earlier call")
    return kind, int(after or 0)


def _following(kind: _Kind) -> str | None:
    place = _KINDS.index(kind) + 1
    return _KINDS[place] if place < len(_KINDS) else None


def _chunks(rows: Sequence[_Stored]) -> Iterable[list[_Stored]]:
    chunk: list[_Stored] = []
    size = 0
    for row in rows:
        chunk.append(row)
        size += row.bytes
        if size >= _CHUNK_BYTES_MAX:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


class _Walked:
    """What a slice has found and done."""

    def __init__(self, encryption: Encryption) -> None:
        self._keys = encryption.keys
        self._found: Counter[str] = Counter()
        self._rotated = 0
        self._failures: list[str] = []

    def count(self, rows: Iterable[_Stored]) -> None:
        self._found.update(_form(row) for row in rows if row.encryption or row.codec & Codec.ENCRYPTED)

    def is_old(self, row: _Stored) -> bool:
        """Whether to re-encrypt it: everything except what the active key has encrypted."""
        if not (row.encryption or row.codec & Codec.ENCRYPTED):
            return False
        return not row.codec & Codec.BOUND or row.header != self._keys.active_header

    def note(self, rotated: int, failures: list[str]) -> None:
        self._rotated += rotated
        self._failures += failures

    def slice(self, next_cursor: str | None, *, looked_at: int) -> EncryptionSlice:
        return EncryptionSlice(
            next_cursor=next_cursor,
            looked_at=looked_at,
            rotated=self._rotated,
            failed=len(self._failures),
            failures=self._failures[:_FAILURES_MAX],
            found=dict(self._found),
            active_key=self._keys.active_id,
        )


def _form(row: _Stored) -> str:
    if row.codec & Codec.BOUND:
        return key_id_of(row.header or b"")
    return "unbound" if row.codec & Codec.ENCRYPTED else "plain"


Sealing = Callable[[Any, Encryption], tuple[bytes, bytes]]


def _seal_all(rows: Sequence[Any], sealing: Sealing, encryption: Encryption) -> tuple[list[_Sealed], list[str]]:
    """The encrypted rows, and the failures of the others."""
    sealed, failures = [], []
    for row in rows:
        try:
            packed, binding = sealing(row, encryption)
        except (CorruptSegment, EncryptionUnavailable) as error:
            failures.append(_failure(row, error))
        else:
            sealed.append(_Sealed(row["id"], encryption.keys.seal(packed, binding, codec=SEALED), row["codec"]))
    return sealed, failures


def _failure(row: Any, error: LockstepError) -> str:
    return f"{row['what']} {row['id']}: {error.message}"


def _segment(row: Any, encryption: Encryption) -> tuple[bytes, bytes]:
    if row["must_be_sealed"]:
        encryption.require_sealed(row["codec"], f"segment {row['uuid']}")
    binding = segment_binding(row["uuid"], row["queue_id"], row["partition_ids"], row["counts"])
    if row["codec"] == Codec.PLAIN:
        values = [row[name] for name in PLAIN_COLUMNS]
        if values[2] is not None:
            values[2] = [None if one is None else str(one) for one in values[2]]
        return pack(encode(Columns(*values))), binding
    return _opened(row, encryption, binding), binding


def _waiting(row: Any, encryption: Encryption) -> tuple[bytes, bytes]:
    if row["must_be_sealed"]:
        encryption.require_sealed(row["codec"], f"the message that waits as schedule {row['id']}")
    binding = waiting_binding(row["queue_id"], row["partition_name"], row["key"])
    return _opened(row, encryption, binding), binding


def _cron(row: Any, encryption: Encryption) -> tuple[bytes, bytes]:
    binding = cron_binding(row["id"], row["queue"], row["partition_name"])
    return _opened(row, encryption, binding), binding


def _opened(row: Any, encryption: Encryption, binding: bytes) -> bytes:
    return decrypted(row["codec"], row["body"], keys=encryption.keys, binding=binding)


_SEALING: dict[_Kind, Sealing] = {"segments": _segment, "waiting": _waiting, "crons": _cron}

"""Restores messages of an archive in PostgreSQL under their original ids. Runs in Spark's tasks, without a JVM.

The messages of one segment are processed together. Each transaction locks the partitions that it restores to and then
reads what is stored (`sql/procedures/restore.sql`): existing messages are left out, so that a retried task or a
repeated replay restores nothing twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import groupby
from typing import Any
from uuid import UUID

import psycopg
from psycopg import RawCursor

from lockstep.core.codec import Codec, encode, seal
from lockstep.core.ids import is_canonical_uuid, split_message_id
from lockstep.core.messages import Columns
from lockstep.core.sealing import segment_binding
from lockstep.errors import Unavailable
from lockstep.spark.database import cursor_of, result_of, results_of
from lockstep.storage.postgres import sql
from lockstep.storage.postgres.encryption import Encryption
from lockstep.storage.postgres.failures import RETRYABLE
from lockstep.storage.postgres.push.attempt import PLAIN_COLUMNS
from lockstep.storage.postgres.push.conversation import RESOLVE

MESSAGES_MAX = 10_000
"""Approximate maximum number of messages that one transaction restores; their partitions are locked in the meantime."""
BYTES_MAX = 8 * 1024 * 1024
_ATTEMPTS_MAX = 10
_STALE = "LS001"
"""The procedures' error when an id that was looked up before is gone."""

_BEGIN: sql.Procedure[tuple[UUID, int, int, int]] = sql.procedure("restore_begin")
_DUPLICATES: sql.Procedure[tuple[Any, ...]] = sql.procedure("find_duplicates")
_RESTORE: sql.Procedure[None] = sql.procedure("restore_segment")


@dataclass(frozen=True, slots=True)
class Archived:
    """One message of the archive."""

    queue: str
    """The queue to restore it to."""
    partition: str
    message_id: str
    created_at: datetime
    payload: bytes
    transaction_id: str | None = None
    """None if it equals the message id."""
    trace_id: str | None = None
    kind: str | None = None
    reference: str | None = None
    encoding: str | None = None
    headers: bytes | None = None
    producer_sub: str | None = None


@dataclass(slots=True)
class Restored:
    """The result so far."""

    restored: int = 0
    duplicates: int = 0
    segments: int = 0


@dataclass(slots=True)
class _TargetQueue:
    id: int
    compression: str
    encryption: bool
    limited: bool
    partitions: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Piece:
    """The messages of one segment, by ordinal."""

    queue: str
    uuid: UUID
    messages: Sequence[tuple[int, Archived]]


class Restorer:
    """Restores messages on a connection in autocommit mode, a transaction at a time."""

    def __init__(
        self, connection: psycopg.Connection[Any], *, encryption: Encryption, keep_created_at: bool = False
    ) -> None:
        self._connection = connection
        self._encryption = encryption
        self._keep_created_at = keep_created_at
        self._queues: dict[str, _TargetQueue] = {}
        self.done = Restored()

    def restore(self, messages: Iterable[Archived]) -> Restored:
        """Restore all messages, in order. Raises QueueFull, EncryptionUnavailable, Unavailable; messages restored
        before the error stay."""
        for portion in _portions(messages):
            self._with_retries(portion)
        return self.done

    def _with_retries(self, portion: Sequence[Archived]) -> None:
        for attempt in range(_ATTEMPTS_MAX):
            try:
                restored = self._restore(portion)
            except psycopg.Error as error:
                if error.sqlstate not in (_STALE, *RETRYABLE):
                    raise
                if attempt == _ATTEMPTS_MAX - 1:
                    raise Unavailable("the queue kept changing during the replay") from error
                self._queues.clear()
            else:
                self.done.restored += restored.restored
                self.done.duplicates += restored.duplicates
                self.done.segments += restored.segments
                return

    def _restore(self, portion: Sequence[Archived]) -> Restored:
        """One transaction."""
        self._resolve(portion)
        with self._connection.transaction():
            stored = self._begin(portion)
            wanted = self._without_stored(portion, stored)
            pieces = list(_pieces(wanted))
            with self._connection.pipeline():
                for piece in pieces:
                    call = _RESTORE(**self._arguments(piece))
                    # Results are not fetched: that would wait for each piece, while the pipeline sends all of them at
                    # once.
                    self._cursor().execute(call.sql, call.args)
        return Restored(len(wanted), len(portion) - len(wanted), len(pieces))

    def _cursor(self) -> RawCursor[Any]:
        return cursor_of(self._connection)

    def _resolve(self, portion: Sequence[Archived]) -> None:
        """Look up the ids of queues and partitions, and create missing ones."""
        names: dict[str, set[str]] = {}
        for message in portion:
            names.setdefault(message.queue, set()).add(message.partition)
        for queue in sorted(names):
            known = self._queues.get(queue)
            missing = sorted(names[queue].difference(known.partitions if known else ()))
            if missing:
                found = result_of(self._cursor(), RESOLVE(queue=queue, partitions=missing, at=None))
                if known is None or known.id != found.queue_id:
                    known = self._queues[queue] = _TargetQueue(*found[:4])
                known.partitions.update(zip(missing, found.partition_ids or (), strict=True))

    def _partition_id(self, message: Archived) -> int:
        return self._queues[message.queue].partitions[message.partition]

    def _begin(self, portion: Sequence[Archived]) -> set[tuple[UUID, int, int]]:
        """Lock the target partitions; returns which messages are stored: segment, partition id and ordinal."""
        queues = [self._queues[name] for name in {message.queue for message in portion}]
        limited = [queue.id for queue in queues if queue.limited]
        partition_ids = list({self._partition_id(message) for message in portion})
        uuids = list({split_message_id(message.message_id)[0] for message in portion})
        queue_ids = [queue.id for queue in queues]
        call = _BEGIN(limited=limited, queue_ids=queue_ids, partition_ids=partition_ids, uuids=uuids)
        return {
            (uuid, partition_id, place)
            for uuid, partition_id, ordinal, count in results_of(self._cursor(), call)
            for place in range(ordinal, ordinal + count)
        }

    def _without_stored(
        self, portion: Sequence[Archived], stored: set[tuple[UUID, int, int]]
    ) -> list[tuple[UUID, int, Archived]]:
        """The messages not yet stored, by id or by transaction id; of messages that occur twice, the first."""
        used = self._used_transaction_ids(portion)
        wanted = []
        for message in portion:
            partition_id = self._partition_id(message)
            uuid, ordinal = split_message_id(message.message_id)
            if (uuid, partition_id, ordinal) in stored or (partition_id, message.transaction_id) in used:
                continue
            stored.add((uuid, partition_id, ordinal))
            if message.transaction_id is not None:
                used.add((partition_id, message.transaction_id))
            wanted.append((uuid, ordinal, message))
        return wanted

    def _used_transaction_ids(self, portion: Sequence[Archived]) -> set[tuple[int, str | None]]:
        """Which transaction ids of the messages their partitions already have."""
        given = [(self._partition_id(m), m.transaction_id) for m in portion if m.transaction_id is not None]
        if not given:
            return set()
        uuids = [one for one in given if is_canonical_uuid(one[1])]
        texts = [one for one in given if not is_canonical_uuid(one[1])]
        partition_ids = list({partition_id for partition_id, _ in given})
        places = {partition_id: place for place, partition_id in enumerate(partition_ids, start=1)}
        call = _DUPLICATES(
            partition_ids=partition_ids,
            uuids=[identity for _, identity in uuids],
            uuid_runs=[places[partition_id] for partition_id, _ in uuids],
            texts=[identity for _, identity in texts] or None,
            text_runs=[places[partition_id] for partition_id, _ in texts] or None,
        )
        duplicate_uuids, duplicate_texts, *_ = result_of(self._cursor(), call)
        return {uuids[i - 1] for i in duplicate_uuids or ()} | {texts[i - 1] for i in duplicate_texts or ()}

    def _arguments(self, piece: _Piece) -> dict[str, Any]:
        """The arguments of restore_segment."""
        queue = self._queues[piece.queue]
        manifest = _Owners.of(piece, queue.partitions)
        columns = _columns(piece)
        codec, body = self._packed(piece, queue, manifest, columns)
        plain = columns.all()[:-1] if body is None else [None] * (len(columns.all()) - 1)
        created_at = piece.messages[0][1].created_at if self._keep_created_at else None
        return {
            "queue_id": queue.id,
            "uuid": piece.uuid,
            "created_at": created_at,
            "codec": codec.value,
            "body": body,
            "partition_ids": manifest.partition_ids,
            "counts": manifest.counts,
            **manifest.entries(piece, "uuid", lambda m: m.transaction_id if _is_uuid(m.transaction_id) else None),
            **manifest.entries(piece, "text", lambda m: None if _is_uuid(m.transaction_id) else m.transaction_id),
            **manifest.entries(piece, "trace", lambda m: m.trace_id),
            **dict(zip(PLAIN_COLUMNS, plain, strict=True)),
            "plain_allowed": self._encryption.plain_allowed,
        }

    def _packed(
        self, piece: _Piece, queue: _TargetQueue, manifest: _Owners, columns: Columns
    ) -> tuple[Codec, bytes | None]:
        """Whether to store the segment packed: yes, unless its queue must be readable in SQL."""
        keys = self._encryption.keys_for(piece.queue) if queue.encryption else None
        if keys is None and queue.compression == "none":
            return Codec.PLAIN, None
        binding = segment_binding(piece.uuid, queue.id, manifest.partition_ids, manifest.counts)
        return seal(encode(columns), keys=keys, binding=binding)


@dataclass(slots=True)
class _Owners:
    """Which partition owns how many messages of a segment, by ordinal; partition 0 stands for messages that no
    partition owns.
    """

    partition_ids: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    places: list[tuple[int, int]] = field(default_factory=list)
    """By message: its entry here, counted from 1, and its offset in the entry."""

    @classmethod
    def of(cls, piece: _Piece, partitions: dict[str, int]) -> _Owners:
        manifest = cls()
        after = 0
        for ordinal, message in piece.messages:
            if ordinal > after:
                manifest.partition_ids.append(0)
                manifest.counts.append(ordinal - after)
            manifest._add(partitions[message.partition])
            after = ordinal + 1
        return manifest

    def _add(self, partition_id: int) -> None:
        if not self.partition_ids or self.partition_ids[-1] != partition_id:
            self.partition_ids.append(partition_id)
            self.counts.append(0)
        self.places.append((len(self.counts), self.counts[-1]))
        self.counts[-1] += 1

    def entries(self, piece: _Piece, name: str, value: Any) -> dict[str, Any]:
        """The values that messages have, with entry and offset of each, as arguments under a given name."""
        found = [
            (text, *place)
            for (_, message), place in zip(piece.messages, self.places, strict=True)
            if (text := value(message)) is not None
        ]
        columns: Sequence[list[Any] | None] = [list(column) for column in zip(*found, strict=True)] or [None] * 3
        return dict(zip((f"{name}s", f"{name}_runs", f"{name}_offsets"), columns, strict=True))


def _columns(piece: _Piece) -> Columns:
    """The messages by ordinal; gaps between them are empty."""
    count = piece.messages[-1][0] + 1
    columns = Columns([b""] * count)
    for ordinal, message in piece.messages:
        columns.payloads[ordinal] = message.payload
    for name in ("transaction_id", "trace_id", "kind", "reference", "encoding", "producer_sub"):
        _fill(columns, f"{name}s", name, piece)
    _fill(columns, "headers", "headers", piece)
    return columns


def _fill(columns: Columns, name: str, attribute: str, piece: _Piece) -> None:
    values = [(ordinal, getattr(message, attribute)) for ordinal, message in piece.messages]
    if any(value is not None for _, value in values):
        column: list[Any] = [None] * len(columns)
        for ordinal, value in values:
            column[ordinal] = value
        setattr(columns, name, column)


def _is_uuid(text: str | None) -> bool:
    return text is not None and is_canonical_uuid(text)


def _portions(messages: Iterable[Archived]) -> Iterator[list[Archived]]:
    """Splits the messages into the portions of single transactions."""
    portion: list[Archived] = []
    size = 0
    for message in messages:
        portion.append(message)
        size += len(message.payload)
        if len(portion) >= MESSAGES_MAX or size >= BYTES_MAX:
            yield portion
            portion, size = [], 0
    if portion:
        yield portion


def _pieces(wanted: Iterable[tuple[UUID, int, Archived]]) -> Iterator[_Piece]:
    """Adjacent messages of one segment."""
    for (queue, uuid), group in groupby(wanted, key=lambda one: (one[2].queue, one[0])):
        by_ordinal = sorted(((ordinal, message) for _, ordinal, message in group), key=lambda one: one[0])
        yield _Piece(queue, uuid, by_ordinal)

"""Reading segments: runs of messages, and the ids in segments that are about to be removed.

References to a removed message are found by the ids in its segment, which is read for that (decision 0012).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import asyncpg

from lockstep.core.codec import Codec, decode_block
from lockstep.core.ids import is_canonical_uuid
from lockstep.core.layouts import decompress, layout_bytes
from lockstep.core.messages import Columns, Run
from lockstep.core.sealing import segment_binding
from lockstep.errors import CorruptSegment, EncryptionUnavailable
from lockstep.storage.postgres import sql
from lockstep.storage.postgres.cache import Segment, SegmentOwners
from lockstep.storage.postgres.context import Context
from lockstep.storage.postgres.encryption import Encryption

LOAD_SEGMENTS: sql.Procedure[Any] = sql.procedure("load_segments", label="segment_load")


class SegmentReader:
    """Segments by id, from the cache if possible."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def load(
        self, segment_ids: Iterable[int | None], connection: asyncpg.Connection[Any] | None = None
    ) -> dict[int, Segment]:
        """The segments, from the cache if possible. One that was removed in the meantime is missing in the result."""
        cache = self._context.segments
        loaded: dict[int, Segment] = {}
        missing: list[int] = []
        for segment_id in set(segment_ids):
            if segment_id is None:
                continue
            segment = cache.get(segment_id)
            if segment is None:
                missing.append(segment_id)
            else:
                loaded[segment_id] = segment
        if missing:
            for row in await self._context.database.call(LOAD_SEGMENTS(ids=missing), connection):
                segment_id = row["id"]
                loaded[segment_id] = decode_segment(row, self._context.encryption)
                cache.put(segment_id, loaded[segment_id])
        return loaded

    async def load_single(self, rows: Sequence[Any], connection: asyncpg.Connection[Any] | None = None) -> list[Run]:
        """Single messages, as runs of one, from rows that say where they are: queue, partition, partition_id, seq,
        segment_id, ordinal."""
        segments = await self.load((row["segment_id"] for row in rows), connection)
        runs = []
        for row in rows:
            segment = segments.get(row["segment_id"])
            if segment is not None:
                place, ordinal = (row["queue"], row["partition"], row["partition_id"], row["seq"]), row["ordinal"]
                if segment.owners is not None:
                    segment.owners.require(row["partition_id"], ordinal, 1)
                columns = segment.columns.slice(ordinal, ordinal + 1)
                runs.append(Run(*place, segment.uuid, ordinal, segment.created_at, columns))
        return runs

    async def ids_in(self, segment_ids: Sequence[int]) -> tuple[Ids, list[int]]:
        """The ids in the segments, read one by one, and the segments that cannot be read."""
        ids, unread = Ids(), []
        for segment_id, *manifest in await self._context.query("segment_manifest", segment_ids):
            try:
                columns = await self._read_columns(segment_id)
            except (CorruptSegment, EncryptionUnavailable):
                unread.append(segment_id)
                continue
            if columns is not None:
                ids.add(columns, list(_places(*manifest)))
        return ids, unread

    async def _read_columns(self, segment_id: int) -> Columns | None:
        """A segment that is about to be removed, so it is not worth a place in the cache. None if it is gone."""
        known = self._context.segments.get(segment_id)
        if known is not None:
            return known.columns
        rows = await self._context.database.call(LOAD_SEGMENTS(ids=[segment_id]))
        return decode_segment(rows[0], self._context.encryption).columns if rows else None


@dataclass(slots=True)
class Ids:
    """Transaction ids and trace ids in segments, with where they point."""

    uuid_partitions: list[int] = field(default_factory=list)
    uuids: list[str] = field(default_factory=list)
    text_partitions: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    trace_partitions: list[int] = field(default_factory=list)
    trace_seqs: list[int] = field(default_factory=list)
    traces: list[str] = field(default_factory=list)

    def add(self, columns: Columns, places: Sequence[tuple[int, int]]) -> None:
        for (partition_id, _), identity in zip(places, columns.transaction_ids or (), strict=False):
            if identity is None:
                continue
            if is_canonical_uuid(identity):
                self.uuid_partitions.append(partition_id)
                self.uuids.append(identity)
            else:
                self.text_partitions.append(partition_id)
                self.texts.append(identity)
        for (partition_id, seq), trace_id in zip(places, columns.trace_ids or (), strict=False):
            if trace_id is not None:
                self.trace_partitions.append(partition_id)
                self.trace_seqs.append(seq)
                self.traces.append(trace_id)


def decode_segment(row: Any, encryption: Encryption) -> Segment:
    """A segment from a row of `load_segments`. Raises CorruptSegment, EncryptionUnavailable."""
    _, uuid, created_at, codec, queue_id, partition_ids, counts, must_be_sealed, body, payloads, *others = row
    if must_be_sealed:
        encryption.require_sealed(codec, f"segment {uuid}")
    if codec == Codec.PLAIN:
        transaction_ids, trace_ids, *others = others
        columns = Columns(payloads, transaction_ids, _texts(trace_ids), *others)
        return Segment(uuid, created_at, columns, sum(map(len, columns.payloads)))
    owners, binding = None, b""
    if codec & Codec.BOUND:
        owners = SegmentOwners.of(queue_id, partition_ids, counts)
        binding = segment_binding(uuid, queue_id, partition_ids, counts)
    body = encryption.decrypted(codec, body, binding)
    layout_bytes(body)  # which is allocated before anything else is checked
    layout = decompress(body)
    columns = decode_block(body, layout, kept=True)
    columns.expires_at = others[-1]
    return Segment(uuid, created_at, columns, len(layout), owners)


def _texts(uuids: list[Any] | None) -> list[str | None] | None:
    return None if uuids is None else [None if uuid is None else str(uuid) for uuid in uuids]


def _places(partition_ids: list[int], first_seqs: list[int], counts: list[int]) -> Iterator[tuple[int, int]]:
    """Partition id and seq of each message of a segment."""
    for partition_id, first_seq, count in zip(partition_ids, first_seqs, counts, strict=True):
        for seq in range(first_seq, first_seq + count):
            yield partition_id, seq

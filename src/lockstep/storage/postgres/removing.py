"""What points at messages that are about to go: the ids in their segments, which are read for that (decision 0012)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from lockstep.core.ids import is_canonical_uuid
from lockstep.core.messages import Columns
from lockstep.errors import CorruptSegment, EncryptionUnavailable
from lockstep.storage.postgres import sql
from lockstep.storage.postgres.shared import Shared, decode_segment


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

    def of_transactions(self) -> tuple[list[Any], ...]:
        return self.uuid_partitions, self.uuids, self.text_partitions, self.texts

    def of_traces(self) -> tuple[list[Any], ...]:
        return self.trace_partitions, self.trace_seqs, self.traces

    def all(self) -> tuple[list[Any], ...]:
        return *self.of_transactions(), *self.of_traces()


class Removing(Shared):
    async def _ids_in(self, segment_ids: Sequence[int]) -> tuple[Ids, list[int]]:
        """The ids in the segments, read one after the other; and which segments cannot be read."""
        ids, unread = Ids(), []
        for segment_id, *manifest in await self._query("segment_manifest", segment_ids):
            try:
                columns = await self._read_columns(segment_id)
            except (CorruptSegment, EncryptionUnavailable):
                unread.append(segment_id)
                continue
            if columns is not None:
                ids.add(columns, list(_places(*manifest)))
        return ids, unread

    async def _read_columns(self, segment_id: int) -> Columns | None:
        """A segment that is about to go: it is not worth a place in the cache. None if it is gone."""
        known = self.segments.get(segment_id)
        if known is not None:
            return known.columns
        rows = await self.database.fetch("segment_load", sql.query("segment_load"), [segment_id])
        return decode_segment(rows[0], self.encryption.key).columns if rows else None


def _places(partition_ids: list[int], first_seqs: list[int], counts: list[int]) -> Iterator[tuple[int, int]]:
    """Partition id and seq of each message of a segment."""
    for partition_id, first_seq, count in zip(partition_ids, first_seqs, counts, strict=True):
        for seq in range(first_seq, first_seq + count):
            yield partition_id, seq

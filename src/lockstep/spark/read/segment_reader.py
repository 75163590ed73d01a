"""Reading segments: their messages as Arrow batches.

A task fetches its segments in chunks and yields a batch per chunk; it never holds more than one chunk.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from lockstep.core.codec import Codec
from lockstep.core.layouts import layout_bytes
from lockstep.core.sealing import segment_binding
from lockstep.spark.database import Access, cursor_of
from lockstep.spark.read.columns import Rows, StoredSegment
from lockstep.spark.read.losses import LossWatch, report_loss
from lockstep.spark.read.payloads import Payloads, header_maps
from lockstep.spark.read.positions import Witness
from lockstep.spark.read.schema import DATA
from lockstep.spark.read.segments import Scope, Segments
from lockstep.storage.postgres import sql
from lockstep.storage.postgres.encryption import Encryption

if TYPE_CHECKING:
    import psycopg

    Connection = psycopg.Connection[Any]

UNPACKED_BYTES_MAX = 256 * 1024**2
"""Maximum size unpacked at a time. The stored size of a chunk is bounded, but may grow a thousandfold."""
_ENCRYPTED_RATIO = 20
"""Assumed growth of an encrypted body, whose unpacked size is unknown."""
BATCH_BYTES_MAX = 32 * 1024**2
"""A larger batch is passed to Spark in slices."""


@dataclass(frozen=True, slots=True)
class ArrowReader:
    """Reads segments into batches of one Arrow schema. Travels to the executors, and holds no connection."""

    access: Access
    scope: Scope
    schema: pa.Schema
    payloads: Payloads = field(default_factory=Payloads)
    watch: LossWatch | None = None
    witness: Witness | None = None
    _names: dict[int, str] = field(default_factory=dict)

    def read(self, segments: Segments) -> Iterator[pa.RecordBatch]:
        """The remaining messages of the segments, in order of segments."""
        encryption = Encryption.of(self.access.config())
        with self.access.connect() as connection:
            if self.witness is not None:
                self.witness.check(connection)
            for chunk in segments.chunks():
                found = self._fetch(connection, chunk.ids.tolist(), encryption)
                if self.watch is not None:
                    self._look_for_losses(connection, chunk, found)
                for part in _unpacked_within(found, UNPACKED_BYTES_MAX):
                    rows = Rows(part, self._names, keys=encryption.keys)
                    if rows.count:
                        yield from _slices(self._batch(rows))

    def _fetch(self, connection: Connection, ids: Sequence[int], encryption: Encryption) -> list[StoredSegment]:
        found = [self._segment(row, encryption) for row in _rows(connection, "spark_segment_load", ids)]
        spans = _spans(found)
        self._find_names(connection, spans)
        gone = spans.keys() - self._names.keys()
        incomplete = gone | {id_ for (id_,) in _rows(connection, "spark_partition_incomplete", *_columns(spans))}
        if incomplete:
            self._leave_out_removed(connection, [one for one in found if not incomplete.isdisjoint(one.partition_ids)])
        if self.scope.partition_ids is not None:
            for segment in found:
                _keep(segment, set(self.scope.partition_ids))
        if self.scope.seqs:
            for segment in found:
                _cut(segment, {id_: (first, end) for id_, first, end in self.scope.seqs})
        return found

    def _segment(self, row: tuple[Any, ...], encryption: Encryption) -> StoredSegment:
        """A segment with everything that was ever in it. Raises SealBroken if it must be encrypted and is not."""
        (
            segment_id,
            queue_id,
            uuid,
            created_us,
            codec,
            message_count,
            body,
            partition_ids,
            first_seqs,
            counts,
            expires_at,
            *plain,
            must_be_sealed,
        ) = row
        if must_be_sealed:
            encryption.require_sealed(codec, f"segment {segment_id}")
        is_bound = codec & Codec.BOUND
        return StoredSegment(
            id=segment_id,
            queue=self.scope.queues[queue_id],
            uuid=uuid,
            created_us=created_us,
            codec=codec,
            message_count=message_count,
            body=body,
            plain=plain,
            expires_at=expires_at,
            partition_ids=partition_ids,
            first_seqs=first_seqs,
            counts=counts,
            ordinals=list(accumulate(counts[:-1], initial=0)),
            binding=segment_binding(UUID(bytes=bytes(uuid)), queue_id, partition_ids, counts) if is_bound else b"",
        )

    def _find_names(self, connection: Connection, ids: Iterable[int]) -> None:
        """Look up and cache the names of partitions. If all messages of a partition are gone, the partition may be gone
        as well.
        """
        missing = [id_ for id_ in ids if id_ not in self._names]
        if missing:
            self._names.update(_rows(connection, "partition_names", missing))

    def _leave_out_removed(self, connection: Connection, segments: Sequence[StoredSegment]) -> None:
        ids = [segment.id for segment in segments]
        runs = {id_: places for id_, *places in _rows(connection, "spark_segment_runs", ids)}
        for segment in segments:
            left = runs.get(segment.id, ([], [], [], []))
            segment.partition_ids, segment.first_seqs, segment.counts, segment.ordinals = left

    def _look_for_losses(self, connection: Connection, planned: Segments, found: Sequence[StoredSegment]) -> None:
        """For segments with missing messages: were those removed before this stream had read them?"""
        whole = {segment.id for segment in found if sum(segment.counts) == segment.message_count}
        suspects = [int(id_) for id_ in planned.ids if int(id_) not in whole]
        if not suspects:
            return
        assert self.watch is not None
        partition_ids = None if self.scope.partition_ids is None else list(self.scope.partition_ids)
        where = (list(self.scope.queues), suspects, self.watch.since, partition_ids)
        [[lost]] = _rows(connection, "spark_removal_of_segments", *where)
        report_loss(lost, self.scope.queues.values(), fail=self.watch.fail)

    def _batch(self, rows: Rows) -> pa.RecordBatch:
        batch = pa.RecordBatch.from_arrays([self._column(rows, name) for name in self.schema.names], schema=self.schema)
        if self.scope.trace_id is None:
            return batch
        # The first message of a trace may have no trace id: the others have its message id.
        own = pc.coalesce(rows.column("trace_id"), rows.column("message_id"))
        return batch.filter(pc.equal(own, self.scope.trace_id))

    def _column(self, rows: Rows, name: str) -> pa.Array:
        if name == "payload" and pa.types.is_string(self.schema.field(name).type):
            return rows.texts()
        if name == DATA:
            return self.payloads.parse(rows, self.schema.field(name).type)
        if name == "headers" and pa.types.is_map(self.schema.field(name).type):
            return header_maps(rows.column(name))
        return rows.column(name)


def _spans(segments: Iterable[StoredSegment]) -> dict[int, tuple[int, int]]:
    """By partition: the first and last seq of the segments."""
    spans: dict[int, tuple[int, int]] = {}
    for segment in segments:
        for partition_id, first_seq, count in zip(
            segment.partition_ids, segment.first_seqs, segment.counts, strict=True
        ):
            # Segments are in the order of their ids, with which a partition's seqs rise.
            spans[partition_id] = (
                spans[partition_id][0] if partition_id in spans else first_seq,
                first_seq + count - 1,
            )
    return spans


def _columns(spans: Mapping[int, tuple[int, int]]) -> tuple[list[int], list[int], list[int]]:
    return list(spans), [first for first, _ in spans.values()], [last for _, last in spans.values()]


def _rows(connection: Connection, query: str, *arguments: Any) -> list[Any]:
    """In PostgreSQL's binary form, which is faster to read in bulk."""
    return cursor_of(connection).execute(sql.query(query), arguments, binary=True).fetchall()


def _keep(segment: StoredSegment, partition_ids: set[int]) -> None:
    """Drop the runs of other partitions."""
    kept = [place for place, id_ in enumerate(segment.partition_ids) if id_ in partition_ids]
    for name in ("partition_ids", "first_seqs", "counts", "ordinals"):
        column = getattr(segment, name)
        setattr(segment, name, [column[place] for place in kept])


def _cut(segment: StoredSegment, bounds: Mapping[int, tuple[int, int]]) -> None:
    """Restrict each run to a range of seqs, whose end is exclusive."""
    runs = zip(segment.partition_ids, segment.first_seqs, segment.counts, segment.ordinals, strict=True)
    kept = []
    for partition_id, first_seq, count, ordinal in runs:
        first, end = bounds[partition_id]
        begin, stop = max(first_seq, first), min(first_seq + count, end)
        if begin < stop:
            kept.append((partition_id, begin, stop - begin, ordinal + begin - first_seq))
    columns = [list(column) for column in zip(*kept, strict=True)] or [[], [], [], []]
    segment.partition_ids, segment.first_seqs, segment.counts, segment.ordinals = columns


def _unpacked_within(segments: Sequence[StoredSegment], limit: int) -> Iterator[list[StoredSegment]]:
    """The segments in parts that do not exceed this size once unpacked; a larger segment forms its own part."""
    part: list[StoredSegment] = []
    size = 0
    for segment in segments:
        unpacked = _unpacked_bytes(segment)
        if part and size + unpacked > limit:
            yield part
            part, size = [], 0
        part.append(segment)
        size += unpacked
    if part:
        yield part


def _unpacked_bytes(segment: StoredSegment) -> int:
    if segment.body is None:
        return 0  # small ones only
    if segment.codec & Codec.ENCRYPTED:
        return len(segment.body) * _ENCRYPTED_RATIO
    return layout_bytes(segment.body)


def _slices(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    if not batch.num_rows:
        return
    count = max(min(batch.nbytes // BATCH_BYTES_MAX + 1, batch.num_rows), 1)
    step = -(-batch.num_rows // count)
    for start in range(0, batch.num_rows, step):
        yield batch.slice(start, step)

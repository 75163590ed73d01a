"""Reading segments: their messages as Arrow batches.

A task fetches its segments in chunks and yields a batch for each; it never holds more than a chunk.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from psycopg.rows import tuple_row

from lockstep.core.codec import Codec, layout_bytes
from lockstep.spark.columns import Rows, StoredSegment
from lockstep.spark.database import Access
from lockstep.spark.losses import Watch, report_loss
from lockstep.spark.payloads import PayloadMode, parse_payloads
from lockstep.spark.positions import Witness
from lockstep.spark.schema import DATA
from lockstep.spark.segments import Scope, Segments

if TYPE_CHECKING:
    import psycopg

    Cursor = psycopg.Cursor[tuple[Any, ...]]

UNPACKED_BYTES_MAX = 256 * 1024**2
"""Of what is unpacked at a time. A chunk is bounded as it is stored, and may become a thousand times as large."""
_ENCRYPTED_RATIO = 20
"""How much larger an encrypted body is taken to be: it does not say."""
BATCH_BYTES_MAX = 32 * 1024**2
"""A batch that is larger is handed to Spark in slices."""

_FETCH = """
select s.id, s.queue_id, uuid_send(s.uuid), (extract(epoch from s.created_at) * 1000000)::bigint,
       s.codec, s.message_count, s.body, s.partition_ids, s.first_seqs, s.counts,
       s.payloads, s.transaction_ids, s.trace_ids::text[], s.kinds, s.refs, s.encodings, s.headers, s.producer_subs
from lockstep.segment s
where s.id = any (%(ids)s) order by s.id
"""
# A partition has all seqs from a run on that begins there or before, but for those of the runs that hold the place of
# removed ones. So two probes for each partition tell whether something is missing from all its runs in the segments.
_INCOMPLETE = """
select t.id from unnest(%(ids)s::bigint[], %(firsts)s::bigint[], %(lasts)s::bigint[]) t (id, first_seq, last_seq)
where not exists (select 1 from lockstep.run r where r.partition_id = t.id and r.first_seq <= t.first_seq)
   or exists (
       select 1 from lockstep.run r
       where r.partition_id = t.id and r.segment_id is null and r.first_seq <= t.last_seq and r.last_seq >= t.first_seq
   )
"""
# What is left of a segment is what its runs say; the manifest says where to look for them.
_RUNS = """
select s.id, array_agg(r.partition_id order by r.ordinal), array_agg(r.first_seq order by r.ordinal),
       array_agg(r.last_seq - r.first_seq + 1 order by r.ordinal), array_agg(r.ordinal order by r.ordinal)
from lockstep.segment s
cross join lateral unnest(s.partition_ids, s.first_seqs, s.counts) m (partition_id, first_seq, n)
join lockstep.run r on r.partition_id = m.partition_id and r.segment_id = s.id
    and r.first_seq between m.first_seq and m.first_seq + m.n - 1
where s.id = any (%(ids)s) group by s.id
"""
_PARTITION_NAMES = "select p.id, p.name from lockstep.partition p where p.id = any (%(ids)s)"
_LOST = """
select coalesce(sum(n.messages), 0)::bigint from lockstep.spark_removal n
where n.queue_id = any (%(queue_ids)s) and n.segment_id = any (%(ids)s) and n.removed_at >= %(since)s
  and (%(partition_ids)s::bigint[] is null or n.partition_id = any (%(partition_ids)s))
"""


@dataclass(frozen=True, slots=True)
class SegmentReader:
    """Reads segments into batches of one Arrow schema. Travels to the executors, and holds no connection."""

    access: Access
    scope: Scope
    schema: pa.Schema
    payload_mode: PayloadMode = "failfast"
    watch: Watch | None = None
    witness: Witness | None = None
    _names: dict[int, str] = field(default_factory=dict)

    def read(self, segments: Segments) -> Iterator[pa.RecordBatch]:
        """The messages that are left of the segments, in the order of their segments."""
        key = self.access.config().encryption_key_bytes
        with self.access.connect() as connection, connection.cursor(binary=True, row_factory=tuple_row) as cursor:
            if self.witness is not None:
                self.witness.check(connection)
            for chunk in segments.chunks():
                found = self._fetch(cursor, chunk.ids.tolist())
                if self.watch is not None:
                    self._look_for_losses(cursor, chunk, found)
                for part in _unpacked_within(found, UNPACKED_BYTES_MAX):
                    rows = Rows(part, self._names, key=key)
                    if rows.count:
                        yield from _slices(self._batch(rows))

    def _fetch(self, cursor: Cursor, ids: Sequence[int]) -> list[StoredSegment]:
        found = [self._segment(row) for row in cursor.execute(_FETCH, {"ids": ids})]
        spans = _spans(found)
        self._find_names(cursor, spans)
        incomplete = {id_ for (id_,) in cursor.execute(_INCOMPLETE, _columns(spans))} | (
            spans.keys() - self._names.keys()
        )
        if incomplete:
            self._leave_out_removed(cursor, [one for one in found if not incomplete.isdisjoint(one.partition_ids)])
        if self.scope.partition_ids is not None:
            for segment in found:
                _keep(segment, set(self.scope.partition_ids))
        return found

    def _segment(self, row: tuple[Any, ...]) -> StoredSegment:
        """A segment with all that was ever in it."""
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
            *plain,
        ) = row
        return StoredSegment(
            id=segment_id,
            queue=self.scope.queues[queue_id],
            uuid=uuid,
            created_us=created_us,
            codec=codec,
            message_count=message_count,
            body=body,
            plain=plain,
            partition_ids=partition_ids,
            first_seqs=first_seqs,
            counts=counts,
            ordinals=list(accumulate(counts[:-1], initial=0)),
        )

    def _find_names(self, cursor: Cursor, ids: Iterable[int]) -> None:
        """Look up the names of partitions, and remember them. One whose messages are all gone may be gone, too."""
        missing = [id_ for id_ in ids if id_ not in self._names]
        if missing:
            self._names.update(cursor.execute(_PARTITION_NAMES, {"ids": missing}).fetchall())

    def _leave_out_removed(self, cursor: Cursor, segments: Sequence[StoredSegment]) -> None:
        runs = {row[0]: row[1:] for row in cursor.execute(_RUNS, {"ids": [segment.id for segment in segments]})}
        for segment in segments:
            left = runs.get(segment.id, ([], [], [], []))
            segment.partition_ids, segment.first_seqs, segment.counts, segment.ordinals = left

    def _look_for_losses(self, cursor: Cursor, planned: Segments, found: Sequence[StoredSegment]) -> None:
        """Segments of which something is gone: was it removed before this stream had read it?"""
        whole = {segment.id for segment in found if sum(segment.counts) == segment.message_count}
        suspects = [int(id_) for id_ in planned.ids if int(id_) not in whole]
        if not suspects:
            return
        assert self.watch is not None
        partition_ids = None if self.scope.partition_ids is None else list(self.scope.partition_ids)
        given = {
            "queue_ids": list(self.scope.queues),
            "ids": suspects,
            "since": self.watch.since,
            "partition_ids": partition_ids,
        }
        [[lost]] = cursor.execute(_LOST, given).fetchall()
        report_loss(lost, self.scope.queues.values(), fail=self.watch.fail)

    def _batch(self, rows: Rows) -> pa.RecordBatch:
        batch = pa.RecordBatch.from_arrays([self._column(rows, name) for name in self.schema.names], schema=self.schema)
        if self.scope.trace_id is None:
            return batch
        return batch.filter(pc.equal(rows.column("trace_id"), self.scope.trace_id))

    def _column(self, rows: Rows, name: str) -> pa.Array:
        if name == "payload" and pa.types.is_string(self.schema.field(name).type):
            return rows.texts()
        if name == DATA:
            return parse_payloads(rows, self.schema.field(name).type, mode=self.payload_mode)
        return rows.column(name)


def _spans(segments: Iterable[StoredSegment]) -> dict[int, tuple[int, int]]:
    """By partition: the first and the last seq that the segments have of it."""
    spans: dict[int, tuple[int, int]] = {}
    for segment in segments:
        for partition_id, first_seq, count in zip(
            segment.partition_ids, segment.first_seqs, segment.counts, strict=True
        ):
            # Segments come in the order of their ids, and a partition's seqs rise with them.
            spans[partition_id] = (
                spans[partition_id][0] if partition_id in spans else first_seq,
                first_seq + count - 1,
            )
    return spans


def _columns(spans: Mapping[int, tuple[int, int]]) -> dict[str, list[int]]:
    return {
        "ids": list(spans),
        "firsts": [first for first, _ in spans.values()],
        "lasts": [last for _, last in spans.values()],
    }


def _keep(segment: StoredSegment, partition_ids: set[int]) -> None:
    """Leave out the runs of other partitions."""
    kept = [place for place, id_ in enumerate(segment.partition_ids) if id_ in partition_ids]
    for name in ("partition_ids", "first_seqs", "counts", "ordinals"):
        column = getattr(segment, name)
        setattr(segment, name, [column[place] for place in kept])


def _unpacked_within(segments: Sequence[StoredSegment], limit: int) -> Iterator[list[StoredSegment]]:
    """The segments in parts that do not take more memory than this once they are unpacked; a larger one is alone."""
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

"""Plans a read on the driver: the segments between two positions, and the tasks that read them.

Lists the segments with their sizes and assigns them in ranges. The code that reads them is not imported here: Spark
starts a process for planning alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from lockstep.spark.database import cursor_of
from lockstep.spark.read.offsets import Snapshot, SnapshotPlace, between
from lockstep.storage.postgres import sql

if TYPE_CHECKING:
    import psycopg

Ints = np.ndarray[Any, np.dtype[Any]]

CHUNK_BYTES_MAX = 4 * 1024**2
"""Stored bytes fetched at a time; about four times as many once decompressed."""
CHUNK_MESSAGES_MAX = 50_000
"""Larger chunks exceed the processor's cache; smaller ones cost more round trips."""
CHUNK_SEGMENTS_MAX = 2_000

TASK_MESSAGES_MIN = 5_000
"""A task for fewer messages costs more than it gains, unless they are large."""
TASK_BYTES_MIN = 1024**2


@dataclass(frozen=True, slots=True)
class Segments:
    """Segments in order of their ids, with messages, stored bytes and transactions, as columns."""

    ids: Ints
    messages: Ints
    sizes: Ints
    txids: Ints

    @classmethod
    def none(cls) -> Segments:
        return cls(np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, np.int32), np.empty(0, np.int64))

    def __len__(self) -> int:
        return len(self.ids)

    def slice(self, start: int, stop: int) -> Segments:
        return Segments(self.ids[start:stop], self.messages[start:stop], self.sizes[start:stop], self.txids[start:stop])

    def between(self, start: SnapshotPlace, end: SnapshotPlace) -> Segments:
        """The segments that `end` includes and `start` does not."""
        chosen = ~self._in(start) & self._in(end)
        return Segments(self.ids[chosen], self.messages[chosen], self.sizes[chosen], self.txids[chosen])

    def _in(self, place: SnapshotPlace) -> np.ndarray[Any, np.dtype[np.bool_]]:
        return self._seen(place.base) | ((self.ids <= place.segment) & self._seen(place.to))

    def _seen(self, snapshot: Snapshot) -> np.ndarray[Any, np.dtype[np.bool_]]:
        seen = self.txids < snapshot.xmax
        return seen & ~np.isin(self.txids, snapshot.in_progress) if snapshot.in_progress else seen

    def within(self, *, messages: int | None, size: int | None) -> Segments:
        """The first segments that fit within the limits; at least one."""
        stop = len(self)
        for limit, values in ((messages, self.messages), (size, self.sizes)):
            if limit is not None:
                stop = min(stop, int(np.searchsorted(np.cumsum(values, dtype=np.int64), limit, side="right")))
        return self.slice(0, max(stop, 1))

    def tasks(self, parallelism: int) -> list[Segments]:
        """Ranges of about equal work: at most `parallelism`, and no more than are worth a task."""
        if not len(self):
            return []
        # A message costs about as much as a hundred bytes.
        work = np.cumsum(self.messages.astype(np.int64) * 100 + self.sizes)
        worth = max(int(self.messages.sum()) // TASK_MESSAGES_MIN, int(self.sizes.sum()) // TASK_BYTES_MIN, 1)
        count = min(parallelism, worth, len(self))
        ends = np.searchsorted(work, work[-1] * np.arange(1, count) // count, side="left") + 1
        cuts = [0, *ends.tolist(), len(self)]
        return [self.slice(a, b) for a, b in pairwise(cuts) if a < b]

    def chunks(self) -> Iterator[Segments]:
        """Ranges that are fetched at a time."""
        start = 0
        while start < len(self):
            rest = self.slice(start, start + CHUNK_SEGMENTS_MAX)
            chunk = rest.within(messages=CHUNK_MESSAGES_MAX, size=CHUNK_BYTES_MAX)
            yield chunk
            start += len(chunk)


@dataclass(frozen=True, slots=True)
class Scope:
    """What of the queues is read."""

    queues: Mapping[int, str]
    """Names by id."""
    partition_ids: tuple[int, ...] | None = None
    trace_id: str | None = None
    seqs: tuple[tuple[int, int, int], ...] = ()
    """Partitions that are read only in part: a range of seqs, whose end is exclusive."""
    from_at: datetime | None = None
    to_at: datetime | None = None


def list_segments(
    connection: psycopg.Connection[Any], scope: Scope, base: Snapshot, to: Snapshot, *, after: int = 0
) -> Segments:
    """The segments between two snapshots, after an id."""
    if base == to:
        return Segments.none()
    partition_ids = None if scope.partition_ids is None else list(scope.partition_ids)
    filters = (partition_ids, scope.from_at, scope.to_at, scope.trace_id)
    # Without an id they are found by their transactions only.
    arguments = [list(scope.queues), after or None, *between(base, to), *filters]
    cursor = cursor_of(connection).execute(sql.query("spark_segment_list"), arguments, binary=True)
    [[ids, messages, sizes, txids]] = cursor.fetchall()
    return Segments(_int8s(ids), _int4s(messages), _int4s(sizes), _int8s(txids))


def _int8s(packed: bytes | None) -> Ints:
    return np.frombuffer(packed or b"", ">i8").astype(np.int64)


def _int4s(packed: bytes | None) -> Ints:
    return np.frombuffer(packed or b"", ">i4").astype(np.int32)

"""Stored messages, newest first: how a list walks backwards, and where it continues.

In a queue "newest" means stored last: segments are walked backwards, and the messages of one segment backwards by their
place in it. In one partition that is the order of the seqs, so a list of one partition walks its runs instead.
A call reads a bounded number of segments or runs, however large the backlog is, and returns where it stopped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from lockstep.core.ids import SEGMENT_MESSAGES_MAX
from lockstep.core.records import newest_cursor, parse_newest_cursor

_LAST = 2**62


@dataclass(frozen=True, slots=True)
class PageStart:
    """Everything before it is still to be listed: before an ordinal of a segment, or before a seq of a partition."""

    major: int
    """A segment's id, or a partition's."""
    minor: int

    @classmethod
    def of(cls, cursor: str | None, partition_id: int | None) -> PageStart:
        """Where a page begins. Raises InvalidRequest."""
        if cursor is not None:
            return cls(*parse_newest_cursor(cursor))
        return cls(_LAST, SEGMENT_MESSAGES_MAX) if partition_id is None else cls(partition_id, _LAST)

    def cursor(self) -> str:
        return newest_cursor(self.major, self.minor)


@dataclass(frozen=True, slots=True)
class RunSlice:
    """Messages of one run; the last is listed first."""

    row: Any
    first_seq: int
    last_seq: int

    def __len__(self) -> int:
        return self.last_seq - self.first_seq + 1

    @property
    def ordinal(self) -> int:
        """Of the first message, in its segment."""
        return int(self.row["ordinal"] + self.first_seq - self.row["first_seq"])

    @property
    def segment_id(self) -> int:
        return int(self.row["segment_id"])

    def place_of(self, seq: int, *, of_partition: bool) -> PageStart:
        """Where a list continues after one of the messages."""
        if of_partition:
            return PageStart(self.row["id"], seq)
        return PageStart(self.segment_id, self.ordinal + seq - self.first_seq)


def spans_before(rows: Sequence[Any], place: PageStart, limit: int, *, of_partition: bool) -> Iterator[RunSlice]:
    """The messages in the rows of a query before the place, newest first, up to `limit`."""
    for row in rows:
        if limit <= 0:
            return
        if row["id"] is None:
            continue
        first_seq, last_seq = row["first_seq"], row["last_seq"]
        if of_partition:
            last_seq = min(last_seq, place.minor - 1)
        elif row["segment_id"] == place.major:
            last_seq = min(last_seq, first_seq + place.minor - row["ordinal"] - 1)
        span = RunSlice(row, max(first_seq, last_seq - limit + 1), last_seq)
        if len(span) > 0:
            limit -= len(span)
            yield span


def place_after(rows: Sequence[Any], spans: Sequence[RunSlice], limit: int, *, of_partition: bool) -> PageStart:
    """Where a list continues after the spans of these rows."""
    if sum(map(len, spans)) >= limit:
        return spans[-1].place_of(spans[-1].first_seq, of_partition=of_partition)
    if of_partition:
        return PageStart(0, rows[-1]["first_seq"])
    return PageStart(rows[-1]["segment_id"] - 1, SEGMENT_MESSAGES_MAX)

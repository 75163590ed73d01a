"""One call of the procedure that pushes: what it is given, and what its answer means."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import accumulate
from typing import Any

from lockstep.core import refusals
from lockstep.core.codec import Codec
from lockstep.core.ids import all_canonical_uuids, is_canonical_uuid
from lockstep.core.messages import COLUMN_NAMES, Columns, Occupancy
from lockstep.errors import QueueFull
from lockstep.storage.postgres.cache import QueueNames, Segment
from lockstep.storage.postgres.calls import milliseconds
from lockstep.storage.postgres.push_lanes import Dropped, Lanes, join_columns


@dataclass(slots=True)
class Entries:
    """Messages named by run and offset, with a value each, as the procedure takes them."""

    values: list[str] = field(default_factory=list)
    runs: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)

    def add(self, run: int, found: list[tuple[int, str]]) -> None:
        self.offsets += [offset for offset, _ in found]
        self.values += [value for _, value in found]
        self.runs += [run] * len(found)

    def add_all(self, run: int, values: list[str]) -> None:
        self.offsets += range(len(values))
        self.values += values
        self.runs += [run] * len(values)

    def at(self, index: int) -> tuple[int, int]:
        """Run and offset of the entry that SQL calls `index`, which counts from 1."""
        return self.runs[index - 1], self.offsets[index - 1]

    def uuid_arguments(self) -> tuple[str | None, str | None, str | None]:
        if not self.values:
            return None, None, None
        return f"{{{','.join(self.values)}}}", int_array(self.runs), int_array(self.offsets)

    def text_arguments(self) -> tuple[list[str] | None, str | None, str | None]:
        return (self.values, int_array(self.runs), int_array(self.offsets)) if self.values else (None, None, None)


def int_array(numbers: Iterable[int]) -> str:
    """An array as PostgreSQL spells it: asyncpg looks at every element of a list before it encodes it."""
    return f"{{{','.join(map(str, numbers))}}}"


@dataclass(slots=True)
class Attempt:
    """One call of the procedure: its segments, one per queue, and the runs in them, in order."""

    source: Lanes
    plain_allowed: bool
    """Messages of an encrypted queue may be stored as they are."""
    queues: list[str] = field(default_factory=list)
    names: list[QueueNames] = field(default_factory=list)
    codecs: list[int] = field(default_factory=list)
    bodies: list[bytes | None] = field(default_factory=list)
    contents: list[tuple[Columns, int]] = field(default_factory=list)
    """By segment: its messages, and their bytes."""
    run_counts: list[int] = field(default_factory=list)
    lanes: list[int] = field(default_factory=list)
    """By run: its lane."""
    counts: list[int] = field(default_factory=list)
    ordinals: list[int] = field(default_factory=list)
    dedup: Entries = field(default_factory=Entries)
    dedup_texts: Entries = field(default_factory=Entries)
    traces: Entries = field(default_factory=Entries)

    def add_segment(self, queue: str, names: QueueNames, lanes: list[int], parts: list[Columns]) -> Columns:
        """Add the lanes of a queue; returns all their messages together."""
        first_run = len(self.lanes) + 1
        counts = [len(part.payloads) for part in parts]
        self.queues.append(queue)
        self.names.append(names)
        self.run_counts.append(len(lanes))
        self.lanes += lanes
        self.counts += counts
        self.ordinals += list(accumulate(counts, initial=0))[:-1]
        content = join_columns(parts)
        if content.transaction_ids is not None or content.trace_ids is not None:
            self._add_entries(first_run, parts)
        return content

    def _add_entries(self, first_run: int, parts: list[Columns]) -> None:
        """Which messages go to the dedup tables and the trace index."""
        for run, part in enumerate(parts, first_run):
            if part.transaction_ids is not None:
                self._add_transaction_ids(run, part.transaction_ids)
            if part.trace_ids is not None:
                self.traces.add(run, [(i, t) for i, t in enumerate(part.trace_ids) if t is not None])

    def _add_transaction_ids(self, run: int, ids: list[str | None]) -> None:
        if None not in ids and all_canonical_uuids(ids):  # type: ignore[arg-type]
            self.dedup.add_all(run, ids)  # type: ignore[arg-type]
            return
        given = [(i, t) for i, t in enumerate(ids) if t is not None]
        self.dedup.add(run, [(i, t) for i, t in given if is_canonical_uuid(t)])
        self.dedup_texts.add(run, [(i, t) for i, t in given if not is_canonical_uuid(t)])

    def is_bare(self) -> bool:
        """Whether this is the common case, for which there are procedures that do less: one queue, and nothing to
        deduplicate, to trace or to count."""
        return (
            len(self.names) == 1
            and not self.names[0].limited
            and not (self.dedup.values or self.dedup_texts.values or self.traces.values)
            and (self.codecs[0] != Codec.PLAIN.value or (len(self.lanes) == 1 and self.contents[0][0].bare()))
            and self.contents[0][0].expires_at is None
        )

    def run_arguments(self, at: datetime | None, lock_seconds: float | None) -> list[Any]:
        """The arguments of push_run, in its order."""
        content, body = self.contents[0][0], self.bodies[0]
        return [
            self.names[0].id,
            self.source.ids[self.lanes[0]],
            self.codecs[0],
            len(content.payloads),
            body,
            content.payloads if body is None else None,
            self.plain_allowed,
            at,
            milliseconds(lock_seconds),
        ]

    def runs_arguments(self, at: datetime | None, lock_seconds: float | None) -> list[Any]:
        """The arguments of push_runs, in its order."""
        return [
            self.names[0].id,
            self._partition_ids(),
            self._looked_from(),
            int_array(self.counts),
            int_array(self.ordinals),
            self.codecs[0],
            self.bodies[0],
            self.plain_allowed,
            at,
            milliseconds(lock_seconds),
        ]

    def arguments(self, at: datetime | None, lock_seconds: float | None) -> list[Any]:
        """The arguments of push_segments, in its order."""
        limited = [names.id for names in self.names if names.limited]
        plain = [content for (content, _), codec in zip(self.contents, self.codecs, strict=True) if not codec]
        columns: Sequence[list[Any] | None] = join_columns(plain).all() if plain else [None] * len(COLUMN_NAMES)
        # When messages expire stands beside the body of a segment, whatever its codec.
        expiring = any([content.expires_at is not None for content, _ in self.contents])
        return [
            int_array([names.id for names in self.names]),
            int_array(limited) if limited else None,
            int_array(self.codecs),
            self.bodies,
            int_array(self.run_counts),
            self._partition_ids(),
            int_array(self.counts),
            int_array(self.ordinals),
            *self.dedup.uuid_arguments(),
            *self.dedup_texts.text_arguments(),
            *self.traces.uuid_arguments(),
            *columns[: len(COLUMN_NAMES) - 1],
            self.plain_allowed,
            at,
            join_columns([content for content, _ in self.contents]).expires_at if expiring else None,
            milliseconds(lock_seconds),
        ]

    def _partition_ids(self) -> str:
        ids = self.source.ids
        return int_array([ids[lane] for lane in self.lanes])

    def _looked_from(self) -> str:
        ids, last_runs = self.source.ids, self.names[0].last_runs
        return int_array([last_runs.get(ids[lane], 0) for lane in self.lanes])

    def note_runs(self, first_seqs: Sequence[int]) -> None:
        """They were pushed, and begin at these seqs."""
        ids = self.source.ids
        self.names[0].last_runs.update(zip([ids[lane] for lane in self.lanes], first_seqs, strict=True))

    def note_duplicates(self, row: Any) -> None:
        """The procedure found transaction ids that are stored already: leave those messages out."""
        entries = [self.dedup.at(i) for i in row[5] or ()] + [self.dedup_texts.at(i) for i in row[6] or ()]
        found: dict[int, list[tuple[int, int, str]]] = {}
        for (run, offset), seq, identity in zip(entries, row[7], row[8], strict=True):
            found.setdefault(self.lanes[run - 1], []).append((offset, seq, str(identity)))
        for lane, duplicates in found.items():
            everything = range(len(self.source.columns[lane]))
            self.source.dropped.setdefault(lane, Dropped({}, list(everything))).drop(duplicates)

    def full(self, row: Any) -> QueueFull:
        runs = iter(self.counts)
        new = [sum(next(runs) for _ in range(count)) for count in self.run_counts]
        for queue, count, depth, max_size in zip(self.queues, new, row[9], row[10], strict=True):
            if max_size is not None and depth + count > max_size:
                return refusals.queue_full(queue, depth=depth, max_size=max_size, new=count)
        raise AssertionError("the procedure says that a queue is full")

    def occupancy(self, row: Any) -> dict[str, Occupancy]:
        """How full each queue of the call is now that has a max_size."""
        if row[9] is None:
            return {}
        return {
            queue: Occupancy(depth, max_size - depth)
            for queue, depth, max_size in zip(self.queues, row[9], row[10], strict=True)
            if max_size is not None
        }

    def segments(self, row: Any) -> list[tuple[int, Segment]]:
        return [
            (segment_id, Segment(uuid, row[1], content, size))
            for segment_id, uuid, (content, size) in zip(row[2], row[3], self.contents, strict=True)
        ]

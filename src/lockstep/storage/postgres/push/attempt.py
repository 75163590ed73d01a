"""One call of the procedure that pushes: its arguments, and the meaning of its answer."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import accumulate
from typing import Any, NamedTuple
from uuid import UUID

from lockstep.core import refusals
from lockstep.core.codec import Codec
from lockstep.core.ids import all_canonical_uuids, is_canonical_uuid, segment_uuid7
from lockstep.core.messages import COLUMN_NAMES, Columns, Occupancy, counts_of, join_columns
from lockstep.core.sealing import segment_binding
from lockstep.errors import QueueFull
from lockstep.storage.postgres.cache import QueueNames, Segment
from lockstep.storage.postgres.push.portions import Dropped, Portions

PLAIN_COLUMNS = (
    "payloads",
    "transaction_ids",
    "trace_ids",
    "kinds",
    "refs",
    "encodings",
    "headers",
    "producer_subs",
)
"""The columns of COLUMN_NAMES that a segment has of its own, as SQL calls them."""


class PushedSegments(NamedTuple):
    """The answer to a push: where its segments are, or why nothing was written. Entries are numbered from 1."""

    status: str
    created_at: datetime
    segment_ids: list[int]
    segment_uuids: list[UUID]
    first_seqs: list[int]
    # Arrays if the status, or a limit, concerns them; otherwise null.
    duplicate_uuids: Any = None
    duplicate_texts: Any = None
    duplicate_seqs: Any = None
    duplicate_ids: Any = None
    depths: Any = None
    max_sizes: Any = None
    behind: Any = None


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

    def arguments(self, name: str, *, as_text: bool) -> dict[str, Any]:
        """Values, runs and offsets as arguments with a common name; UUIDs are passed as text."""
        values: Any = f"{{{','.join(self.values)}}}" if as_text else self.values
        given = (values, int_array(self.runs), int_array(self.offsets)) if self.values else (None, None, None)
        return dict(zip((f"{name}s", f"{name}_runs", f"{name}_offsets"), given, strict=True))


def int_array(numbers: Iterable[int]) -> str:
    """An array in PostgreSQL's text format: asyncpg inspects every element of a list before it encodes it."""
    return f"{{{','.join(map(str, numbers))}}}"


@dataclass(slots=True)
class PushAttempt:
    """One call of the procedure: its segments, one per queue, and the runs in them, in order."""

    source: Portions
    plain_allowed: bool
    """Messages of an encrypted queue may be stored unencrypted."""
    queues: list[str] = field(default_factory=list)
    names: list[QueueNames] = field(default_factory=list)
    codecs: list[int] = field(default_factory=list)
    bodies: list[bytes | None] = field(default_factory=list)
    uuids: list[UUID | None] = field(default_factory=list)
    """By segment: its id, if its body is bound to it; otherwise the database makes one."""
    contents: list[tuple[Columns, int]] = field(default_factory=list)
    """By segment: its messages, and their bytes."""
    run_counts: list[int] = field(default_factory=list)
    portions: list[int] = field(default_factory=list)
    """By run: its portion."""
    counts: list[int] = field(default_factory=list)
    ordinals: list[int] = field(default_factory=list)
    dedup: Entries = field(default_factory=Entries)
    dedup_texts: Entries = field(default_factory=Entries)
    traces: Entries = field(default_factory=Entries)

    def add_segment(self, queue: str, names: QueueNames, portions: list[int], parts: list[Columns]) -> Columns:
        """Add the portions of a queue; returns all their messages together."""
        first_run = len(self.portions) + 1
        counts = counts_of(parts)
        self.queues.append(queue)
        self.names.append(names)
        self.run_counts.append(len(portions))
        self.portions += portions
        self.counts += counts
        self.ordinals += list(accumulate(counts, initial=0))[:-1]
        content = join_columns(parts)
        if content.transaction_ids is not None or content.trace_ids is not None:
            self._add_entries(first_run, parts)
        return content

    def place_of_last(self) -> tuple[UUID, bytes]:
        """An id for the segment that was added last, and the binding of its body to this id and to its partitions."""
        runs = self.run_counts[-1]
        uuid, ids = segment_uuid7(time.time_ns()), self.source.ids
        partition_ids = [ids[portion] for portion in self.portions[-runs:]]
        return uuid, segment_binding(uuid, self.names[-1].id, partition_ids, self.counts[-runs:])

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
        """Whether this is the common case, which has cheaper procedures: one queue, and nothing to deduplicate, trace
        or count."""
        return (
            len(self.names) == 1
            and not self.names[0].limited
            and self.uuids[0] is None
            and not (self.dedup.values or self.dedup_texts.values or self.traces.values)
            and (self.codecs[0] != Codec.PLAIN.value or (len(self.portions) == 1 and self.contents[0][0].bare()))
            and self.contents[0][0].expires_at is None
        )

    def run_arguments(self) -> dict[str, Any]:
        """The arguments of push_run for the single portion."""
        content, body = self.contents[0][0], self.bodies[0]
        return {
            "queue_id": self.names[0].id,
            "partition_id": self.source.ids[self.portions[0]],
            "codec": self.codecs[0],
            "count": len(content),
            "body": body,
            "payloads": content.payloads if body is None else None,
            "plain_allowed": self.plain_allowed,
        }

    def runs_arguments(self) -> dict[str, Any]:
        """The arguments of push_runs for portions of one queue."""
        return {
            "queue_id": self.names[0].id,
            "partition_ids": self._partition_ids(),
            "looked_from": self._looked_from(),
            "counts": int_array(self.counts),
            "ordinals": int_array(self.ordinals),
            "codec": self.codecs[0],
            "body": self.bodies[0],
            "plain_allowed": self.plain_allowed,
        }

    def arguments(self) -> dict[str, Any]:
        """The arguments of push_segments."""
        limited = [names.id for names in self.names if names.limited]
        plain = [content for (content, _), codec in zip(self.contents, self.codecs, strict=True) if not codec]
        columns: Sequence[list[Any] | None] = join_columns(plain).all() if plain else [None] * len(COLUMN_NAMES)
        # Expiry times are stored beside the body of a segment, whatever its codec.
        expiring = any([content.expires_at is not None for content, _ in self.contents])
        return {
            "queue_ids": int_array([names.id for names in self.names]),
            "limited": int_array(limited) if limited else None,
            "codecs": int_array(self.codecs),
            "bodies": self.bodies,
            "run_counts": int_array(self.run_counts),
            "partition_ids": self._partition_ids(),
            "counts": int_array(self.counts),
            "ordinals": int_array(self.ordinals),
            **self.dedup.arguments("uuid", as_text=True),
            **self.dedup_texts.arguments("text", as_text=False),
            **self.traces.arguments("trace", as_text=True),
            **dict(zip(PLAIN_COLUMNS, columns, strict=False)),
            "plain_allowed": self.plain_allowed,
            "sealed_uuids": self.uuids if any(self.uuids) else None,
            "expires_at": join_columns([content for content, _ in self.contents]).expires_at if expiring else None,
        }

    def _partition_ids(self) -> str:
        ids = self.source.ids
        return int_array([ids[portion] for portion in self.portions])

    def _looked_from(self) -> str:
        ids, last_runs = self.source.ids, self.names[0].last_runs
        return int_array([last_runs.get(ids[portion], 0) for portion in self.portions])

    def note_runs(self, first_seqs: Sequence[int]) -> None:
        """The runs were pushed, and begin at these seqs."""
        ids = self.source.ids
        self.names[0].last_runs.update(zip([ids[portion] for portion in self.portions], first_seqs, strict=True))

    def note_duplicates(self, row: PushedSegments) -> None:
        """The procedure found transaction ids that are already stored: leave those messages out."""
        entries = [self.dedup.at(i) for i in row.duplicate_uuids or ()]
        entries += [self.dedup_texts.at(i) for i in row.duplicate_texts or ()]
        found: dict[int, list[tuple[int, int, str]]] = {}
        for (run, offset), seq, identity in zip(entries, row.duplicate_seqs, row.duplicate_ids, strict=True):
            found.setdefault(self.portions[run - 1], []).append((offset, seq, str(identity)))
        for portion, duplicates in found.items():
            everything = range(len(self.source.columns[portion]))
            self.source.dropped.setdefault(portion, Dropped({}, list(everything))).drop(duplicates)

    def full(self, row: PushedSegments) -> QueueFull:
        runs = iter(self.counts)
        new = [sum(next(runs) for _ in range(count)) for count in self.run_counts]
        for queue, count, depth, max_size in zip(self.queues, new, row.depths, row.max_sizes, strict=True):
            if max_size is not None and depth + count > max_size:
                return refusals.queue_full(queue, depth=depth, max_size=max_size, new=count)
        raise AssertionError("the procedure says that a queue is full")

    def occupancy(self, row: PushedSegments) -> dict[str, Occupancy]:
        """The current depth of each queue of the call that has a max_size."""
        if row.depths is None:
            return {}
        return {
            queue: Occupancy(depth, max_size - depth)
            for queue, depth, max_size in zip(self.queues, row.depths, row.max_sizes, strict=True)
            if max_size is not None
        }

    def segments(self, row: PushedSegments) -> list[tuple[int, Segment]]:
        return [
            (segment_id, Segment(uuid, row.created_at, content, size))
            for segment_id, uuid, (content, size) in zip(row.segment_ids, row.segment_uuids, self.contents, strict=True)
        ]

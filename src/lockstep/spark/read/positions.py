"""The database calls of a stream other than reading messages: it asks for the position of the database and publishes
its own.

A published position shows as lag beside that of the consumer groups, holds back retention, and lets removals record
which messages the stream has not read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Concatenate, ParamSpec, TypeVar
from uuid import uuid4

import psycopg

from lockstep.errors import (
    CheckpointAhead,
    CheckpointMismatch,
    Conflict,
    InvalidOption,
    QueueNotFound,
    Unavailable,
)
from lockstep.spark.database import Access, cursor_of, explained, result_of, rows_of
from lockstep.spark.options import ReadOptions, ReadPosition, Seqs
from lockstep.spark.read.offsets import EARLIEST, Mark, Offset, Snapshot, SnapshotPlace
from lockstep.spark.read.segments import Scope
from lockstep.storage.postgres import sql

_AHEAD = (
    "the checkpoint is ahead of the database, which lost its latest transactions: a replica took over, or a backup was "
    "restored. Messages pushed since then would be missed"
)

T = TypeVar("T")
P = ParamSpec("P")

_PUBLISH: sql.Procedure[None] = sql.procedure("publish_position")
_MARK: sql.Procedure[int] = sql.procedure("mark_position")
_MARK_STATE: sql.Procedure[str] = sql.procedure("mark_state")
MARKS_KEPT = 1000
"""By default, Spark keeps the offsets of 100 batches."""

_SEQ_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Look:
    """The state of the database at one moment."""

    snapshot: Snapshot
    now: datetime
    system: str
    timeline: str


class Desk:
    """One connection of the driver for all queries; reopened after a loss."""

    def __init__(self, access: Access, *, opened: Callable[[psycopg.Connection[Any]], None] | None = None) -> None:
        """`opened` is called with each new connection before its first query."""
        self._access = access
        self._opened = opened
        self._open: ExitStack | None = None
        self._connection: psycopg.Connection[Any] | None = None
        self._is_held = False

    def together(self, work: Callable[[], T]) -> T:
        """Run `work` with all its queries on one connection, and so on one timeline of the database. If the connection
        was lost, `work` is run once more; it must be safe to run twice."""
        is_new = self._connection is None
        try:
            return self._holding(work)
        except Unavailable:
            if is_new or self._connection is not None:
                raise
            return self._holding(work)

    def _holding(self, work: Callable[[], T]) -> T:
        if self._connection is None:
            with explained():
                self._connect()
        self._is_held = True
        try:
            return work()
        finally:
            self._is_held = False

    def ask(
        self, question: Callable[Concatenate[psycopg.Connection[Any], P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Call a function with the connection. Its queries must be safe to repeat."""
        if self._connection is not None:
            try:
                with explained():
                    return question(self._connection, *args, **kwargs)
            except Unavailable:
                # It may have been closed while it was idle.
                self.close()
                if self._is_held:
                    raise
        with explained():
            return question(self._connect(), *args, **kwargs)

    def _connect(self) -> psycopg.Connection[Any]:
        self._open = ExitStack()
        connection = self._open.enter_context(self._access.connect())
        if self._opened is not None:
            try:
                self._opened(connection)
            except BaseException:
                self.close()
                raise
        self._connection = connection
        return connection

    def close(self) -> None:
        if self._open is not None:
            self._open.close()
        self._open = self._connection = None


def look(connection: psycopg.Connection[Any], queue_ids: Sequence[int]) -> Look:
    """The current position of the database. Raises Conflict where positions are meaningless."""
    [[snapshot, now, standby, system, timeline, foreign]] = rows_of(connection, "spark_snapshot", list(queue_ids))
    if standby:
        raise InvalidOption(
            "the database is a hot standby, whose snapshots are not the primary's: read from the primary"
        )
    if foreign:
        raise Conflict(
            "the queue holds messages that were restored from another PostgreSQL, whose transactions are not known "
            "here: while nothing is written, run select lockstep.adopt_segments()"
        )
    return Look(Snapshot.parse(snapshot), now, system, f"{system}/{timeline}")


def find_queues(connection: psycopg.Connection[Any], names: Sequence[str]) -> dict[str, int]:
    """The ids of queues. Raises QueueNotFound."""
    found = dict(rows_of(connection, "queue_ids", list(names)))
    missing = [name for name in names if name not in found]
    if missing:
        raise QueueNotFound(f"there is no queue {', '.join(map(repr, missing))}", queue=missing[0])
    return {name: found[name] for name in names}


def find_matching(connection: psycopg.Connection[Any], pattern: str, most: int) -> dict[str, int]:
    """The ids of queues with matching names. Raises InvalidOption if there are too many."""
    like = re.sub(r"([\\\\%_])", r"\\\1", pattern).replace("*", "%")
    found = dict(rows_of(connection, "queue_ids_like", like, most + 1))
    if len(found) > most:
        raise InvalidOption(
            f"more than {most} queues fit the pattern {pattern!r} (spark_pattern_queues_max): give a narrower one"
        )
    return found


def find_read(desk: Desk, read: ReadOptions) -> tuple[dict[str, int], Look]:
    """The queues that the options name, and the state of the database. Raises QueueNotFound."""
    if read.pattern is None:
        queues = desk.ask(find_queues, read.queues)
        return queues, desk.ask(look, list(queues.values()))
    # The snapshot comes first: everything that it sees is in a queue that is found after it.
    before = desk.ask(look, [])
    queues = desk.ask(find_matching, read.pattern, read.access.config().spark_pattern_queues_max)
    after = desk.ask(look, list(queues.values()))
    return queues, replace(after, snapshot=before.snapshot, now=before.now)


def find_scope(
    connection: psycopg.Connection[Any],
    queues: Mapping[str, int],
    partitions: Sequence[str] | None,
    trace_id: str | None,
) -> Scope:
    """What is read of the queues. Partitions that do not exist are ignored."""
    names = {id_: name for name, id_ in queues.items()}
    if partitions is None:
        return Scope(names, None, trace_id)
    found = rows_of(connection, "partition_ids", list(names), list(partitions))
    return Scope(names, tuple(id_ for (id_,) in found), trace_id)


def find_seq_scope(connection: psycopg.Connection[Any], queues: Mapping[str, int], read: ReadOptions) -> Scope:
    """What is read of the queues if the options select seqs: only those partitions."""
    bounds: dict[int, tuple[int, int]] = {}
    for queue, id_ in queues.items():
        starts, ends = seqs_of(read.starting_seqs, queue), seqs_of(read.ending_seqs, queue)
        ids = [one for (one,) in rows_of(connection, "partition_ids", [id_], [*(starts | ends)])]
        for partition_id, name in rows_of(connection, "partition_names", ids):
            bounds[partition_id] = (starts.get(name, 0), ends.get(name, _SEQ_MAX))
    seqs = tuple((id_, first, end) for id_, (first, end) in sorted(bounds.items()))
    return Scope({id_: name for name, id_ in queues.items()}, tuple(bounds), read.trace_id, seqs)


def seqs_of(seqs: Seqs | None, queue: str) -> dict[str, int]:
    """The seqs of a queue, by partition."""
    return {partition: seq for of, partition, seq in seqs or () if of in (None, queue)}


def scope_of(desk: Desk, queues: Mapping[str, int], read: ReadOptions) -> Scope:
    """What is read of the queues, according to the options."""
    if read.starting_seqs is not None or read.ending_seqs is not None:
        return desk.ask(find_seq_scope, queues, read)
    return desk.ask(find_scope, queues, read.partitions, read.trace_id)


def first_since(connection: psycopg.Connection[Any], queue_ids: Sequence[int], at: datetime) -> int | None:
    """The first segment created at or after a time. Scans all segments."""
    [[found]] = rows_of(connection, "segment_first_since", list(queue_ids), at)
    first: int | None = found
    return first


def check_system(system: str, found: str) -> None:
    """Raises CheckpointMismatch if an offset belongs to another database."""
    if system != found:
        raise CheckpointMismatch(
            f"the checkpoint belongs to another database: it was made on {system}, and this is {found}. A stream on "
            "another database, or on a restored one, needs a new checkpoint"
        )


def place_of(position: ReadPosition, found: Look, *, option: str) -> SnapshotPlace | None:
    """The place that an option names; None if it names a time."""
    match position.kind:
        case "earliest":
            return EARLIEST
        case "latest":
            return SnapshotPlace.at(found.snapshot)
        case "offset":
            assert position.place is not None
            return place_given(position.place, position.system, found, option=option)
    return None


def place_given(place: SnapshotPlace, system: str | None, found: Look, *, option: str) -> SnapshotPlace:
    """A place that an option gives as an offset. Raises CheckpointMismatch if it belongs to another database."""
    try:
        check_system(system or found.system, found.system)
        check_reached(place, found.snapshot)
    except CheckpointMismatch as error:
        raise CheckpointMismatch(f"the option {option} is an offset that does not fit: {error.message}") from error
    return place


def check_reached(place: SnapshotPlace, snapshot: Snapshot) -> None:
    """Raises CheckpointAhead if an offset is ahead of the database, which must then have lost data."""
    if place.to.xmax > snapshot.xmax:
        raise CheckpointAhead(_AHEAD)


def check_known(connection: psycopg.Connection[Any], offset: Offset, snapshot: Snapshot) -> None:
    """Raises CheckpointAhead if the database lacks something that the offset counts as read."""
    match "known" if offset.mark is None else mark_state(connection, offset.stream, offset.mark):
        case "lost":
            raise CheckpointAhead(
                f"{_AHEAD}. To go on from the last position that the stream published here, and read again what came "
                f"after it, run lockstep streams accept {offset.stream}, or give the option onFailover=continue",
                stream=offset.stream,
            )
        case "forgotten":
            raise CheckpointMismatch(
                f"the checkpoint was put back by more than {MARKS_KEPT} batches, of which the database knows nothing "
                "any more. The stream needs a new checkpoint; its option startingPosition takes the old offset"
            )
    check_reached(offset.place, snapshot)


def mark_state(connection: psycopg.Connection[Any], stream: str, mark: Mark) -> str:
    """What the database knows of a mark: `known`, `lost`, or `forgotten`."""
    call = _MARK_STATE(stream_id=stream, ordinal=mark.ordinal, mark=mark.token)
    return result_of(cursor_of(connection), call)


def mark(connection: psycopg.Connection[Any], stream: str) -> Mark:
    """Leave a mark after everything that the connection has seen."""
    token = str(uuid4())
    call = _MARK(stream_id=stream, mark=token, kept=MARKS_KEPT)
    return Mark(result_of(cursor_of(connection), call), token)


def published(connection: psycopg.Connection[Any], stream: str) -> tuple[SnapshotPlace | None, bool]:
    """The position that the stream last published here, and whether it may continue from there although its checkpoint
    is ahead."""
    found = rows_of(connection, "spark_position_last", stream)
    if not found:
        return None, False
    [[base, upto, segment, accepted]] = found
    return SnapshotPlace(Snapshot.parse(base), Snapshot.parse(upto), segment), accepted


@dataclass(frozen=True, slots=True)
class Witness:
    """Lets a task check that its connection leads to the planned database, and not to a promoted server."""

    timeline: str
    stream: str | None = None
    mark: Mark | None = None

    def check(self, connection: psycopg.Connection[Any]) -> None:
        """Raises CheckpointAhead, Unavailable."""
        if self.stream is not None and self.mark is not None:
            if mark_state(connection, self.stream, self.mark) == "lost":
                raise CheckpointAhead(f"{_AHEAD}: it took over while the batch was read", stream=self.stream)
            return
        found = look(connection, []).timeline
        if found != self.timeline:
            raise Unavailable(
                f"another server took over since the read was planned, on {self.timeline}: this is {found}. Read again"
            )


def publish(
    connection: psycopg.Connection[Any],
    *,
    stream: str,
    name: str,
    queue_ids: Sequence[int],
    hold_seconds: float,
    read: SnapshotPlace,
    committed: SnapshotPlace | None,
) -> None:
    """Publish the position of the stream."""
    call = _PUBLISH(
        stream_id=stream,
        name=name,
        queue_ids=list(queue_ids),
        hold_seconds=float(hold_seconds),
        read_base=str(read.base),
        read_upto=str(read.to),
        read_segment=read.segment,
        committed_base=None if committed is None else str(committed.base),
        committed_upto=None if committed is None else str(committed.to),
        committed_segment=None if committed is None else committed.segment,
    )
    result_of(cursor_of(connection), call)


def note_plan(connection: psycopg.Connection[Any], *, stream: str, place: SnapshotPlace) -> None:
    """Record where the stream's current batch ends."""
    arguments = [stream, str(place.base), str(place.to), place.segment]
    cursor_of(connection).execute(sql.query("spark_position_plan"), arguments)


def has_before(connection: psycopg.Connection[Any], queue_ids: Sequence[int], place: SnapshotPlace) -> bool:
    """Whether queues have messages that the place counts as read."""
    [[found]] = rows_of(
        connection, "spark_queue_before", list(queue_ids), str(place.base), str(place.to), place.segment
    )
    return bool(found)


def begun_at(connection: psycopg.Connection[Any], stream: str) -> datetime | None:
    """When the stream first published its position; None if it is unknown."""
    [[found]] = rows_of(connection, "spark_position_begin", stream)
    begun: datetime | None = found
    return begun


def count_lost(
    connection: psycopg.Connection[Any],
    *,
    queue_ids: Sequence[int],
    partition_ids: Sequence[int] | None,
    since: datetime,
    place: SnapshotPlace,
    upto: Snapshot,
) -> int:
    """How many messages after the place were removed before they could be read."""
    partitions = None if partition_ids is None else list(partition_ids)
    read = (str(place.base), str(place.to), place.segment)
    [[lost]] = rows_of(connection, "spark_removal_after", list(queue_ids), partitions, since, str(upto), *read)
    return int(lost)

"""What a stream asks of the database beside messages, and what it tells it: where the database is, and how far it is.

A published position shows as lag beside the consumer groups', holds back retention, and lets whoever removes messages
note which of them the stream had still to read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
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
from lockstep.spark.database import Access, explained
from lockstep.spark.offsets import Mark, Offset, Place, Snapshot
from lockstep.spark.segments import Scope

_AHEAD = (
    "the checkpoint is ahead of the database, which lost what it had last: a replica took over, or a backup was "
    "restored. What was pushed since would be missed"
)

T = TypeVar("T")
P = ParamSpec("P")

# Of one statement, so that the snapshot is the one that the look for foreign segments is made with.
_LOOK = """
select pg_current_snapshot()::text, clock_timestamp(), pg_is_in_recovery(),
       (select c.system_identifier from pg_control_system() c) || '/'
           || (select d.oid from pg_database d where d.datname = current_database()),
       case when not pg_is_in_recovery() then left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) end,
       exists (
           select 1 from lockstep.segment s
           where s.queue_id = any (%(queue_ids)s) and s.txid >= pg_snapshot_xmax(pg_current_snapshot())
       )
"""
_QUEUES = "select q.name, q.id from lockstep.queue q where q.name = any (%(names)s)"
_PARTITIONS = """
select p.id from lockstep.partition p
where p.queue_id = any (%(queue_ids)s) and p.name = any (%(names)s) order by p.id
"""
_FIRST_SINCE = """
select min(s.id) from lockstep.segment s where s.queue_id = any (%(queue_ids)s) and s.created_at >= %(at)s
"""
_PUBLISH = """
select lockstep.publish_position(
    %(stream)s, %(name)s, %(queue_ids)s, %(hold_seconds)s,
    %(read_base)s::pg_snapshot, %(read_to)s::pg_snapshot, %(read_segment)s,
    %(committed_base)s::pg_snapshot, %(committed_to)s::pg_snapshot, %(committed_segment)s
)
"""
_NOTE_PLAN = """
update lockstep.spark_position
set planned_base = %(base)s::pg_snapshot, planned_upto = %(to)s::pg_snapshot, planned_segment = %(segment)s
where stream_id = %(stream)s
"""
_BEGUN = "select min(p.created_at) from lockstep.spark_position p where p.stream_id = %(stream)s"
_LOST = """
select coalesce(sum(n.messages), 0)::bigint from lockstep.spark_removal n
where n.queue_id = any (%(queue_ids)s) and n.removed_at >= %(since)s
  and (%(partition_ids)s::bigint[] is null or n.partition_id = any (%(partition_ids)s))
  and pg_visible_in_snapshot(n.txid, %(upto)s::pg_snapshot)
  and not lockstep.is_read(%(base)s::pg_snapshot, %(to)s::pg_snapshot, %(segment)s, n.txid, n.segment_id)
"""


_MARK = "select lockstep.mark_position(%(stream)s, %(mark)s, %(kept)s)"
_MARK_STATE = "select lockstep.mark_state(%(stream)s, %(ordinal)s, %(mark)s)"
_PUBLISHED = """
select p.read_base::text, p.read_upto::text, p.read_segment, p.accepted_at is not null
from lockstep.spark_position p where p.stream_id = %(stream)s order by p.queue_id limit 1
"""

MARKS_KEPT = 1000
"""Spark keeps the offsets of 100 batches, if it is not told otherwise."""


@dataclass(frozen=True, slots=True)
class Look:
    """The database at an instant."""

    snapshot: Snapshot
    now: datetime
    system: str
    timeline: str


class Desk:
    """One connection of the driver for all that it asks; opened anew when it was lost in between."""

    def __init__(self, access: Access, *, opened: Callable[[psycopg.Connection[Any]], None] | None = None) -> None:
        """`opened` is called with each connection before anything is asked."""
        self._access = access
        self._opened = opened
        self._open: ExitStack | None = None
        self._connection: psycopg.Connection[Any] | None = None
        self._is_held = False

    def together(self, work: Callable[[], T]) -> T:
        """Run `work`, all of whose questions go to one connection, and so to one timeline of the database. If the
        connection was lost, `work` is run once more; it must be safe to run twice."""
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
        """Call a function with the connection. What is asked must be safe to ask twice."""
        if self._connection is not None:
            try:
                with explained():
                    return question(self._connection, *args, **kwargs)
            except Unavailable:
                # It may have been closed while nobody used it.
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
    """Where the database is. Raises Conflict where positions mean nothing."""
    [[snapshot, now, standby, system, timeline, foreign]] = connection.execute(
        _LOOK, {"queue_ids": list(queue_ids)}
    ).fetchall()
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
    found = dict(connection.execute(_QUEUES, {"names": list(names)}).fetchall())
    missing = [name for name in names if name not in found]
    if missing:
        raise QueueNotFound(f"there is no queue {', '.join(map(repr, missing))}", queue=missing[0])
    return {name: found[name] for name in names}


def find_scope(
    connection: psycopg.Connection[Any],
    queues: Mapping[str, int],
    partitions: Sequence[str] | None,
    trace_id: str | None,
) -> Scope:
    """What is read of the queues. Of partitions that do not exist there is nothing to read."""
    names = {id_: name for name, id_ in queues.items()}
    if partitions is None:
        return Scope(names, None, trace_id)
    found = connection.execute(_PARTITIONS, {"queue_ids": list(names), "names": list(partitions)}).fetchall()
    return Scope(names, tuple(id_ for (id_,) in found), trace_id)


def first_since(connection: psycopg.Connection[Any], queue_ids: Sequence[int], at: datetime) -> int | None:
    """The first segment that was created at or after a time. Looks at all of them."""
    [[found]] = connection.execute(_FIRST_SINCE, {"queue_ids": list(queue_ids), "at": at}).fetchall()
    first: int | None = found
    return first


def check_system(system: str, found: str) -> None:
    """Raises CheckpointMismatch if an offset is of another database."""
    if system != found:
        raise CheckpointMismatch(
            f"the checkpoint belongs to another database: it was made on {system}, and this is {found}. A stream on "
            "another database, or on a restored one, needs a new checkpoint"
        )


def place_given(place: Place, system: str | None, found: Look, *, option: str) -> Place:
    """A place that an option gives as an offset. Raises CheckpointMismatch if it is none of this database."""
    try:
        check_system(system or found.system, found.system)
        check_reached(place, found.snapshot)
    except CheckpointMismatch as error:
        raise CheckpointMismatch(f"the option {option} is an offset that does not fit: {error.message}") from error
    return place


def check_reached(place: Place, snapshot: Snapshot) -> None:
    """Raises CheckpointAhead if an offset is ahead of the database, which then lost what it had."""
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
    given = {"stream": stream, "ordinal": mark.ordinal, "mark": mark.token}
    [[state]] = connection.execute(_MARK_STATE, given).fetchall()
    return str(state)


def mark(connection: psycopg.Connection[Any], stream: str) -> Mark:
    """Leave a mark behind all that the connection has seen."""
    token = str(uuid4())
    given = {"stream": stream, "mark": token, "kept": MARKS_KEPT}
    [[ordinal]] = connection.execute(_MARK, given).fetchall()
    return Mark(ordinal, token)


def published(connection: psycopg.Connection[Any], stream: str) -> tuple[Place | None, bool]:
    """What the stream had processed when it last published its position here, and whether it may go on from there
    though its checkpoint is ahead."""
    found = connection.execute(_PUBLISHED, {"stream": stream}).fetchone()
    if found is None:
        return None, False
    base, upto, segment, accepted = found
    return Place(Snapshot.parse(base), Snapshot.parse(upto), segment), accepted


@dataclass(frozen=True, slots=True)
class Witness:
    """By which a task knows that its connection leads to what was planned, and not to a server that took over."""

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
    read: Place,
    committed: Place | None,
) -> None:
    """Tell how far the stream is."""
    given: dict[str, Any] = {
        "stream": stream,
        "name": name,
        "queue_ids": list(queue_ids),
        "hold_seconds": float(hold_seconds),
    }
    for what, place in (("read", read), ("committed", committed)):
        given[f"{what}_base"] = None if place is None else str(place.base)
        given[f"{what}_to"] = None if place is None else str(place.to)
        given[f"{what}_segment"] = None if place is None else place.segment
    connection.execute(_PUBLISH, given)


def note_plan(connection: psycopg.Connection[Any], *, stream: str, place: Place) -> None:
    """Note where the batch ends that the stream runs now."""
    given = {"stream": stream, "base": str(place.base), "to": str(place.to), "segment": place.segment}
    connection.execute(_NOTE_PLAN, given)


def begun_at(connection: psycopg.Connection[Any], stream: str) -> datetime | None:
    """When the stream first published its position; None if nothing is known of it."""
    [[found]] = connection.execute(_BEGUN, {"stream": stream}).fetchall()
    begun: datetime | None = found
    return begun


def count_lost(
    connection: psycopg.Connection[Any],
    *,
    queue_ids: Sequence[int],
    partition_ids: Sequence[int] | None,
    since: datetime,
    place: Place,
    upto: Snapshot,
) -> int:
    """How many messages after the place were removed before they could be read."""
    given = {
        "queue_ids": list(queue_ids),
        "partition_ids": None if partition_ids is None else list(partition_ids),
        "since": since,
        "upto": str(upto),
        "base": str(place.base),
        "to": str(place.to),
        "segment": place.segment,
    }
    [[lost]] = connection.execute(_LOST, given).fetchall()
    return int(lost)

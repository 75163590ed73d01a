"""What a stream in lease mode says to the database: lease, keep, renew, ack, release; as any consumer does.

What is leased is written down under an ordinal, in the transaction that leases it, so that a restart finds it and a
sink on the same database can ack it in its own transaction.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

import psycopg
from psycopg import RawCursor

from lockstep.config import Config
from lockstep.core.ids import shared_lease, uuid7
from lockstep.errors import Conflict, LeaseLost, QueueNotFound, SparkStreamNotFound
from lockstep.spark.transactions import cursor_of, prepare, repeated, row_of
from lockstep.storage.postgres.cache import NameCache
from lockstep.storage.postgres.failures import Dying
from lockstep.storage.postgres.forwarding import forward
from lockstep.storage.postgres.pushing import Encryption
from lockstep.storage.postgres.within import converse

T = TypeVar("T")

_FIND_QUEUE = "select q.id, q.lease_seconds from lockstep.queue q where q.name = $1"
_SUBSCRIBE = "select * from lockstep.subscribe($1::int, $2::text, $3::text, $4::timestamptz, null, $5::timestamptz)"
_LAST = "select coalesce(max(l.ordinal), 0) from lockstep.spark_lease l where l.stream = $1"
_START = (
    "select coalesce(min(l.ordinal) filter (where l.acked_at is null) - 1, max(l.ordinal), 0) "
    "from lockstep.spark_lease l where l.stream = $1"
)
_HAS_UNACKED = (
    "select exists (select 1 from lockstep.spark_lease l where l.stream = $1 and l.ordinal > $2 and l.acked_at is null)"
)
_LEASE = (
    "select * from lockstep.spark_lease($1, $2::bigint, $3::int, $4::int, $5::int, $6::bigint, $7::uuid, "
    "$8::timestamptz)"
)
_UNACKED = (
    "select l.ordinal, g.mode = 'shared' from lockstep.spark_lease l "
    "left join lockstep.consumer_group g on g.id = l.group_id "
    "where l.stream = $1 and l.ordinal > $2 and l.ordinal <= $3 and l.acked_at is null order by l.ordinal"
)
_KEEP = "select lockstep.spark_keep($1, $2::bigint, $3::bigint, $4::uuid, $5::timestamptz)"
_PLANNED = (
    "update lockstep.spark_lease l set planned_at = coalesce($4::timestamptz, clock_timestamp()) "
    "where l.stream = $1 and l.ordinal > $2 and l.ordinal <= $3 and l.acked_at is null"
)
_RUNS = (
    "select t.partition_id, t.first_seq, t.last_seq, t.segment_id, l.queue_id from lockstep.spark_lease l "
    "cross join lateral unnest(l.partition_ids, l.first_seqs, l.last_seqs, l.segment_ids) "
    "t (partition_id, first_seq, last_seq, segment_id) "
    "where l.stream = $1 and l.ordinal > $2 and l.ordinal <= $3 and l.acked_at is null "
    "order by t.segment_id, t.partition_id, t.first_seq"
)
_HELD = (
    "select l.lease_id from lockstep.spark_lease l "
    "where l.stream = $1 and l.acked_at is null and l.planned_at is not null order by l.ordinal for no key update"
)
_OPEN = "select l.lease_id from lockstep.spark_lease l where l.stream = $1 and l.acked_at is null order by l.ordinal"
_IS_KNOWN = (
    "select exists (select 1 from lockstep.spark_lease l where l.stream = $1) "
    "or exists (select 1 from lockstep.spark_position p where p.name = $1)"
)
_ACK = "select * from lockstep.spark_ack($1, $2::bigint, $3::timestamptz)"
_RENEW = "select * from lockstep.renew($1::uuid[], $2::bigint[], $3::timestamptz)"
_BEGUN = (
    "select l.lease_id from lockstep.spark_lease l "
    "where l.stream = $1 and l.ordinal > $2 and l.acked_at is null and l.planned_at is not null order by l.ordinal"
)
_UNPLANNED = (
    "select l.lease_id from lockstep.spark_lease l "
    "where l.stream = $1 and l.acked_at is null and l.planned_at is null order by l.ordinal"
)
_UNPLAN = "update lockstep.spark_lease l set planned_at = null where l.stream = $1 and l.lease_id = any ($2::uuid[])"
_RELEASE = (
    "select * from lockstep.ack_items($1::uuid[], $2::bigint[], $2::bigint[], $3::text[], $3::text[], $4::text[], "
    "$5::text[], $6::timestamptz[], $7::timestamptz) t"
)
_LOCK = "select lockstep.lock_for_transaction('{}'::int[], '{}'::bigint[], $1::uuid[])"
_HURRY = "set local lock_timeout = '100ms'"
_PENDING = (
    "select coalesce(sum(lockstep.behind(c)), 0)::bigint from lockstep.consumer_group g "
    "join lockstep.partition p on p.queue_id = g.queue_id "
    "cross join lateral lockstep.cursor_at(g, p.id) c where g.id = any ($1::int[])"
)

_PATIENCE = "set local lock_timeout = '5s'"
_CLAIM = "select pg_advisory_lock(hashtextextended($1, 7017281906))"

_LAST_ORDINAL = 2**62


@dataclass(frozen=True, slots=True)
class Group:
    """A consumer group on a queue, by its ids."""

    queue: str
    queue_id: int
    group_id: int
    shared: bool
    lease_seconds: int


@dataclass(frozen=True, slots=True)
class LeasedRun:
    """Consecutive messages of one partition that are leased, and the segment that they are in."""

    partition_id: int
    first_seq: int
    last_seq: int
    segment_id: int
    queue_id: int


@dataclass(frozen=True, slots=True)
class Acked:
    """What an ack did."""

    messages: int
    lost: Sequence[str] = ()
    """Queues and partitions in which some of the messages were under another lease by then, or under none."""


def claim(connection: psycopg.Connection[Any], stream: str) -> None:
    """Have a stream for as long as the connection lasts. Two queries that have one would take each other's leases, and
    ack them. Raises Conflict; a driver that was killed has the stream until PostgreSQL notices, which is waited for."""
    cursor = cursor_of(connection)
    try:
        with connection.transaction():
            cursor.execute(_PATIENCE)
            cursor.execute(_CLAIM, [stream])
    except psycopg.errors.LockNotAvailable:
        raise Conflict(
            f"the option streamName is {stream!r}, which another query that runs now has, too: each needs its own",
            stream=stream,
        ) from None


class Leases:
    """The leases of one stream, on one connection. `at` is the time where it is set."""

    def __init__(
        self,
        connection: psycopg.Connection[Any],
        stream: str,
        config: Config,
        *,
        clock: Callable[[], datetime | None] = lambda: None,
    ) -> None:
        self._connection = connection
        self._stream = stream
        self._config = config
        self._clock = clock
        prepare(connection)

    def subscribe(self, queue: str, group: str, *, mode: str, from_at: datetime | None) -> Group:
        """The group on the queue, which is created if it is not there. Raises QueueNotFound."""
        found = self._cursor().execute(_FIND_QUEUE, [queue]).fetchone()
        if found is None:
            raise QueueNotFound(f"there is no queue {queue!r}", queue=queue)
        row = self._row(_SUBSCRIBE, [found[0], group, mode, from_at, self._clock()])
        return Group(queue, found[0], row[0], row[1] == "shared", found[1])

    def last(self) -> int:
        """The last ordinal that was leased; 0 if none was."""
        return int(self._row(_LAST, [self._stream])[0])

    def start(self) -> int:
        """The ordinal before the first that is not acked; the last one if all are."""
        return int(self._row(_START, [self._stream])[0])

    def has_unacked(self, after: int) -> bool:
        return bool(self._row(_HAS_UNACKED, [self._stream, after])[0])

    def lease(self, group: Group, *, after: int, partitions: int, messages: int) -> tuple[int, int] | None:
        """Lease messages of a group under a new ordinal after `after`: which one, and how many; None if there are
        none."""
        now = time.time_ns()
        lease_id = shared_lease(now) if group.shared else uuid7(now)
        arguments = [self._stream, after, group.group_id, partitions, messages, None, lease_id, self._clock()]
        ordinal, leased = self._with_deaths(lambda: self._row(_LEASE, arguments), [])
        return None if ordinal is None else (ordinal, int(leased))

    def keep(self, after: int, upto: int) -> None:
        """Take what the ordinals have leased under new leases: all of it that nobody else has, or has done."""
        for ordinal, is_shared in self._cursor().execute(_UNACKED, [self._stream, after, upto]).fetchall():
            now = time.time_ns()
            lease_id = shared_lease(now) if is_shared else uuid7(now)
            arguments = [self._stream, ordinal, None, lease_id, self._clock()]
            self._repeated(partial(self._row, _KEEP, arguments))

    def plan(self, after: int, upto: int) -> list[LeasedRun]:
        """The runs that the ordinals have leased; from now on a sink may ack them."""
        with self._connection.transaction():
            self._cursor().execute(_PLANNED, [self._stream, after, upto, self._clock()])
            rows = self._cursor().execute(_RUNS, [self._stream, after, upto]).fetchall()
        return [LeasedRun(*row) for row in rows]

    def renew(self) -> int:
        """Move the deadlines of all leases; returns of how many partitions they are."""
        lease_ids = self._lease_ids(_OPEN, [self._stream])
        if not lease_ids:
            return 0
        arguments = [lease_ids, [None] * len(lease_ids), self._clock()]
        rows = self._repeated(lambda: self._cursor().execute(_RENEW, arguments).fetchall())
        return sum(row[1] for row in rows)

    def ack(self, upto: int) -> Acked:
        """Ack what was planned of the ordinals up to one, and not acked by a sink."""
        return self._repeated(lambda: _acked(self._row(_ACK, [self._stream, upto, self._clock()])))

    def fail(self, after: int, error: str) -> None:
        """Let go of what was planned of the ordinals after one, and did not come to its end: that charges an attempt,
        and what has used up its attempts dies."""
        lease_ids = self._lease_ids(_BEGUN, [self._stream, after])
        self._release(lease_ids, "failed", error)

    def release(self) -> None:
        """Let go of what was not planned, to be delivered at once."""
        self._release(self._lease_ids(_UNPLANNED, [self._stream]), "released", None)

    def _release(self, lease_ids: Sequence[UUID], status: str, error: str | None) -> None:
        if not lease_ids:
            return
        count = len(lease_ids)
        none = [None] * count
        arguments = [lease_ids, none, none, [status] * count, [error] * count, none, self._clock()]

        def work() -> None:
            self._cursor().execute(_RELEASE, arguments)
            self._cursor().execute(_UNPLAN, [self._stream, lease_ids])

        self._with_deaths(work, lease_ids)

    def pending(self, groups: Sequence[Group]) -> int:
        """How many messages the groups have not done."""
        return int(self._row(_PENDING, [[group.group_id for group in groups]])[0])

    def _lease_ids(self, statement: str, arguments: Sequence[Any]) -> list[UUID]:
        return [row[0] for row in self._cursor().execute(statement, arguments).fetchall()]

    def _with_deaths(self, work: Callable[[], T], lease_ids: Sequence[UUID]) -> T:
        """Run `work` in a transaction; where a message dies in it whose queue has a dead queue, in one that pushes it
        there (storage/postgres/forwarding.py)."""
        try:
            return self._repeated(work)
        except Dying:
            return self._repeated(lambda: self._forwarding(work, lease_ids), hurried=not lease_ids)

    def _forwarding(self, work: Callable[[], T], lease_ids: Sequence[UUID]) -> T:
        cursor = self._cursor()
        cursor.execute(_LOCK, [list(lease_ids)])
        result = work()
        if not lease_ids:  # a pop, which knows what dies only when it holds cursors: it waits for nobody
            cursor.execute(_HURRY)
        names = NameCache(self._config.partition_cache_entries_max)
        converse(self._connection, forward(names, encryption=Encryption.of(self._config), at=self._clock()))
        return result

    def _repeated(self, work: Callable[[], T], *, hurried: bool = False) -> T:
        attempts_max = self._config.transaction_attempts_max
        return repeated(self._connection, work, attempts_max=attempts_max, hurried=hurried)

    def _cursor(self) -> RawCursor[Any]:
        return cursor_of(self._connection)

    def _row(self, statement: str, arguments: Sequence[Any]) -> Any:
        return row_of(self._cursor(), statement, arguments)


def held_by(cursor: RawCursor[Any], stream: str) -> list[UUID]:
    """The leases of the batch that a stream has planned, for a sink that acks them in its transaction.

    Raises SparkStreamNotFound if the database knows no such stream: then it is another database's.
    """
    lease_ids = [row[0] for row in cursor.execute(_HELD, [stream]).fetchall()]
    if not lease_ids and cursor.execute(_IS_KNOWN, [stream]).fetchone() == (False,):
        raise SparkStreamNotFound(
            f"the option commitStream names {stream!r}, of which this database knows nothing: source and sink must be "
            "the same database, and the source must have that streamName",
            stream=stream,
        )
    return lease_ids


def ack_within(cursor: RawCursor[Any], stream: str) -> int:
    """Ack the batch that a stream has planned, in the caller's transaction. Raises LeaseLost if some of it is lost."""
    row = cursor.execute(_ACK, [stream, _LAST_ORDINAL, None]).fetchone()
    acked = _acked(row)
    if acked.lost:
        raise LeaseLost(
            f"stream {stream!r} has lost its lease on {', '.join(acked.lost[:5])}"
            f"{' and others' if len(acked.lost) > 5 else ''}: it was not renewed in time; nothing was written",
            stream=stream,
        )
    return acked.messages


def _acked(row: Any) -> Acked:
    return Acked(int(row[0]), tuple(row[1] or ()))

"""The database calls of a stream in lease mode: lease, keep, renew, ack, release, like any consumer.

Each lease is recorded under an ordinal, in the transaction that takes it, so that a restart finds it and a
sink on the same database can ack it in its own transaction.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

import psycopg
from psycopg import RawCursor

from lockstep.config import Config
from lockstep.core.ids import shared_lease, uuid7
from lockstep.errors import LeaseLost, QueueNotFound, SparkStreamNotFound
from lockstep.spark.database import cursor_of, result_of, results_of, rows_of
from lockstep.spark.transactions import prepare, repeated
from lockstep.storage.postgres import sql
from lockstep.storage.postgres.cache import NameCache
from lockstep.storage.postgres.encryption import Encryption
from lockstep.storage.postgres.failures import Dying
from lockstep.storage.postgres.forwarding import forward
from lockstep.storage.postgres.within import converse

T = TypeVar("T")


class _Subscribed(NamedTuple):
    group_id: int
    group_mode: str
    placed: bool


class _Leased(NamedTuple):
    ordinal: int | None
    messages: int


class _AckedUpto(NamedTuple):
    messages: int
    lost: list[str] | None


_SUBSCRIBE = sql.procedure("subscribe", _Subscribed)
_LEASE = sql.procedure("spark_lease", _Leased)
_KEEP: sql.Procedure[None] = sql.procedure("spark_keep")
_ACK = sql.procedure("spark_ack", _AckedUpto)
_RENEW: sql.Procedure[tuple[Any, int, Any]] = sql.procedure("renew")
_RELEASE: sql.Procedure[tuple[Any, ...]] = sql.procedure("ack_items")
_LOCK: sql.Procedure[None] = sql.procedure("lock_for_transaction")
_HURRY = "set local lock_timeout = '100ms'"
_LAST_ORDINAL = 2**62


@dataclass(frozen=True, slots=True)
class LeaseGroup:
    """A consumer group on a queue, by its ids."""

    queue: str
    queue_id: int
    group_id: int
    shared: bool
    lease_seconds: int


@dataclass(frozen=True, slots=True)
class LeasedRun:
    """Consecutive leased messages of one partition, and their segment."""

    partition_id: int
    first_seq: int
    last_seq: int
    segment_id: int
    queue_id: int


class Attempt(NamedTuple):
    """The delivery attempt of the messages of a partition."""

    partition_id: int
    first_seq: int
    last_seq: int | None
    """None: all messages from the first one on."""
    attempt: int


@dataclass(frozen=True, slots=True)
class Acked:
    """The result of an ack."""

    messages: int
    lost: Sequence[str] = ()
    """Queues and partitions in which some messages are under another lease, or under none."""


class StreamLeases:
    """The leases of one stream, on one connection. `at` overrides the clock."""

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

    def subscribe(self, queue: str, group: str, *, mode: str, from_at: datetime | None) -> LeaseGroup:
        """The group on the queue; created if it does not exist. Raises QueueNotFound."""
        found = self._rows("queue_lease", queue)
        if not found:
            raise QueueNotFound(f"there is no queue {queue!r}", queue=queue)
        [[queue_id, lease_seconds]] = found
        call = _SUBSCRIBE(queue_id=queue_id, group=group, mode=mode, from_at=from_at, given_mode=None, at=self._clock())
        subscribed = result_of(self._cursor(), call)
        return LeaseGroup(queue, queue_id, subscribed.group_id, subscribed.group_mode == "shared", lease_seconds)

    def last(self) -> int:
        """The last leased ordinal; 0 if there is none."""
        return int(self._value("spark_lease_last", self._stream))

    def start(self) -> int:
        """The ordinal before the first that is not acked; the last one if all are acked."""
        return int(self._value("spark_lease_start", self._stream))

    def has_unacked(self, after: int) -> bool:
        return bool(self._lease_ids(after))

    def lease(self, group: LeaseGroup, *, after: int, partitions: int, messages: int) -> tuple[int, int] | None:
        """Lease messages of a group under a new ordinal after `after`; returns the ordinal and the number of messages,
        or None if there are none."""
        call = _LEASE(
            stream=self._stream,
            after=after,
            group_id=group.group_id,
            partitions=partitions,
            batch=messages,
            lease_ms=None,
            lease_id=_new_lease(group.shared),
            at=self._clock(),
        )
        leased = self._with_deaths(lambda: result_of(self._cursor(), call), [])
        return None if leased.ordinal is None else (leased.ordinal, int(leased.messages))

    def keep(self, after: int, upto: int) -> None:
        """Take the messages of the ordinals under new leases, except those that others have leased or done."""
        for ordinal, is_shared in self._rows("spark_lease_unacked", self._stream, after, upto):
            call = _KEEP(
                stream=self._stream,
                ordinal=ordinal,
                lease_ms=None,
                lease_id=_new_lease(is_shared),
                at=self._clock(),
            )
            self._repeated(partial(result_of, self._cursor(), call))

    def plan(self, after: int, upto: int) -> list[LeasedRun]:
        """The runs that the ordinals have leased; from now on a sink may ack them."""
        with self._connection.transaction():
            self._execute("spark_lease_plan", self._stream, after, upto, self._clock())
            rows = self._rows("spark_lease_runs", self._stream, after, upto)
        return [LeasedRun(*row) for row in rows]

    def attempts(self, after: int, upto: int) -> list[Attempt]:
        """The delivery attempts of the messages of a batch; messages that are no longer leased are left out."""
        return [Attempt(*row) for row in self._rows("spark_lease_attempts", self._stream, after, upto)]

    def renew(self) -> int:
        """Extend the deadlines of all leases; returns the number of partitions."""
        lease_ids = self._lease_ids()
        if not lease_ids:
            return 0
        call = _RENEW(lease_ids=lease_ids, milliseconds=[None] * len(lease_ids), at=self._clock())
        return sum(partitions for _, partitions, _ in self._repeated(lambda: results_of(self._cursor(), call)))

    def ack(self, upto: int) -> Acked:
        """Ack the planned messages up to an ordinal that no sink has acked."""
        call = _ACK(stream=self._stream, upto=upto, at=self._clock())
        return self._repeated(lambda: _acked(result_of(self._cursor(), call)))

    def fail(self, after: int, error: str) -> None:
        """Give up what was planned after an ordinal and did not finish: that charges an attempt, and messages without
        attempts left die."""
        self._release(self._lease_ids(after, planned=True), "failed", error)

    def release(self) -> None:
        """Release messages that were not planned, for immediate delivery."""
        self._release(self._lease_ids(planned=False), "released", None)

    def _release(self, lease_ids: Sequence[UUID], status: str, error: str | None) -> None:
        if not lease_ids:
            return
        count = len(lease_ids)
        none = [None] * count
        call = _RELEASE(
            lease_ids=lease_ids,
            partition_ids=none,
            seqs=none,
            transaction_ids=none,
            groups=none,
            statuses=[status] * count,
            errors=[error] * count,
            retry_ats=none,
            at=self._clock(),
        )

        def work() -> None:
            results_of(self._cursor(), call)
            self._execute("spark_lease_unplan", self._stream, lease_ids)

        self._with_deaths(work, lease_ids)

    def pending(self, groups: Sequence[LeaseGroup]) -> int:
        """Number of messages that the groups have not done."""
        return int(self._value("group_behind", [group.group_id for group in groups]))

    def _lease_ids(self, after: int = 0, *, planned: bool | None = None) -> list[UUID]:
        """The leases that are not acked."""
        return [lease_id for (lease_id,) in self._rows("spark_lease_ids", self._stream, after, planned)]

    def _with_deaths(self, work: Callable[[], T], lease_ids: Sequence[UUID]) -> T:
        """Run `work` in a transaction; if a message of a queue with a dead queue dies in it, in one that pushes it
        there (storage/postgres/forwarding.py)."""
        try:
            return self._repeated(work)
        except Dying:
            return self._repeated(lambda: self._forwarding(work, lease_ids), hurried=not lease_ids)

    def _forwarding(self, work: Callable[[], T], lease_ids: Sequence[UUID]) -> T:
        cursor = self._cursor()
        result_of(cursor, _LOCK(queue_ids=[], partition_ids=[], lease_ids=list(lease_ids)))
        result = work()
        if not lease_ids:  # a pop learns what dies only when it holds cursors, so it must not wait
            cursor.execute(_HURRY)
        names = NameCache(self._config.partition_cache_entries_max)
        converse(self._connection, forward(names, encryption=Encryption.of(self._config), at=self._clock()))
        return result

    def _repeated(self, work: Callable[[], T], *, hurried: bool = False) -> T:
        attempts_max = self._config.transaction_attempts_max
        return repeated(self._connection, work, attempts_max=attempts_max, hurried=hurried)

    def _cursor(self) -> RawCursor[Any]:
        return cursor_of(self._connection)

    def _rows(self, query: str, *arguments: Any) -> list[Any]:
        return rows_of(self._connection, query, *arguments)

    def _value(self, query: str, *arguments: Any) -> Any:
        [[value]] = self._rows(query, *arguments)
        return value

    def _execute(self, query: str, *arguments: Any) -> None:
        self._cursor().execute(sql.query(query), arguments)


def held_by(cursor: RawCursor[Any], stream: str) -> list[UUID]:
    """The leases of the batch that a stream has planned, for a sink that acks them in its transaction.

    Raises SparkStreamNotFound if the database does not know the stream, which then belongs to another database.
    """
    lease_ids = [lease_id for (lease_id,) in cursor.execute(sql.query("spark_lease_hold"), [stream]).fetchall()]
    if not lease_ids and cursor.execute(sql.query("spark_stream_known"), [stream]).fetchone() == (False,):
        raise SparkStreamNotFound(
            f"the option commitStream names {stream!r}, of which this database knows nothing: source and sink must be "
            "the same database, and the source must have that streamName",
            stream=stream,
        )
    return lease_ids


def ack_within(cursor: RawCursor[Any], stream: str) -> int:
    """Ack the batch that a stream has planned, in the caller's transaction. Raises LeaseLost if some of it is lost."""
    acked = _acked(result_of(cursor, _ACK(stream=stream, upto=_LAST_ORDINAL, at=None)))
    if acked.lost:
        raise LeaseLost(
            f"stream {stream!r} has lost its lease on {', '.join(acked.lost[:5])}"
            f"{' and others' if len(acked.lost) > 5 else ''}: it was not renewed in time; nothing was written",
            stream=stream,
        )
    return acked.messages


def _acked(row: _AckedUpto) -> Acked:
    return Acked(int(row.messages), tuple(row.lost or ()))


def _new_lease(is_shared: bool) -> UUID:
    now = time.time_ns()
    return shared_lease(now) if is_shared else uuid7(now)

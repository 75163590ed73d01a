"""What a write says to the database: tasks stage parts, and one commit pushes those of the attempts that count.

Nothing is visible before the commit, which is one transaction: the batch is written down as done, everything is locked,
numbered and pushed, and the stage is emptied. A batch that was written down before writes nothing again. Parts whose
messages turn out to be duplicates, or to belong to a queue that is encrypted by now, are packed anew on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import psycopg
from psycopg import RawCursor

from lockstep.config import Config
from lockstep.spark.leasing import ack_within, held_by
from lockstep.spark.transactions import cursor_of, prepare, repeated, row_of
from lockstep.spark.writer_options import WriteOptions
from lockstep.storage.postgres.pushing import Encryption

if TYPE_CHECKING:
    from pyarrow import RecordBatch

_BEGIN = "select lockstep.spark_begin($1::text, $2::bigint, $3::bigint, $4::float8, null)"
_OPEN = "select lockstep.spark_open($1::uuid[], $2::int[], $3::bigint[], $4::uuid[], null)"
_READ = "select lockstep.spark_read($1, null)"
_PUSH = "select * from lockstep.spark_push($1::uuid[], $2::boolean, null)"
_ABORT = "delete from lockstep.spark_stage s where s.attempt = any ($1::uuid[])"
_SWEEP = "select lockstep.spark_sweep($1::text, $2::bigint, $3::float8, null)"
_ANNOUNCE = "select pg_notify('lockstep_push', '')"


Also = Callable[[RawCursor[Any], Sequence[UUID], Sequence[UUID]], None]
"""What else a commit does, given the attempts that it pushes and the leases that it acks."""


@dataclass(frozen=True, slots=True)
class Place:
    """Which task of which batch a part is of."""

    sink: str
    batch_id: int
    task: int
    attempt: UUID


@dataclass(frozen=True, slots=True)
class Staged:
    """What one attempt at a task has staged; this is what the commit knows of it."""

    place: Place
    parts: int
    messages: int


@dataclass(frozen=True, slots=True)
class Committed:
    """What a commit did."""

    messages: int
    """Those that were staged; what was a duplicate among them is counted, too."""
    new: bool = True
    """False: the batch had been committed before, and nothing was written."""


def stage(options: WriteOptions, batches: Iterable[RecordBatch], *, sink: str, batch_id: int, task: int) -> Staged:
    """Write the rows of a task to the stage, each part as soon as it is full."""
    # Tasks alone need Arrow: a commit, which is a process of its own for every batch, begins sooner without it.
    from lockstep.spark.parts import put

    return put(options, batches, Place(sink, batch_id, task, uuid4()))


def commit(
    options: WriteOptions, staged: Sequence[Staged], *, batch: tuple[str, int] | None, also: Also | None = None
) -> Committed:
    """Push what was staged, in one transaction. `batch` is the sink and its batch that is written once; None: as often
    as it is committed. `also` is done in the same transaction, before the push and its locks.

    Raises what a push raises, Conflict if the stage is not complete or if nobody can say whether the batch was written,
    and LeaseLost if messages that the batch has read in lease mode are no longer its own. Nothing is written then.
    """
    config = options.access.config()
    with options.access.connect() as connection:
        prepare(connection)
        committed = repeated(
            connection,
            lambda: _commit(
                cursor_of(connection), config, staged, batch=batch, stream=options.commit_stream, also=also
            ),
            attempts_max=config.transaction_attempts_max,
        )
        sink, batch_id = batch or (staged[0].place.sink if staged else "", 0)
        _tidy(connection, sink, batch_id, config.spark_stage_seconds_max)
        return committed


def _commit(
    cursor: RawCursor[Any],
    config: Config,
    staged: Sequence[Staged],
    *,
    batch: tuple[str, int] | None,
    stream: str | None,
    also: Also | None,
) -> Committed:
    messages = sum(one.messages for one in staged)
    if batch is not None and not _is_new(cursor, config, batch, messages):
        return Committed(messages, new=False)
    lease_ids = [] if stream is None else held_by(cursor, stream)
    counted = [one for one in staged if one.parts]
    attempts = [one.place.attempt for one in counted]
    counts = [one.parts for one in counted], [one.messages for one in counted]
    if also is not None:
        also(cursor, attempts, lease_ids)
    cursor.execute(_OPEN, [attempts, *counts, lease_ids])
    if stream is not None:
        ack_within(cursor, stream)
        cursor.execute(_READ, [stream])
    _push(cursor, attempts, Encryption.of(config))
    return Committed(messages)


def _is_new(cursor: RawCursor[Any], config: Config, batch: tuple[str, int], messages: int) -> bool:
    return bool(row_of(cursor, _BEGIN, [*batch, messages, config.spark_batch_seconds_max])[0])


def _push(cursor: RawCursor[Any], attempts: Sequence[UUID], encryption: Encryption) -> None:
    while True:
        trouble, attempt, number, *duplicates = row_of(cursor, _PUSH, [attempts, encryption.plain_allowed])
        if trouble is None:
            return
        from lockstep.spark.parts import pack_anew

        pack_anew(cursor, attempt, number, duplicates, encryption)


def abort(options: WriteOptions, staged: Sequence[Staged]) -> None:
    """Take what was staged off the stage."""
    if staged:
        with options.access.connect() as connection:
            cursor_of(connection).execute(_ABORT, [[one.place.attempt for one in staged]])


def _tidy(connection: psycopg.Connection[Any], sink: str, batch_id: int, seconds_max: float) -> None:
    """After a commit: remove what dead attempts have left, and tell those who wait that there is something. Neither is
    a reason to say that the commit failed."""
    cursor = cursor_of(connection)
    for statement, arguments in ((_ANNOUNCE, []), (_SWEEP, [sink, batch_id, seconds_max])):
        try:
            cursor.execute(statement, arguments)
        except psycopg.Error:
            return

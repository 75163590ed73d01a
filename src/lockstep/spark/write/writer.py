"""The database calls of a write: tasks stage parts, and one commit pushes those of the successful attempts.

Nothing is visible before the commit, which is one transaction: the batch is recorded as done, everything is locked,
numbered and pushed, and the stage is emptied. A batch that is already recorded writes nothing. Parts with duplicates,
or for a queue that has become encrypted, are repacked on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import psycopg
from psycopg import RawCursor

from lockstep.config import Config
from lockstep.spark.database import cursor_of, result_of
from lockstep.spark.lease.leases import ack_within, held_by
from lockstep.spark.transactions import prepare, repeated
from lockstep.spark.write.write_options import WriteOptions
from lockstep.storage.postgres import sql
from lockstep.storage.postgres.calls import Call
from lockstep.storage.postgres.encryption import Encryption

if TYPE_CHECKING:
    from pyarrow import RecordBatch

_BEGIN: sql.Procedure[bool] = sql.procedure("spark_begin")
_OPEN: sql.Procedure[None] = sql.procedure("spark_open")
_READ: sql.Procedure[None] = sql.procedure("spark_read")
_PUSH: sql.Procedure[tuple[Any, ...]] = sql.procedure("spark_push")
_DUPLICATES: sql.Procedure[None] = sql.procedure("spark_duplicates")
_SWEEP: sql.Procedure[None] = sql.procedure("spark_sweep")
_NOTIFY: Call[Any] = Call("notify", "select pg_notify('lockstep_push', '')", ())


@dataclass(frozen=True, slots=True)
class Also:
    """Further actions of a commit in its transaction."""

    before: Callable[[RawCursor[Any], Sequence[UUID], Sequence[UUID]], None]
    """Runs before the push and its locks, with the attempts to push and the leases to ack."""
    after: Callable[[RawCursor[Any], CommittedBatch], None]
    """Runs when the result of the push is known."""


@dataclass(frozen=True, slots=True)
class TaskAttempt:
    """The task and batch that a part belongs to."""

    sink: str
    batch_id: int
    task: int
    attempt: UUID


@dataclass(frozen=True, slots=True)
class Staged:
    """What one attempt at a task has staged; the commit knows only this."""

    place: TaskAttempt
    parts: int
    messages: int
    repeats: int = 0
    """Rows that were left out because they repeat a transaction id of their task."""


@dataclass(frozen=True, slots=True)
class CommittedBatch:
    """The result of a commit."""

    messages: int
    """Number of messages pushed."""
    duplicates: int = 0
    """Rows that were not pushed, because their partition already has their transaction id."""
    new: bool = True
    """False: the batch had been committed before, and nothing was written."""


def stage(options: WriteOptions, batches: Iterable[RecordBatch], *, sink: str, batch_id: int, task: int) -> Staged:
    """Write the rows of a task to the stage, each part as soon as it is full."""
    # Only tasks need Arrow: a commit, which is a separate process for every batch, starts sooner without it.
    from lockstep.spark.write.parts import put

    return put(options, batches, TaskAttempt(sink, batch_id, task, uuid4()))


def commit(
    options: WriteOptions, staged: Sequence[Staged], *, batch: tuple[str, int] | None, also: Also | None = None
) -> CommittedBatch:
    """Push what was staged, in one transaction. `batch` names the sink and its batch, which is written only once; with
    None it is written on every commit. `also` runs in the same transaction.

    Raises the errors of a push, Conflict if the stage is incomplete or if it is unknown whether the batch was written,
    and LeaseLost if messages that the batch has read in lease mode are no longer leased by it. Nothing is written in
    these cases.
    """
    config = options.access.config()
    with options.access.connect() as connection:
        prepare(connection)
        committed = repeated(
            connection,
            lambda: _commit(cursor_of(connection), config, options, staged, batch=batch, also=also),
            attempts_max=config.transaction_attempts_max,
        )
        sink, batch_id = batch or (staged[0].place.sink if staged else "", 0)
        _tidy(connection, sink, batch_id, config.spark_stage_seconds_max)
        return committed


def _commit(
    cursor: RawCursor[Any],
    config: Config,
    options: WriteOptions,
    staged: Sequence[Staged],
    *,
    batch: tuple[str, int] | None,
    also: Also | None,
) -> CommittedBatch:
    stream, encryption = options.commit_stream, Encryption.of(config)
    messages = sum(one.messages for one in staged)
    if batch is not None and not _is_new(cursor, config, batch, messages):
        return CommittedBatch(messages, new=False)
    lease_ids = [] if stream is None else held_by(cursor, stream)
    counted = [one for one in staged if one.parts]
    if counted and options.order_by:
        from lockstep.spark.write.parts import put_in_order

        counted = [one for one in put_in_order(cursor, options, counted, config, encryption) if one.parts]
    attempts = [one.place.attempt for one in counted]
    parts, sizes = [one.parts for one in counted], [one.messages for one in counted]
    if also is not None:
        also.before(cursor, attempts, lease_ids)
    result_of(cursor, _OPEN(attempts=attempts, parts=parts, messages=sizes, lease_ids=lease_ids, at=None))
    if stream is not None:
        ack_within(cursor, stream)
        result_of(cursor, _READ(stream=stream, at=None))
    found = _push(cursor, attempts, encryption)
    done = CommittedBatch(messages - found, found + sum(one.repeats for one in staged))
    if batch is not None and done.duplicates:
        result_of(cursor, _DUPLICATES(sink=batch[0], messages=found, duplicates=done.duplicates))
    if also is not None:
        also.after(cursor, done)
    return done


def _is_new(cursor: RawCursor[Any], config: Config, batch: tuple[str, int], messages: int) -> bool:
    sink, batch_id = batch
    keep = config.spark_batch_seconds_max
    return result_of(cursor, _BEGIN(sink=sink, batch_id=batch_id, messages=messages, keep_seconds=keep, at=None))


def _push(cursor: RawCursor[Any], attempts: Sequence[UUID], encryption: Encryption) -> int:
    """Returns how many messages were duplicates."""
    found = 0
    while True:
        call = _PUSH(attempts=attempts, plain_allowed=encryption.plain_allowed, at=None)
        trouble, attempt, number, *duplicates = result_of(cursor, call)
        if trouble is None:
            return found
        from lockstep.spark.write.parts import pack_anew

        found += pack_anew(cursor, attempt, number, duplicates, encryption)


def abort(options: WriteOptions, staged: Sequence[Staged]) -> None:
    """Remove the staged messages."""
    if staged:
        with options.access.connect() as connection:
            attempts = [one.place.attempt for one in staged]
            cursor_of(connection).execute(sql.query("spark_stage_remove"), [attempts, None])


def _tidy(connection: psycopg.Connection[Any], sink: str, batch_id: int, seconds_max: float) -> None:
    """After a commit: remove leftovers of dead attempts, and notify the waiting pops. A failure of either is not a
    failure of the commit."""
    cursor = cursor_of(connection)
    for call in (_NOTIFY, _SWEEP(sink=sink, batch_id=batch_id, seconds=seconds_max, at=None)):
        try:
            result_of(cursor, call)
        except psycopg.Error:
            return

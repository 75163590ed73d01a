"""The end of a batch: one transaction that pushes the staged messages, turns rejected ones into dead letters, and
records the progress of the step. A repeated batch finds itself recorded and does nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from psycopg import RawCursor

from lockstep.config import Config
from lockstep.core.ids import split_message_id
from lockstep.spark.database import Access, result_of, rows_of
from lockstep.spark.pipelines.pipeline import Step
from lockstep.spark.pipelines.rejects import Rejected
from lockstep.spark.pipelines.sources import source_queues
from lockstep.spark.write import writer
from lockstep.spark.write.write_options import Delivery, WriteOptions
from lockstep.spark.write.writer import Also, CommittedBatch, Staged
from lockstep.storage.postgres import sql
from lockstep.storage.postgres.cache import NameCache
from lockstep.storage.postgres.encryption import Encryption
from lockstep.storage.postgres.forwarding import forward
from lockstep.storage.postgres.within import converse

_OPEN: sql.Procedure[None] = sql.procedure("pipeline_open")
_REJECT: sql.Procedure[int] = sql.procedure("pipeline_reject")
_BATCH: sql.Procedure[None] = sql.procedure("pipeline_batch")


@dataclass(frozen=True, slots=True)
class StepBatch:
    """A batch of a step."""

    sink: str
    batch_id: int


@dataclass(frozen=True, slots=True)
class BatchOutcome:
    """The result of a batch, before it is committed."""

    staged: Sequence[Staged] = ()
    rejected: Sequence[Rejected] = ()
    read: Mapping[str, int] = field(default_factory=dict)
    """Number of rows of each queue; empty if the function has read none."""

    @property
    def messages(self) -> int:
        """Number of staged messages."""
        return sum(one.messages for one in self.staged)


@dataclass(frozen=True, slots=True)
class BatchDone:
    """What a batch has done."""

    rows_in: int | None = 0
    """None: Spark will report it."""
    pushed: int = 0
    duplicates: int = 0
    rejected: int = 0


def sink_options(step: Step, access: Access) -> WriteOptions:
    """The write options of a step."""
    queue = step.sinks[0] if step.sinks and not step.routed else None
    if step.sink_dsn_env is not None:
        access = replace(access, dsn=None, dsn_env=step.sink_dsn_env)
    stream = step.full_name if step.sink_dsn_env is None else None
    delivery: Delivery = "ids" if step.dedupe else "append"
    return WriteOptions(access=access, queue=queue, commit_stream=stream, delivery=delivery)


def is_committed(access: Access, place: StepBatch) -> bool:
    """Whether the batch was written before. With two databases, the one written last decides."""
    with access.connect() as connection:
        [[known]] = rows_of(connection, "spark_batch_known", place.sink, place.batch_id)
        return bool(known)


def commit(step: Step, access: Access, place: StepBatch, outcome: BatchOutcome) -> BatchDone:
    """Commit a batch. Raises the errors of a push, and LeaseLost; in that case nothing is written."""
    batch = (place.sink, place.batch_id)
    options = sink_options(step, access)
    config = access.config()

    def reject(cursor: RawCursor[Any], attempts: Sequence[UUID], lease_ids: Sequence[UUID]) -> None:
        _reject(cursor, step, outcome.rejected, attempts, lease_ids, config)

    def note(cursor: RawCursor[Any], pushed: CommittedBatch) -> None:
        read = outcome.read
        if step.by_pattern and not read:
            # Spark counts the rows, but this records that the step reads these queues.
            read = dict.fromkeys(source_queues(step, cursor.connection, config), 0)
        call = _BATCH(
            pipeline=step.pipeline,
            step=step.name,
            batch_id=place.batch_id,
            pushed=pushed.messages,
            rejected=len(outcome.rejected),
            duplicates=pushed.duplicates,
            queues=list(read),
            read=list(read.values()),
            at=None,
        )
        result_of(cursor, call)

    if step.sink_dsn_env is None:
        done = writer.commit(options, outcome.staged, batch=batch, also=Also(reject, note))
    else:
        # With two databases, each takes the batch once, and the one that decides whether it was written comes last.
        done = writer.commit(options, outcome.staged, batch=batch)
        here = replace(options, access=access, commit_stream=step.full_name)
        writer.commit(here, [], batch=batch, also=Also(reject, lambda cursor, _: note(cursor, done)))
    rows_in = sum(outcome.read.values()) if outcome.read else None
    return BatchDone(rows_in, done.messages, done.duplicates, len(outcome.rejected))


def _reject(
    cursor: RawCursor[Any],
    step: Step,
    rejected: Sequence[Rejected],
    attempts: Sequence[UUID],
    lease_ids: Sequence[UUID],
    config: Config,
) -> None:
    if not rejected:
        return
    segments, ordinals = zip(*(split_message_id(one.message_id) for one in rejected), strict=True)
    errors = [one.error[: config.error_text_length_max].replace("\x00", "\ufffd") for one in rejected]
    where = {
        "queue_ids": list(source_queues(step, cursor.connection, config).values()),
        "segments": list(segments),
        "ordinals": list(ordinals),
    }
    result_of(cursor, _OPEN(**where, attempts=list(attempts), lease_ids=list(lease_ids)))
    result_of(cursor, _REJECT(**where, group=step.dead_group, errors=errors, at=None))
    names = NameCache(config.partition_cache_entries_max)
    converse(cursor.connection, forward(names, encryption=Encryption.of(config), at=None))

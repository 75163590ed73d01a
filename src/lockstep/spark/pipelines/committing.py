"""The end of a batch: one transaction that pushes what was staged, makes dead letters of what was rejected, and says
how far the step is. A batch that comes again finds itself written down, and does nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from psycopg import RawCursor

from lockstep.config import Config
from lockstep.core.ids import split_message_id
from lockstep.spark import writer
from lockstep.spark.database import Access
from lockstep.spark.pipelines.pipeline import Step
from lockstep.spark.pipelines.rejects import Rejected
from lockstep.spark.transactions import cursor_of, row_of
from lockstep.spark.writer import Staged
from lockstep.spark.writer_options import WriteOptions
from lockstep.storage.postgres.cache import NameCache
from lockstep.storage.postgres.forwarding import forward
from lockstep.storage.postgres.pushing import Encryption
from lockstep.storage.postgres.within import converse

_COMMITTED = "select exists (select 1 from lockstep.spark_batch b where b.sink = $1 and b.batch_id >= $2)"
_QUEUE_IDS = "select coalesce(array_agg(q.id), '{}') from lockstep.queue q where q.name = any ($1::text[])"
_OPEN = "select lockstep.pipeline_open($1::int[], $2::uuid[], $3::int[], $4::uuid[], $5::uuid[])"
_REJECT = "select lockstep.pipeline_reject($1, $2::int[], $3::uuid[], $4::int[], $5::text[], null)"
_BATCH = "select lockstep.pipeline_batch($1, $2, $3, $4, $5, null)"


@dataclass(frozen=True, slots=True)
class Place:
    """A batch of a step."""

    sink: str
    batch_id: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a batch, before it is committed."""

    staged: Sequence[Staged] = ()
    rejected: Sequence[Rejected] = ()
    rows_in: int | None = None
    """Where it was read more than once: how many rows it has. Spark counts those that it reads."""

    @property
    def pushed(self) -> int:
        return sum(one.messages for one in self.staged)


def sink_options(step: Step, access: Access) -> WriteOptions:
    """How a step writes."""
    queue = step.sinks[0] if step.sinks and not step.routed else None
    if step.sink_dsn_env is not None:
        return WriteOptions(access=replace(access, dsn=None, dsn_env=step.sink_dsn_env), queue=queue)
    return WriteOptions(access=access, queue=queue, commit_stream=step.full_name)


def is_committed(access: Access, place: Place) -> bool:
    """Whether the batch was written before. Both databases are asked where there are two: this is the one that is
    written last."""
    with access.connect() as connection:
        return bool(row_of(cursor_of(connection), _COMMITTED, [place.sink, place.batch_id])[0])


def commit(step: Step, access: Access, place: Place, outcome: Outcome) -> None:
    """Commit a batch. Raises what a push raises, and LeaseLost; nothing is written then."""
    batch = (place.sink, place.batch_id)
    options = sink_options(step, access)
    config = access.config()

    def notes(cursor: RawCursor[Any], attempts: Sequence[UUID], lease_ids: Sequence[UUID]) -> None:
        _reject(cursor, step, outcome.rejected, attempts, lease_ids, config)
        arguments = [step.pipeline, step.name, place.batch_id, outcome.pushed, len(outcome.rejected)]
        cursor.execute(_BATCH, arguments)

    if step.sink_dsn_env is None:
        writer.commit(options, outcome.staged, batch=batch, also=notes)
        return
    # Two databases: each takes the batch once, and the one that is asked whether it is written comes last.
    writer.commit(options, outcome.staged, batch=batch)
    writer.commit(replace(options, access=access, commit_stream=step.full_name), [], batch=batch, also=notes)


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
    [queue_ids] = row_of(cursor, _QUEUE_IDS, [list(step.sources)])
    where = [queue_ids, list(segments), list(ordinals)]
    cursor.execute(_OPEN, [*where, list(attempts), list(lease_ids)])
    cursor.execute(_REJECT, [step.dead_group, *where, errors])
    names = NameCache(config.partition_cache_entries_max)
    converse(cursor.connection, forward(names, encryption=Encryption.of(config), at=None))

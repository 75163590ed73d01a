"""Short ways to say what a test of the Spark sink writes, and what is stored then."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import psycopg
import pyarrow as pa
from psycopg.rows import tuple_row

from lockstep.core.codec import NO_KEYS
from lockstep.core.messages import Message, Run
from lockstep.core.sealing import Keyring
from lockstep.spark.write.write_options import WriteOptions
from lockstep.spark.write.writer import CommittedBatch, Staged, commit, stage
from lockstep.storage.postgres.encryption import Encryption
from lockstep.storage.postgres.segments import LOAD_SEGMENTS, decode_segment

_RUNS = """
select q.name, p.name, p.id, r.first_seq, r.last_seq, r.segment_id, r.ordinal
from lockstep.run r join lockstep.partition p on p.id = r.partition_id join lockstep.queue q on q.id = p.queue_id
where q.name = %s and r.segment_id is not null order by p.name, r.first_seq
"""


def rows(**columns: Iterable[Any]) -> pa.RecordBatch:
    """Rows as Spark hands them over: payloads, and other columns by name."""
    return pa.record_batch({name: _array(values) for name, values in columns.items()})


def _array(values: Iterable[Any]) -> pa.Array:
    listed = list(values)
    return pa.array(listed, pa.string()) if all(value is None for value in listed) else pa.array(listed)


def numbered(count: int, *, start: int = 1, partitions: int = 1) -> pa.RecordBatch:
    """Numbered payloads, dealt out to partitions p0, p1, …"""
    numbers = range(start, start + count)
    return rows(payload=[f'{{"n":{n}}}' for n in numbers], partition=[f"p{n % partitions}" for n in numbers])


def options(dsn: str, **given: str) -> WriteOptions:
    return WriteOptions.of({"dsn": dsn, "queue": "orders", **given})


def staged(
    dsn: str, *batches: pa.RecordBatch, sink: str = "query", batch_id: int = 0, task: int = 0, **given: str
) -> Staged:
    return stage(options(dsn, **given), batches, sink=sink, batch_id=batch_id, task=task)


def committed(dsn: str, *parts: Staged, sink: str = "query", batch_id: int | None = 0, **given: str) -> CommittedBatch:
    return commit(options(dsn, **given), parts, batch=None if batch_id is None else (sink, batch_id))


def written(dsn: str, *batches: pa.RecordBatch, batch_id: int = 0, **given: str) -> CommittedBatch:
    """Stage and commit the rows as one batch of one task."""
    return committed(dsn, staged(dsn, *batches, batch_id=batch_id, **given), batch_id=batch_id, **given)


def query(dsn: str, statement: str, *arguments: Any) -> list[Any]:
    with psycopg.connect(dsn, autocommit=True, row_factory=tuple_row) as connection:
        cursor = connection.execute(statement, arguments)  # type: ignore[call-overload]
        return cursor.fetchall() if cursor.description else []


def stored(dsn: str, queue: str = "orders", *, key: bytes | None = None) -> dict[str, list[Message]]:
    """The messages of a queue by partition, in the order of their seqs."""
    found: dict[str, list[Message]] = {}
    with psycopg.connect(dsn, row_factory=tuple_row) as connection:
        for queue_name, partition, partition_id, first, last, segment_id, ordinal in connection.execute(_RUNS, [queue]):
            with psycopg.RawCursor(connection, row_factory=tuple_row) as cursor:
                row = cursor.execute(LOAD_SEGMENTS(ids=[segment_id]).sql, [[segment_id]]).fetchone()
            segment = decode_segment(row, Encryption(NO_KEYS if key is None else Keyring((key,))))
            columns = segment.columns.slice(ordinal, ordinal + last - first + 1)
            run = Run(queue_name, partition, partition_id, first, segment.uuid, ordinal, segment.created_at, columns)
            found.setdefault(partition, []).extend(run.messages())
    return found


def numbers(dsn: str, queue: str = "orders") -> dict[str, list[int]]:
    """The numbers of numbered messages by partition."""
    return {name: [message.json()["n"] for message in messages] for name, messages in stored(dsn, queue).items()}


def problems(dsn: str) -> list[Any]:
    """What verify finds."""
    partitions = query(dsn, "select kind, problem from lockstep.verify(null, 0, null, null)")
    return partitions + query(dsn, "select kind, problem from lockstep.verify_segments(null, 0, null)")


def left_on_stage(dsn: str) -> int:
    """Parts that are staged; no messages may be left of others."""
    [[parts]] = query(dsn, "select count(*) from lockstep.spark_stage")
    assert query(dsn, "select count(*) from lockstep.segment where queue_id = 0") == [(parts,)]
    return int(parts)


def wait_for_waiter(dsn: str, text: str, *, seconds: float = 30, alive: Callable[[], bool] = lambda: True) -> None:
    """Returns when a statement with this text waits for a lock."""
    until = time.monotonic() + seconds
    waiters = (
        "select count(*) from pg_stat_activity "
        "where wait_event_type = 'Lock' and datname = current_database() and strpos(query, %s) > 0"
    )
    # On one connection, and not too often: what it waits for is a Spark that is starting, which needs the processor.
    with psycopg.connect(dsn, autocommit=True, row_factory=tuple_row) as looking:
        while looking.execute(waiters, [text]).fetchone() == (0,):
            assert alive(), "what should wait has ended"
            assert time.monotonic() < until, f"nothing waits: {text}"
            time.sleep(0.05)

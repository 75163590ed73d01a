"""Traces over several queues: their steps, the gaps between them, and where they stopped."""

from __future__ import annotations

from base64 import b64encode
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from uuid import uuid4

import pyarrow as pa
import pytest

from lockstep.config import load
from lockstep.core.policy import queue_options
from lockstep.core.records import Ack
from lockstep.errors import EncryptionUnavailable, InvalidOption, InvalidRequest
from lockstep.spark.database import Access
from lockstep.spark.jobs import traces
from lockstep.spark.jobs.traces import CURSORS, DEAD, IN_FLIGHT, TraceOptions, stitched, with_status
from lockstep.storage.postgres.store import PostgresStore
from support.builders import pop, push_n

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.xdist_group("spark")

NOW = datetime(2026, 5, 1, tzinfo=UTC)


def table(spark: SparkSession, schema: pa.Schema, *rows: tuple[object, ...]) -> DataFrame:
    columns = [pa.array([row[i] for row in rows], field.type) for i, field in enumerate(schema)]
    return spark.createDataFrame(pa.Table.from_arrays(columns, schema=schema))


def messages(spark: SparkSession, *rows: tuple[str, int, str, float]) -> DataFrame:
    """By queue, seq, trace and second."""
    full = [
        (queue, "p", seq, f"{n:04}", trace, NOW + timedelta(seconds=second), None)
        for n, (queue, seq, trace, second) in enumerate(rows)
    ]
    types = {"seq": "bigint", "created_at": "timestamp"}
    return spark.createDataFrame(full, ", ".join(f"{name} {types.get(name, 'string')}" for name in traces.COLUMNS))


def test_status_is_the_worst_of_all_groups(spark: SparkSession) -> None:
    rows = messages(spark, *[("q", seq, "t", seq) for seq in range(1, 7)], ("unread", 1, "t", 7), ("unread", 2, "t", 8))
    cursors = table(spark, CURSORS, ("q", "p", "fast", 6, 6), ("q", "p", "slow", 2, 3), ("q", "p", "shared", 6, 6))
    in_flight = table(spark, IN_FLIGHT, ("q", "p", "shared", 2, 2, False), ("q", "p", "shared", 6, 6, True))
    dead = table(spark, DEAD, ("q", "p", "slow", 1, "broken"), ("unread", "p", "orders.validate", 2, "rejected"))
    found = with_status(rows, cursors, in_flight, dead).orderBy("created_at").collect()
    assert [(row["rank"], row["group"], row["error"]) for row in found] == [
        (3, "slow", "broken"),
        (2, "shared", None),
        (1, "slow", None),
        (2, "slow", None),
        (2, "slow", None),
        (2, "slow", None),
        (2, None, None),
        (3, "orders.validate", "rejected"),
    ]


def test_steps_are_in_time_order_with_their_gaps(spark: SparkSession) -> None:
    rows = messages(spark, ("b", 1, "t", 2.5), ("a", 1, "t", 1), ("c", 1, "t", 3), ("a", 2, "u", 1))
    cursors = table(spark, CURSORS, *[(queue, "p", "g", 9, 9) for queue in ("a", "b", "c")])
    done = with_status(rows, cursors, table(spark, IN_FLIGHT), table(spark, DEAD))
    by_trace = {row["trace_id"]: row for row in stitched(done).collect()}
    steps = [(step["step"], step["queue"], step["gap"], step["elapsed"]) for step in by_trace["t"]["steps"]]
    assert steps == [(1, "a", 0, 0), (2, "b", 1_500_000, 1_500_000), (3, "c", 500_000, 2_000_000)]
    assert tuple(by_trace["t"]["longest"]) == (1_500_000, "a", "b")
    assert by_trace["t"]["stop"]["rank"] == 0
    assert len(by_trace["u"]["steps"]) == 1


async def test_trace_that_died_on_its_way(spark: SparkSession, database_dsn: str) -> None:
    store = PostgresStore(database_dsn)
    broken, fine = str(uuid4()), str(uuid4())
    await store.configure("charge", queue_options(retry_limit=0))
    await push_n(store, "intake", 2, trace_ids=[broken, fine])
    between = datetime.now(UTC)
    await push_n(store, "charge", 2, trace_ids=[broken, fine])
    await pop(store, "intake", batch=10, auto_ack=True)
    popped = await pop(store, "charge")
    await store.ack([Ack(lease_id=popped.lease_id, status="dlq", error="no money")])
    await pop(store, "charge", auto_ack=True)
    await push_n(store, "ship", 1, trace_ids=[fine])

    access = Access(dsn=database_dsn)
    [one] = traces.job(spark, TraceOptions(access=access, trace_id=broken))
    assert (one.trace_id, one.status, one.path) == (broken, "dead_letter", "intake → charge")
    assert (one.stopped_at, one.error, one.longest_gap) == ("charge", "no money", "intake → charge")
    assert [(step.queue, step.status, step.error) for step in one.steps] == [
        ("intake", "completed", None),
        ("charge", "dead_letter", "no money"),
    ]
    assert one.duration_seconds == one.steps[1].elapsed_seconds == one.longest_gap_seconds > 0
    every = {trace.trace_id: trace for trace in traces.job(spark, TraceOptions(access=access))}
    assert (every[fine].status, every[fine].stopped_at, every[fine].steps_count) == ("pending", "ship", 3)
    assert set(every) == {broken, fine}
    later = traces.job(spark, TraceOptions(access=access, from_at=between, queues=("intake", "ship"), limit=1))
    assert [(trace.trace_id, trace.path) for trace in later] == [(fine, "ship")]
    await pop(store, "ship", auto_ack=True)
    stopped = traces.job(spark, TraceOptions(access=access, stopped=True, order="slowest"))
    assert [trace.trace_id for trace in stopped] == [broken]
    assert traces.job(spark, TraceOptions(access=access, trace_id=str(uuid4()))) == []
    await store.close()


async def test_trace_begins_with_the_message_that_had_no_id(spark: SparkSession, database_dsn: str) -> None:
    """What follows it has its message id as trace id, as the steps of a pipeline see to."""
    store = PostgresStore(database_dsn)
    [first, _] = await push_n(store, "intake", 2)
    await push_n(store, "payment", 1, trace_ids=[first.message_id])
    access = Access(dsn=database_dsn)
    [one] = traces.job(spark, TraceOptions(access=access, trace_id=first.message_id))
    assert (one.path, one.steps_count) == ("intake → payment", 2)
    assert one.steps[0].message_id == one.trace_id == first.message_id
    [all_of_them] = traces.job(spark, TraceOptions(access=access))
    assert all_of_them == one
    await store.close()


async def test_encrypted_queues_are_left_out_and_named_without_a_key(spark: SparkSession, database_dsn: str) -> None:
    key = b64encode(bytes(32)).decode()
    store = PostgresStore(database_dsn, config=load({"encryption_key": key}))
    trace = str(uuid4())
    for queue, encrypted in (("open", False), ("secret", True), ("was-secret", True)):
        await store.configure(queue, queue_options(encryption=encrypted))
        await push_n(store, queue, 1, trace_ids=[trace])
    await store.configure("was-secret", queue_options(encryption=False))
    skipped: list[str] = []
    [one] = traces.job(spark, TraceOptions(access=Access(dsn=database_dsn)), skipped=skipped.extend)
    assert (one.path, skipped) == ("open", ["secret", "was-secret"])
    with pytest.raises(EncryptionUnavailable):
        traces.job(spark, TraceOptions(access=Access(dsn=database_dsn), queues=("secret",)))
    await store.close()


def test_database_without_queues_has_no_traces(spark: SparkSession, database_dsn: str) -> None:
    assert traces.job(spark, TraceOptions(access=Access(dsn=database_dsn))) == []


def test_bad_input_is_a_clear_error() -> None:
    with pytest.raises(InvalidRequest, match="trace id is not a UUID"):
        TraceOptions(trace_id="nonsense")
    with pytest.raises(InvalidOption, match="newest or slowest"):
        TraceOptions(order="fastest")  # type: ignore[arg-type]

"""The sink in Spark: batch and streaming writes, from queue to queue, with drivers that are killed in every phase."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from lockstep.core.messages import Batch
from lockstep.storage.postgres.cache import NameCache
from lockstep.storage.postgres.encryption import Encryption
from lockstep.storage.postgres.push.conversation import push_now
from lockstep.storage.postgres.within import converse
from support.spark_driver import copy, killed_while_waiting
from support.spark_writes import left_on_stage, numbered, numbers, problems, query, staged, stored

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.xdist_group("spark")

_LEASE = {"mode": "lease", "group": "spark", "streamName": "s", "sink_commitStream": "s"}

_AFTER_COMMIT = (
    "select from lockstep.segment s join lockstep.spark_stage p on p.segment_id = s.id where p.sink = 'old' "
    "for update of s",
    "spark_sweep",
)
"""What the sink waits for when it has committed, and Spark does not know it yet: it cannot sweep what is locked."""


def _stage_something_old(dsn: str) -> None:
    staged(dsn, numbered(1), sink="old")
    query(dsn, "update lockstep.spark_stage set staged_at = now() - interval '2 days' where sink = 'old'")


def _push(dsn: str, count: int, *, start: int = 1, partitions: int = 3, queue: str = "orders") -> None:
    """Numbered messages in pushes of ten, dealt out to partitions."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        for first in range(start, start + count, 10):
            span = range(first, min(first + 10, start + count))
            batches = [
                Batch.of(queue, [b'{"n":%d}' % n for n in span if n % partitions == lane], partition=f"p{lane}")
                for lane in range(partitions)
            ]
            batches = [batch for batch in batches if batch.columns.payloads]
            with connection.transaction():
                converse(connection, push_now(batches, NameCache(10), encryption=Encryption(), at=None))


def _expected(count: int, partitions: int = 3) -> dict[str, list[int]]:
    return {f"p{lane}": [n for n in range(1, count + 1) if n % partitions == lane] for lane in range(partitions)}


def _rows(spark: SparkSession, count: int) -> DataFrame:
    return spark.range(1, count + 1, 1, 2).selectExpr("concat('{\"n\":', id, '}') as payload", "'p' as partition")


def test_batch_write(spark: SparkSession, database_dsn: str) -> None:
    rows = _rows(spark, 20)
    rows.write.format("lockstep").options(dsn=database_dsn).mode("append").save("orders")
    assert sorted(numbers(database_dsn)["p"]) == list(range(1, 21))
    for _ in range(2):
        rows.write.format("lockstep").options(dsn=database_dsn, queue="once", delivery="dedupe").mode("append").save()
    assert sorted(numbers(database_dsn, "once")["p"]) == list(range(1, 21))
    assert left_on_stage(database_dsn) == 0


def test_rows_made_of_one_message_are_messages_of_their_own(spark: SparkSession, database_dsn: str) -> None:
    """The transaction id that a read gives is carried over only if that is asked for."""
    _push(database_dsn, 6, partitions=1)
    reads = spark.read.format("lockstep").options(dsn=database_dsn, queue="orders").load()
    tripled = reads.selectExpr("*", "explode(array(1, 2, 3)) as copy").drop("copy")
    tripled.write.format("lockstep").options(dsn=database_dsn, queue="all").mode("append").save()
    assert numbers(database_dsn, "all") == {"p0": [n for n in range(1, 7) for _ in range(3)]}
    given = {"dsn": database_dsn, "queue": "single", "delivery": "ids", "sinkId": "tripled", "batchId": "0"}
    tripled.write.format("lockstep").options(**given).mode("append").save()
    assert numbers(database_dsn, "single") == {"p0": list(range(1, 7))}
    counted = query(database_dsn, "select messages_total, duplicates_total from lockstep.spark_batch")
    assert counted == [(6, 12)]


@pytest.mark.parametrize("by", [[], ["partition"]], ids=["at random", "by partition"])
def test_order_survives_a_repartition(spark: SparkSession, database_dsn: str, tmp_path: Path, by: list[str]) -> None:
    _push(database_dsn, 200, partitions=5)
    given = {"dsn": database_dsn, "parallelism": "4", "queue": "orders"}
    batch = spark.read.format("lockstep").options(**given).load().repartition(3, *by)
    sink = {"dsn": database_dsn, "orderBy": "seq"}
    batch.write.format("lockstep").options(**sink).mode("append").save("sink")
    assert numbers(database_dsn, "sink") == _expected(200, 5)
    stream = spark.readStream.format("lockstep").options(**given, maxMessagesPerTrigger="70").load().repartition(3, *by)
    writer = stream.writeStream.format("lockstep").options(**sink, queue="streamed")
    writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start().awaitTermination()
    assert numbers(database_dsn, "streamed") == _expected(200, 5)


@pytest.mark.parametrize(
    ("change", "options", "mode", "text"),
    [
        (
            lambda df: df.selectExpr("payload as value"),
            {},
            "append",
            "needs a column 'payload'; the DataFrame has value",
        ),
        (lambda df: df.selectExpr("struct(payload) as payload"), {}, "append", "must be string or binary: .*to_json"),
        (lambda df: df.selectExpr("*", "1 as extra"), {}, "append", "the sink has no column 'extra'"),
        (lambda df: df.selectExpr("nullif(payload, payload) as payload"), {}, "append", "'payload' is null in row 1"),
        (lambda df: df, {"qeueu": "x"}, "append", "unknown option qeueu"),
        (lambda df: df, {}, "overwrite", "a queue cannot be overwritten"),
        (lambda df: df, {"sinkId": "x"}, "append", "sinkId needs a batch"),
        (lambda df: df, {"orderBy": "seq"}, "append", "'seq', by which the rows are to be ordered, is not there"),
        (lambda df: df, {"orderBy": "payload"}, "append", "'payload', by which .* is string: it must be tinyint"),
    ],
)
def test_bad_write_is_refused(
    spark: SparkSession,
    database_dsn: str,
    change: Callable[[DataFrame], DataFrame],
    options: dict[str, str],
    mode: str,
    text: str,
) -> None:
    given = {"dsn": database_dsn, "queue": "orders", **options}
    with pytest.raises(Exception, match=text) as raised:
        change(_rows(spark, 2)).write.format("lockstep").options(**given).mode(mode).save()
    assert database_dsn not in str(raised.value)
    assert not stored(database_dsn)
    assert left_on_stage(database_dsn) == 0


def test_stream_from_queue_to_queue(spark: SparkSession, database_dsn: str, tmp_path: Path) -> None:
    _push(database_dsn, 95)
    copy(spark, database_dsn, tmp_path, maxMessagesPerTrigger="30")
    assert numbers(database_dsn, "sink") == _expected(95)
    _push(database_dsn, 25, start=96)
    copy(spark, database_dsn, tmp_path)
    assert numbers(database_dsn, "sink") == _expected(120)
    assert not problems(database_dsn)


def test_commit_log_entry_that_is_lost(spark: SparkSession, database_dsn: str, tmp_path: Path) -> None:
    _push(database_dsn, 40)
    copy(spark, database_dsn, tmp_path)
    entries = sorted(int(entry.name) for entry in (tmp_path / "commits").iterdir() if entry.name.isdecimal())
    for entry in (tmp_path / "commits").glob(f"*{entries[-1]}*"):
        entry.unlink()
    _push(database_dsn, 10, start=41)
    copy(spark, database_dsn, tmp_path)
    assert numbers(database_dsn, "sink") == _expected(50)


def test_driver_that_is_killed_in_every_phase(spark: SparkSession, database_dsn: str, tmp_path: Path) -> None:
    dsn = database_dsn
    _push(dsn, 90)
    phases = {
        "while it reads": ("lock table lockstep.partition in access exclusive mode", "lockstep.partition"),
        "before it stages": ("lock table lockstep.spark_stage in share mode", "insert into lockstep.spark_stage"),
        "between stage and commit": ("lock table lockstep.spark_batch in share mode", "spark_begin"),
        "after the commit": _AFTER_COMMIT,
    }
    _stage_something_old(dsn)
    for phase, (lock, waiting) in phases.items():
        killed_while_waiting(dsn, tmp_path, lock, waiting, maxMessagesPerTrigger="30")
        is_written = sum(map(len, numbers(dsn, "sink").values())) > 0
        assert is_written == (phase == "after the commit"), phase
    assert not (tmp_path / "commits" / "0").exists(), "Spark knows nothing of the batch that is committed"
    copy(spark, dsn, tmp_path, maxMessagesPerTrigger="30")
    assert numbers(dsn, "sink") == _expected(90)
    assert left_on_stage(dsn) == 0
    assert not problems(dsn)


def test_foreach_batch_writes_once_by_sink_id(spark: SparkSession, database_dsn: str, tmp_path: Path) -> None:
    _push(database_dsn, 30)
    fails = [True]

    def write(batch: DataFrame, _batch_id: int) -> None:
        rows = batch.select("partition", "payload")
        for sink in ("left", "right"):
            rows.write.format("lockstep").options(dsn=database_dsn, queue=sink, sinkId=sink).mode("append").save()
            if sink == "left" and fails.pop():
                fails.append(False)
                raise RuntimeError("between the two")
            fails.append(False)

    def run() -> None:
        source = spark.readStream.format("lockstep").options(dsn=database_dsn, queue="orders", parallelism="1").load()
        stream = source.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path))
        stream.trigger(availableNow=True).start().awaitTermination()

    with pytest.raises(Exception, match="between the two"):
        run()
    assert numbers(database_dsn, "left") == _expected(30)
    run()
    assert numbers(database_dsn, "left") == numbers(database_dsn, "right") == _expected(30)


def _pop(dsn: str, count: int) -> dict[str, list[int]]:
    """What an ordinary consumer of the group takes and acks."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            "select lockstep.subscribe(q.id, 'spark', 'all', null, null, null) from lockstep.queue q "
            "where q.name = 'orders'"
        )
        connection.execute("select lockstep.place_slice(g.id, null, 1000, null) from lockstep.consumer_group g")
        rows = connection.execute(
            "select p.partition_name, p.first_seq, p.last_seq, p.lease_id from lockstep.consumer_group g "
            "cross join lateral lockstep.pop(array[0], array[g.id], array[null::bigint], array[1], array[%s], "
            "array[null::bigint], array[gen_random_uuid()], array[false], null) p where g.name = 'spark'",
            [count],
        ).fetchall()
        connection.execute("select lockstep.ack_leases(%s, null)", [[row[3] for row in rows]])
    found: dict[str, list[int]] = {}
    for partition, first, last, _ in rows:
        found.setdefault(partition, []).extend(range(first, last + 1))
    return found


def _acked(dsn: str) -> list[Any]:
    return query(
        dsn,
        "select lockstep.last_seq(c.partition_id) - c.acked, c.lease_id from lockstep.cursor c "
        "join lockstep.consumer_group g on g.id = c.group_id where g.name = 'spark'",
    )


def test_lease_mode_shares_a_group(spark: SparkSession, database_dsn: str, tmp_path: Path) -> None:
    _push(database_dsn, 90)
    [(partition, seqs)] = _pop(database_dsn, 7).items()
    copy(spark, database_dsn, tmp_path, **_LEASE, maxMessagesPerTrigger="40")
    expected = _expected(90)
    taken = expected[partition][: len(seqs)]
    expected[partition] = expected[partition][len(seqs) :]
    assert len(taken) == 7
    assert numbers(database_dsn, "sink") == expected
    assert _acked(database_dsn) == [(0, None)] * 3
    offsets = [json.loads(line) for line in (tmp_path / "offsets" / "0").read_text().splitlines() if "lease" in line]
    assert [offset["lease"] for offset in offsets] == [1]


def test_lease_mode_survives_a_kill_after_the_commit(spark: SparkSession, database_dsn: str, tmp_path: Path) -> None:
    dsn = database_dsn
    _push(dsn, 60)
    _stage_something_old(dsn)
    killed_while_waiting(dsn, tmp_path, *_AFTER_COMMIT, **_LEASE, maxMessagesPerTrigger="25")
    assert sum(map(len, numbers(dsn, "sink").values())) == 25
    copy(spark, dsn, tmp_path, **_LEASE, maxMessagesPerTrigger="25")
    assert numbers(dsn, "sink") == _expected(60)
    assert _acked(dsn) == [(0, None)] * 3
    assert not problems(dsn)


def test_lease_mode_into_another_sink_acks_when_it_is_done(
    spark: SparkSession, database_dsn: str, tmp_path: Path
) -> None:
    _push(database_dsn, 30)
    source = {"dsn": database_dsn, "queue": "orders", "mode": "lease", "group": "spark", "streamName": "s"}
    stream = spark.readStream.format("lockstep").options(**source).load().writeStream.format("parquet")
    stream.option("path", str(tmp_path / "out")).option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(
        availableNow=True
    ).start().awaitTermination()
    assert spark.read.parquet(str(tmp_path / "out")).count() == 30
    assert _acked(database_dsn) == [(0, None)] * 3


def test_complete_results_come_anew_with_each_batch(spark: SparkSession, database_dsn: str, tmp_path: Path) -> None:
    def run() -> None:
        found = spark.readStream.format("lockstep").options(dsn=database_dsn, queue="orders").load()
        counts = found.groupBy("partition").count().selectExpr("partition", "to_json(struct(count as n)) as payload")
        writer = counts.writeStream.format("lockstep").options(dsn=database_dsn, queue="counts").outputMode("complete")
        writer = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
        writer.start().awaitTermination()

    _push(database_dsn, 30)
    run()
    _push(database_dsn, 5, start=31, partitions=1)
    run()
    assert numbers(database_dsn, "counts") == {"p0": [10, 15], "p1": [10, 10], "p2": [10, 10]}
    assert problems(database_dsn) == []


def test_update_is_not_for_sinks_in_python(spark: SparkSession, database_dsn: str, tmp_path: Path) -> None:
    """What the guide says of Spark. If this fails, the sink may have it."""
    from pyspark.errors import StreamingQueryException

    _push(database_dsn, 3)
    found = spark.readStream.format("lockstep").options(dsn=database_dsn, queue="orders").load()
    counts = found.groupBy("partition").count().selectExpr("partition", "to_json(struct(count as n)) as payload")
    writer = counts.writeStream.format("lockstep").options(dsn=database_dsn, queue="counts").outputMode("update")
    with pytest.raises(StreamingQueryException, match="Update"):
        writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start().awaitTermination()

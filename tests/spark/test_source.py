"""The data source in Spark itself: found without being registered, batch and streaming, and errors that name what is
wrong."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lockstep.spark.read.schema import COLUMNS
from support.builders import batch
from support.spark_reads import Producer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.xdist_group("spark")


@pytest.fixture
def producer(database_dsn: str) -> Iterator[Producer]:
    made = Producer(database_dsn)
    yield made
    made.close()


def reading(spark: SparkSession, dsn: str, queue: str = "orders", **options: Any) -> DataFrame:
    return spark.read.format("lockstep").options(dsn=dsn, queue=queue, **options).load()


def streaming(spark: SparkSession, dsn: str, folder: Path, queue: str = "orders", **options: Any) -> list[int]:
    """Run a query over what is there, to a Parquet sink; the sizes of its batches."""
    frame = spark.readStream.format("lockstep").options(dsn=dsn, queue=queue, **options).load()
    query = (
        frame.writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .option("path", str(folder / "rows"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]


def written(spark: SparkSession, folder: Path) -> list[tuple[str, int]]:
    return sorted((row.partition, row.seq) for row in spark.read.parquet(str(folder / "rows")).collect())


def lanes(**counts: int) -> list[tuple[str, int]]:
    return sorted((partition, seq) for partition, count in counts.items() for seq in range(1, count + 1))


def test_row_of_a_message(spark: SparkSession, database_dsn: str, producer: Producer) -> None:
    trace = "0192f5a4-0000-7000-8000-000000000001"
    columns = {
        "transaction_ids": ["tx-1", None],
        "trace_ids": [trace, None],
        "kinds": ["created", None],
        "references": ["ref", None],
        "headers": [b'{"a":"b"}', None],
        "producer_subs": ["me", None],
    }
    producer.pushed(batch("orders", 2, partition="p", **columns))
    frame = reading(spark, database_dsn)
    assert frame.dtypes == list(COLUMNS.items())
    assert database_dsn not in frame._jdf.queryExecution().toString()
    first, second = frame.orderBy("seq").collect()
    assert first.asDict() == {
        "queue": "orders",
        "partition": "p",
        "seq": 1,
        "message_id": first.message_id,
        "transaction_id": "tx-1",
        "trace_id": trace,
        "created_at": first.created_at,
        "payload": '{"n":1}',
        "kind": "created",
        "reference": "ref",
        "encoding": None,
        "headers": '{"a":"b"}',
        "producer_sub": "me",
    }
    assert second.transaction_id == second.message_id
    assert second.trace_id is None


def test_frame_used_twice_and_with_filters(spark: SparkSession, database_dsn: str, producer: Producer) -> None:
    producer.pushed(batch("orders", 10, partition="a"), batch("orders", 5, partition="b"))
    frame = reading(spark, database_dsn)
    assert frame.where("seq = 3").count() == 2
    assert frame.count() == 15
    assert frame.join(frame.select("message_id"), "message_id").count() == 15
    producer.pushed(batch("orders", 1))
    assert frame.count() == 15, "a frame is what was there when it was first used"
    assert reading(spark, database_dsn).count() == 16


def test_parsed_payloads(spark: SparkSession, database_dsn: str, producer: Producer) -> None:
    producer.pushed(batch("orders", 3))
    schema = "n INT, missing ARRAY<STRING>, at TIMESTAMP"
    frame = reading(spark, database_dsn, payloadSchema=schema, columns="seq")
    assert [(name, kind) for name, kind in frame.dtypes] == [
        ("seq", "bigint"),
        ("data", "struct<n:int,missing:array<string>,at:timestamp>"),
    ]
    assert [(row.seq, row.data.n) for row in frame.orderBy("seq").collect()] == [(1, 1), (2, 2), (3, 3)]
    with pytest.raises(Exception, match=r"partition 'Default', seq 1 does not fit payloadSchema") as raised:
        reading(spark, database_dsn, payloadSchema="n STRING").collect()
    assert len(str(raised.value).splitlines()) < 8  # and no way through our modules
    with pytest.raises(Exception, match=r"(?s)INTX.*the option payloadSchema: \*/ struct<n intx>"):
        reading(spark, database_dsn, payloadSchema="n intx")
    permissive = reading(spark, database_dsn, payloadSchema="struct<n: string>", payloadMode="permissive")
    assert [row.data for row in permissive.collect()] == [None] * 3


def test_payload_as_bytes(spark: SparkSession, database_dsn: str, producer: Producer) -> None:
    producer.pushed(batch("orders", 1))
    [row] = reading(spark, database_dsn, payloadType="binary", columns="payload").collect()
    assert bytes(row.payload) == b'{"n":1}'


def test_from_sql(spark: SparkSession, database_dsn: str, producer: Producer) -> None:
    producer.pushed(batch("orders", 4), batch("returns", 1))
    spark.sql(f"create temporary view messages using lockstep options (dsn '{database_dsn}', queue 'orders,returns')")
    try:
        rows = spark.sql("select queue, count(*) as n from messages group by queue order by queue").collect()
    finally:
        spark.catalog.dropTempView("messages")
    assert [tuple(row) for row in rows] == [("orders", 4), ("returns", 1)]
    with pytest.raises(Exception, match="Use create temporary view"):
        spark.sql("create table messages using lockstep options (queue 'orders')")


def test_schema_of_the_callers_own(spark: SparkSession, database_dsn: str, producer: Producer) -> None:
    producer.pushed(batch("orders", 1))
    source = spark.read.format("lockstep").options(dsn=database_dsn, queue="orders")
    assert [tuple(row) for row in source.schema("seq bigint, queue string").load().collect()] == [(1, "orders")]
    with pytest.raises(Exception, match="the column 'seq' as int; it is bigint"):
        source.schema("seq int").load().collect()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"queu": "orders"}, "unknown option queu; known are"),
        ({"queue": "nowhere"}, "there is no queue 'nowhere'"),
    ],
)
def test_bad_options_are_named(spark: SparkSession, database_dsn: str, options: dict[str, str], text: str) -> None:
    with pytest.raises(Exception, match=text):
        spark.read.format("lockstep").options(**{"dsn": database_dsn, "queue": "orders", **options}).load().collect()


def test_stream_from_end_to_end(spark: SparkSession, database_dsn: str, producer: Producer, tmp_path: Path) -> None:
    for _ in range(4):
        producer.pushed(batch("orders", 5, partition="a"), batch("orders", 1, partition="b"))
    assert streaming(spark, database_dsn, tmp_path, maxMessagesPerTrigger=13) == [12, 12]
    assert written(spark, tmp_path) == lanes(a=20, b=4)
    assert streaming(spark, database_dsn, tmp_path) == []
    producer.pushed(batch("orders", 2, partition="b"), batch("orders", 3, partition="new"))
    assert streaming(spark, database_dsn, tmp_path) == [5]
    assert written(spark, tmp_path) == lanes(a=20, b=6, new=3)


def test_batch_whose_commit_was_lost_is_read_again(
    spark: SparkSession, database_dsn: str, producer: Producer, tmp_path: Path
) -> None:
    """Parquet's own log drops the second write of a batch, so the rows are those of the first."""
    producer.pushed(batch("orders", 1, partition="a"))
    streaming(spark, database_dsn, tmp_path, startingPosition="earliest")
    producer.pushed(batch("orders", 2, partition="b"))
    for lost in ("0", ".0.crc"):
        (tmp_path / "checkpoint" / "commits" / lost).unlink(missing_ok=True)
    streaming(spark, database_dsn, tmp_path)
    assert written(spark, tmp_path) == lanes(a=1, b=2)


def test_new_partitions_while_the_query_runs(
    spark: SparkSession, database_dsn: str, producer: Producer, tmp_path: Path
) -> None:
    producer.pushed(batch("orders", 1, partition="p0"))
    query = (
        spark.readStream.format("lockstep")
        .options(dsn=database_dsn, queue="orders")
        .load()
        .writeStream.format("memory")
        .queryName("arrived")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        for number in range(1, 4):
            producer.pushed(batch("orders", 2, partition=f"p{number}"))
            query.processAllAvailable()
            found = spark.sql("select partition, seq from arrived").collect()
            assert sorted(map(tuple, found)) == lanes(p0=1, **{f"p{n}": 2 for n in range(1, number + 1)})
    finally:
        query.stop()


def test_checkpoint_of_other_queues_is_a_clear_error(
    spark: SparkSession, database_dsn: str, producer: Producer, tmp_path: Path
) -> None:
    producer.pushed(batch("orders", 1), batch("returns", 1))
    streaming(spark, database_dsn, tmp_path)
    with pytest.raises(Exception, match="reads a queue more than before, returns, which has messages from before"):
        streaming(spark, database_dsn, tmp_path, queue="orders,returns")


def test_checkpoint_names_no_module(spark: SparkSession, database_dsn: str, producer: Producer, tmp_path: Path) -> None:
    """A checkpoint outlives the version that began it, which may have had its classes elsewhere."""
    producer.pushed(batch("orders", 3))
    assert streaming(spark, database_dsn, tmp_path) == [3]
    files = [path for path in (tmp_path / "checkpoint").rglob("*") if path.is_file()]
    assert {path.parent.name for path in files} >= {"offsets", "commits"}
    assert not [path for path in files if b"lockstep.spark" in path.read_bytes()]


def test_filter_that_a_python_source_takes_still_leaks_in_this_spark(spark: SparkSession) -> None:
    """Why the source takes no filters. Once this fails, docs/concepts/spark-connectors.md changes."""
    from pyspark.sql.datasource import DataSource, DataSourceReader, EqualTo, InputPartition

    class Reader(DataSourceReader):
        wanted: int | None = None

        def pushFilters(self, filters: list[Any]) -> Iterator[Any]:  # noqa: N802
            for one in filters:
                if isinstance(one, EqualTo):
                    self.wanted = one.value
                else:
                    yield one

        def partitions(self) -> list[InputPartition]:
            return [InputPartition(0)]

        def read(self, _: InputPartition) -> Iterator[tuple[int]]:
            return ((i,) for i in range(10) if self.wanted in (None, i))

    class Leaking(DataSource):
        @classmethod
        def name(cls) -> str:
            return "leaking"

        def schema(self) -> str:
            return "i int"

        def reader(self, schema: Any) -> Reader:  # noqa: ARG002
            return Reader()

    spark.dataSource.register(Leaking)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = spark.read.format("leaking").load()
        assert frame.where("i = 3").count() == 1
        assert frame.count() == 1
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")

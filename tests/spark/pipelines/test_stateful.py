"""Stateful steps and side inputs: what spans batches is right, whatever falls into which batch."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from queue import Queue
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F  # noqa: N812

from lockstep.core.messages import Batch, Columns
from lockstep.errors import StepFailed
from lockstep.spark import Pipeline, inputs, reject
from lockstep.spark.pipelines.running import StepDone, StepProgress
from support.spark_reads import Producer
from support.spark_writes import left_on_stage, problems, query, stored
from support.stateful_cases import KINDS, Case

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.xdist_group("spark-pipelines")

EVENT = "n bigint, at timestamp, key string"
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SMALL = {"maxMessagesPerTrigger": 2}


@pytest.fixture
def producer(database_dsn: str) -> Iterator[Producer]:
    made = Producer(database_dsn)
    yield made
    made.close()


class Runner:
    """Runs a pipeline until what is there is done."""

    def __init__(self, spark: SparkSession, dsn: str, checkpoints: Path) -> None:
        self.spark = spark
        self.dsn = dsn
        self.checkpoints = checkpoints

    def __call__(self, pipeline: Pipeline, **more: Any) -> list[StepDone]:
        return pipeline.run(self.spark, once=True, dsn=self.dsn, checkpoints=str(self.checkpoints), **more)

    def payloads(self, queue: str) -> dict[str, list[Any]]:
        return {name: [one.json() for one in messages] for name, messages in stored(self.dsn, queue).items()}

    def sent(self, producer: Producer, queue: str, *minutes: float, key: str = "a", start: int = 1) -> None:
        """Numbered events, each pushed by itself, so that small batches hold few of them."""
        for n, minute in enumerate(minutes, start):
            at = (NOON + timedelta(minutes=minute)).isoformat()
            producer.pushed(Batch(queue, key, Columns([json.dumps({"n": n, "at": at, "key": key}).encode()])))


@pytest.fixture
def run(spark: SparkSession, database_dsn: str, tmp_path: Path) -> Runner:
    return Runner(spark, database_dsn, tmp_path / "checkpoints")


def dead(dsn: str) -> list[tuple[int, str]]:
    return query(dsn, "select d.seq, d.error from lockstep.dead_letter d order by d.seq")


def hourly(df: DataFrame) -> DataFrame:
    """How many events an hour has, by key."""
    timed = df.withColumn("at", F.col("data.at")).withWatermark("at", "10 minutes")
    counted = timed.groupBy(F.window("at", "1 hour"), "partition").count()
    return counted.select(
        "partition", F.to_json(F.struct(F.hour("window.start").alias("hour"), "count")).alias("payload")
    )


def test_window_spans_batches_and_rejects_before_its_state(run: Runner, producer: Producer, database_dsn: str) -> None:
    pipeline = Pipeline("p")

    @pipeline.step(source="q", sink="hours", payload_schema=EVENT, stateful=True, options=SMALL)
    def count(df: DataFrame) -> DataFrame:
        return hourly(reject(df, "data.n = 3", "no threes"))

    run.sent(producer, "q", 0, 1, 2, 3, 4, 5, 6)
    producer.pushed(Batch("q", "a", Columns([b'{"n": "x"}'])))
    [done] = run(pipeline)
    assert (done.rows_in, done.pushed, done.rejected) == (8, 0, 2)
    run.sent(producer, "q", 50, 180, start=8)
    [done] = run(pipeline)
    assert (done.rows_in, done.pushed) == (2, 1)
    assert run.payloads("hours") == {"a": [{"hour": 12, "count": 7}]}
    assert dead(database_dsn) == [(3, "no threes"), (8, f"the payload does not fit the payload_schema {EVENT}")]
    assert problems(database_dsn) == []
    assert left_on_stage(database_dsn) == 0


def test_state_survives_what_spark_forgets(run: Runner, producer: Producer, database_dsn: str) -> None:
    """A batch that was committed is run again for its state, and its rows are not written again."""
    pipeline = Pipeline("p")

    @pipeline.step(source="q", sink="once", payload_schema=EVENT, stateful=True, options=SMALL)
    def distinct(df: DataFrame) -> DataFrame:
        return df.dropDuplicates(["data"])

    run.sent(producer, "q", 0, 1)
    run.sent(producer, "q", 0)
    assert [one.pushed for one in run(pipeline)] == [2]
    commits = sorted((run.checkpoints / "p/distinct/commits").glob("[0-9]*"), key=lambda path: int(path.name))
    for path in (commits[-1], commits[-1].with_name(f".{commits[-1].name}.crc")):
        path.unlink()
    run.sent(producer, "q", 1, 2, start=2)
    assert [one.pushed for one in run(pipeline)] == [1]
    found = stored(database_dsn, "once")["a"]
    assert [one.json()["n"] for one in found] == [1, 2, 3]
    # A row that is still one message keeps its trace.
    assert {one.trace_id for one in found} <= {one.id for one in stored(database_dsn, "q")["a"]}


def test_join_of_two_streams_with_a_side_input(run: Runner, producer: Producer, database_dsn: str) -> None:
    pipeline = Pipeline("p")

    @pipeline.step(
        source={"orders": "order-intake", "paid": "payment"},
        sink="matched",
        payload_schema={"orders": EVENT, "paid": "n bigint"},
        stateful=True,
        inputs={"names": inputs.latest("name", payload_schema="n bigint, name string")},
        order_by="n",
    )
    def match(orders: DataFrame, paid: DataFrame, names: DataFrame) -> DataFrame:
        named = names.select(F.col("data.n").alias("n"), F.col("data.name").alias("name"))
        left = orders.select("partition", "trace_id", F.col("data.n").alias("n"))
        both = left.join(paid.select(F.col("data.n").alias("n")), "n").join(named, "n")
        return both.withColumn("payload", F.to_json(F.struct("n", "name"))).drop("name")

    producer.pushed(Batch("name", "x", Columns([b'{"n": 1, "name": "old"}', b'{"n": 1, "name": "one"}'])))
    producer.pushed(Batch("name", "y", Columns([b'{"n": 2, "name": "two"}', b"null"])))
    producer.pushed(Batch("name", "z", Columns([b'{"n": 3, "name": "three"}'])))
    producer.pushed(Batch("payment", "a", Columns([b'{"n": 3}', b'{"n": 2}'])))
    run.sent(producer, "order-intake", 0, 1, 2)
    assert [(one.rows_in, one.pushed) for one in run(pipeline)] == [(5, 1)]
    producer.pushed(Batch("payment", "a", Columns([b'{"n": 1}'])))
    assert [(one.rows_in, one.pushed) for one in run(pipeline)] == [(1, 1)]
    assert run.payloads("matched") == {"a": [{"n": 3, "name": "three"}, {"n": 1, "name": "one"}]}
    orders = {one.json()["n"]: one.id for one in stored(database_dsn, "order-intake")["a"]}
    assert [one.trace_id for one in stored(database_dsn, "matched")["a"]] == [orders[3], orders[1]]


def test_updates_of_a_key_end_with_its_last_value(run: Runner, producer: Producer) -> None:
    pipeline = Pipeline("p")

    def totals(df: DataFrame) -> DataFrame:
        summed = df.groupBy("partition").agg(F.sum("data.n").alias("sum"))
        return summed.withColumn("payload", F.to_json(F.struct("sum"))).drop("sum")

    for mode in ("update", "complete"):
        pipeline.step(
            source="q", sink=mode, name=mode, payload_schema=EVENT, stateful=True, output_mode=mode, state_partitions=1
        )(totals)
    run.sent(producer, "q", 0, 1, key="a")
    run.sent(producer, "q", 0, key="b")
    run(pipeline)
    run.sent(producer, "q", 2, key="a", start=3)
    assert {one.step: one.pushed for one in run(pipeline)} == {"update": 1, "complete": 2}
    assert run.payloads("update") == {"a": [{"sum": 3}, {"sum": 6}], "b": [{"sum": 1}]}
    assert run.payloads("complete") == {"a": [{"sum": 3}, {"sum": 6}], "b": [{"sum": 1}, {"sum": 1}]}


def test_transform_with_state_keeps_what_it_knows(run: Runner, producer: Producer) -> None:
    """The eleventh kind of case; the generator shares it with `make soak`."""
    case = Case(list(KINDS).index("thirds"), 2)
    pipeline = Pipeline("p")
    case.add_to(pipeline)
    [source] = case.sources
    for start in (1, 3, 5):
        run.sent(producer, source, 0, 1, start=start)
        run(pipeline)
    assert run.payloads(case.sink) == {"a": [{"n": 3}, {"n": 6}]}


def _pushed(told: Queue[StepProgress | BaseException]) -> int:
    """How much the next batch has pushed."""
    progress = told.get(timeout=300)
    assert isinstance(progress, StepProgress), progress
    return progress.pushed


def test_side_input_of_a_stateful_step_is_read_again(run: Runner, producer: Producer, database_dsn: str) -> None:
    pipeline = Pipeline("p")

    @pipeline.step(source="q", sink="out", stateful=True, inputs={"names": inputs.latest("name", refresh="1s")})
    def label(df: DataFrame, names: DataFrame) -> DataFrame:
        once = df.dropDuplicates(["payload"]).drop("payload")
        return once.crossJoin(names.select("payload"))

    producer.pushed(Batch("name", "x", Columns([b'"old"'])))
    run.sent(producer, "q", 0)
    stop = threading.Event()
    told: Queue[StepProgress | BaseException] = Queue()

    def work() -> None:
        try:
            pipeline.run(run.spark, dsn=database_dsn, checkpoints=str(run.checkpoints), stop=stop, progress=told.put)
        except BaseException as error:
            told.put(error)

    thread = threading.Thread(target=work)
    thread.start()
    found: list[str] = []
    try:
        for n in range(2, 100):
            while not _pushed(told):
                pass
            found = run.payloads("out")["a"]
            if found[-1] == "new":
                break
            producer.pushed(Batch("name", "x", Columns([b'"new"'])))
            run.sent(producer, "q", 0, start=n)
    finally:
        stop.set()
        thread.join()
    assert (found[0], found[-1]) == ("old", "new")
    # The state went on: nothing came twice.
    assert len(found) == len(stored(database_dsn, "q")["a"])


STATELESS: list[tuple[Any, str]] = [
    (lambda df: df.dropDuplicates(["payload"]), "dropDuplicates"),
    (lambda df: df.distinct(), "dropDuplicates|distinct"),
    (lambda df: df.limit(3), "limit"),
    (lambda df: df.join(df.select("trace_id"), "trace_id"), "a join of the stream with itself"),
    (lambda df: df.groupBy("partition", "trace_id", "seq").agg(F.max("payload").alias("payload")), "an aggregation"),
    (lambda df: df.withColumn("payload", F.expr("string(row_number() over (order by seq))")), "a window function"),
]


def test_stateless_step_that_needs_state_is_refused_before_it_starts(run: Runner, producer: Producer) -> None:
    run.sent(producer, "q", 0)
    for number, (function, operator) in enumerate(STATELESS):
        pipeline = Pipeline("p")
        pipeline.step(source="q", sink="out", name=f"s{number}")(function)
        with pytest.raises(StepFailed, match=rf"^step 's{number}' of pipeline 'p' uses ({operator}).*stateful=True"):
            run(pipeline)
    assert run.payloads("out") == {}


def test_stateless_step_may_look_up_and_mean_each_batch(
    run: Runner, producer: Producer, database_dsn: str, tmp_path: Path, spark: SparkSession
) -> None:
    names = str(tmp_path / "names")
    spark.createDataFrame([(1, "one"), (2, "two"), (3, "three")], "n int, name string").write.parquet(names)
    query(database_dsn, "create table price (n bigint, price float8); insert into price values (1, 1.5), (2, 2.5)")
    pipeline = Pipeline("p")

    @pipeline.step(
        source="q",
        sink="named",
        payload_schema=EVENT,
        options={"maxMessagesPerTrigger": 1},
        inputs={
            "names": inputs.parquet(names),
            "prices": inputs.postgres("select * from price", schema="n long, price double", refresh="batch"),
        },
    )
    def name(df: DataFrame, names: DataFrame, prices: DataFrame) -> DataFrame:
        joined = df.withColumn("n", F.col("data.n")).join(names, "n").join(prices, "n", "left")
        return joined.withColumn("payload", F.to_json(F.struct("name", "price"))).drop("n", "name", "price")

    @pipeline.step(source="q", sink="counted", per_batch=True, order=False, traces=False)
    def count(df: DataFrame) -> DataFrame:
        return df.groupBy("partition").count().withColumn("payload", F.to_json(F.struct("count"))).drop("count")

    run.sent(producer, "q", 0, 1)
    run(pipeline)
    query(database_dsn, "insert into price values (3, 3.5)")
    run.sent(producer, "q", 2, start=3)
    run(pipeline)
    expected = [{"name": "one", "price": 1.5}, {"name": "two", "price": 2.5}, {"name": "three", "price": 3.5}]
    assert run.payloads("named") == {"a": expected}
    assert run.payloads("counted") == {"a": [{"count": 2}, {"count": 1}]}


FAILING: list[tuple[Any, str]] = [
    (lambda df: df.groupBy("partition").count(), "its function returns no column payload: it has partition, count"),
    (lambda df: df.withColumn("x", F.lit(1)), "its function adds the column x, which a message does not have"),
    (lambda df: df.select("nothing"), "UNRESOLVED_COLUMN"),
    (lambda _: 1 / 0, "ZeroDivisionError: division by zero"),
    (lambda _: 17, "its function returned int"),
    (lambda df: reject(df.dropDuplicates(["payload"]), "true", "no"), r"reject\(\) comes after dropDuplicates"),
    (lambda df: reject(df.drop("message_id"), "true", "no"), r"reject\(\) needs the column message_id"),
]


def test_stateful_step_that_cannot_run_says_why_before_it_starts(run: Runner, producer: Producer) -> None:
    run.sent(producer, "q", 0)
    for function, said in FAILING:
        pipeline = Pipeline("p")
        pipeline.step(source="q", sink="out", name="s", stateful=True)(function)
        with pytest.raises(StepFailed, match=f"^step 's' of pipeline 'p' cannot start: .*{said}"):
            run(pipeline)


def test_stateful_step_that_fails_in_a_batch_goes_on_there(run: Runner, producer: Producer, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.touch()
    pipeline = Pipeline("p")

    @pipeline.step(source="q", sink="out", payload_schema=EVENT, stateful=True)
    def step(df: DataFrame) -> DataFrame:
        @F.udf("string")
        def checked(payload):  # type: ignore[no-untyped-def]  # Spark takes hints for a kind of function
            if broken.exists():
                raise ValueError("bad luck")
            return payload

        return df.withColumn("payload", checked("payload")).dropDuplicates(["payload"])

    run.sent(producer, "q", 0)
    with pytest.raises(
        StepFailed,
        match=r"step 'step' of pipeline 'p' failed in batch 0: ValueError: bad luck .test_stateful.py:[0-9]+.; nothing",
    ):
        run(pipeline)
    broken.unlink()
    assert [one.pushed for one in run(pipeline)] == [1]

"""A pipeline of one step, from queue to queue and exactly once, against a stream that only reads; and a step over
messages of which 2 % make its Python function raise, against the same step where none do.

Each of them is a run that ends with what is there, with the start of its query. The step without state keeps order and
traces, as every step does. Both sides take batches of the same size.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import psycopg

from benchmarks.harness import Bar, Outcome, Table, progress
from benchmarks.messages import Messages
from lockstep.core.messages import Batch, Columns
from lockstep.spark import Pipeline
from lockstep.storage.postgres.cache import NameCache
from lockstep.storage.postgres.encryption import Encryption
from lockstep.storage.postgres.push.conversation import push_now
from lockstep.storage.postgres.within import converse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SOURCE, GOOD, BAD = "pipeline-in", "pipeline-good", "pipeline-bad"
PARTITIONS = 100
BATCH = 1_000
BAD_EVERY = 50
_SMALLER = 5
"""By how much there is less for the Python function, which is slow by itself."""
_END_TO_END_BAR, _BAD_BAR = 0.5, 0.7
_READ, _END_TO_END = "stream, read only", "pipeline, end to end"
_NONE_BAD, _SOME_BAD = "Python function, none bad", "Python function, 2 % bad"


def spark_pipeline(spark: SparkSession, dsn: str, *, count: int, rounds: int) -> Outcome:
    """Run each over its messages, in turn."""
    _fill(dsn, count)
    small = count // _SMALLER
    runs: Mapping[str, tuple[int, Callable[[str], None]]] = {
        _READ: (count, lambda folder: _read_only(spark, dsn, folder)),
        _END_TO_END: (count, lambda folder: _run(spark, dsn, SOURCE, _as_it_is, folder)),
        _NONE_BAD: (small, lambda folder: _run(spark, dsn, GOOD, _checked, folder)),
        _SOME_BAD: (small, lambda folder: _run(spark, dsn, BAD, _checked, folder)),
    }
    taken: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds + 1):
        for name, (messages, work) in runs.items():
            with TemporaryDirectory() as folder:
                began = time.perf_counter()
                work(folder)
                seconds = time.perf_counter() - began
            if number:  # the first round warms up
                taken[name].append(seconds)
                progress(f"  {number}/{rounds}  {name:30} {messages / seconds:12,.0f} /s")
    return _outcome(taken, {name: messages for name, (messages, _) in runs.items()})


def _fill(dsn: str, count: int) -> None:
    messages, names = Messages(), NameCache(3 * PARTITIONS)
    with psycopg.connect(dsn) as connection:
        for number in range(count // BATCH):
            batches = [Batch(SOURCE, f"p{number % PARTITIONS}", Columns(messages.batch(BATCH)))]
            if number < count // BATCH // _SMALLER:
                good = [json.dumps({"n": n, "text": "x" * 200}).encode() for n in range(1, BATCH + 1)]
                bad = [b'{"n":0}' if n % BAD_EVERY == 0 else payload for n, payload in enumerate(good)]
                batches += [
                    Batch(queue, f"p{number % PARTITIONS}", Columns(some)) for queue, some in ((GOOD, good), (BAD, bad))
                ]
            converse(connection, push_now(batches, names, encryption=Encryption(), at=None))
            connection.commit()
        connection.autocommit = True
        connection.execute("vacuum analyze")


def _read_only(spark: SparkSession, dsn: str, folder: str) -> None:
    stream = spark.readStream.format("lockstep").options(dsn=dsn, queue=SOURCE, maxMessagesPerTrigger="100000").load()
    writer = stream.writeStream.format("noop").option("checkpointLocation", folder).trigger(availableNow=True)
    writer.start().awaitTermination()


def _as_it_is(frame: DataFrame) -> DataFrame:
    return frame.where("payload is not null")


def _checked(frame: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    @F.udf("string")
    def inverse(payload):  # type: ignore[no-untyped-def]  # Spark takes hints for a kind of function
        return json.dumps({"inverse": 1 / json.loads(payload)["n"]})

    return frame.withColumn("payload", inverse("payload"))


def _run(spark: SparkSession, dsn: str, source: str, function: Callable[[DataFrame], DataFrame], folder: str) -> None:
    """As a pipeline that nobody has run before."""
    pipeline = Pipeline(f"bench-{Path(folder).name}")
    pipeline.step(source=source, sink=f"{source}-out", name="step")(function)
    [done] = pipeline.run(spark, once=True, dsn=dsn, checkpoints=folder)
    if (
        done.rejected != (done.rows_in // BAD_EVERY if source == BAD else 0)
        or done.pushed + done.rejected != done.rows_in
    ):
        raise RuntimeError(f"the pipeline did {done}")


def _outcome(taken: Mapping[str, list[float]], counts: Mapping[str, int]) -> Outcome:
    def ratio(name: str, base: str) -> float:
        """Of the rates."""
        share = counts[name] / counts[base]
        return share * median(b / own for b, own in zip(taken[base], taken[name], strict=True))

    bases = {_READ: _READ, _END_TO_END: _READ, _NONE_BAD: _NONE_BAD, _SOME_BAD: _NONE_BAD}
    rows: list[dict[str, Any]] = [
        {
            "name": name,
            "messages": counts[name],
            "messages_per_second": round(counts[name] / median(seconds)),
            "ratio": round(ratio(name, bases[name]), 2),
        }
        for name, seconds in taken.items()
    ]
    return Outcome(
        [Table("A pipeline of one step on Spark, with the start of its query", rows)],
        [
            Bar.at_least("Spark pipeline end to end, x read only", ratio(_END_TO_END, _READ), _END_TO_END_BAR),
            Bar.at_least("Spark pipeline with 2 % bad, x none", ratio(_SOME_BAD, _NONE_BAD), _BAD_BAR),
        ],
    )

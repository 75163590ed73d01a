"""A standalone cluster on this machine: a master, two workers, and a pipeline that spark-submit brings there."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from support.builders import batch
from support.spark_cluster import BIN, EXECUTORS_HAVE, WORKERS, running_cluster
from support.spark_reads import Producer
from support.spark_writes import numbers, problems, query

pytestmark = pytest.mark.xdist_group("spark-pipelines")

RUN_SECONDS = 180

FILE = """
import json
from pyspark.sql import functions as F
from pyspark.sql.types import StringType
from lockstep.spark import Pipeline, reject

orders = Pipeline("orders")

@F.udf(StringType())
def doubled(payload):
    return json.dumps({"n": 2 * json.loads(payload)["n"]})

@orders.step(source="intake", sink="doubled", payload_schema="n bigint", options={"parallelism": 2})
def double(df):
    return reject(df, "data.n = 7", "no sevens").withColumn("payload", doubled("payload"))

if __name__ == "__main__":
    orders.main()
"""


@pytest.fixture
def cluster(tmp_path: Path, database_dsn: str) -> Iterator[str]:
    """Only the environment of its workers knows the database."""
    with running_cluster(tmp_path, {"ORDERS_DSN": database_dsn}) as url:
        yield url


ORDER = """
import sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
given = {"dsnEnv": "ORDERS_DSN", "queue": "intake", "parallelism": "4"}
sink = {"dsnEnv": "ORDERS_DSN", "orderBy": "seq"}
batch = spark.read.format("lockstep").options(**given).load().repartition(6)
batch.write.format("lockstep").options(**sink, queue="batch").mode("append").save()
stream = spark.readStream.format("lockstep").options(**given, maxMessagesPerTrigger="900").load()
writer = stream.repartition("partition").writeStream.format("lockstep").options(**sink, queue="stream")
writer = writer.option("checkpointLocation", sys.argv[1])
writer.trigger(availableNow=True).start().awaitTermination()
"""


def test_order_of_partitions_on_a_cluster(cluster: str, tmp_path: Path, database_dsn: str) -> None:
    producer = Producer(database_dsn)
    for part in range(5):
        start = 1 + 20 * part
        producer.pushed(*(batch("intake", 20, partition=f"p{lane}", start=start) for lane in range(20)))
    producer.close()
    submit(cluster, tmp_path, database_dsn, ORDER, str(tmp_path / "checkpoint"))
    expected = {f"p{lane}": [*range(1, 101)] for lane in range(20)}
    assert numbers(database_dsn, "batch") == expected
    assert numbers(database_dsn, "stream") == expected
    assert problems(database_dsn) == []


def submit(cluster: str, folder: Path, dsn: str, text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program on the cluster by spark-submit."""
    file = folder / "orders.py"
    file.write_text(text)
    program = [str(BIN / "spark-submit"), "--master", cluster]
    program += [word for name, value in EXECUTORS_HAVE.items() for word in ("--conf", f"{name}={value}")]
    environment = {**os.environ, "ORDERS_DSN": dsn, "SPARK_LOCAL_IP": "127.0.0.1"}
    ended = subprocess.run(
        [*program, str(file), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    return ended


def test_pipeline_on_a_cluster_of_two_workers(cluster: str, tmp_path: Path, database_dsn: str) -> None:
    producer = Producer(database_dsn)
    producer.pushed(*(batch("intake", 5, partition=f"p{lane}", start=1 + 5 * lane) for lane in range(20)))
    producer.pushed(*(batch("intake", 5, partition=f"p{lane}", start=101 + 5 * lane) for lane in range(20)))
    producer.close()
    arguments = ["--once", "--dsn-env", "ORDERS_DSN", "--checkpoints", str(tmp_path / "checkpoints")]
    ended = submit(cluster, tmp_path, database_dsn, FILE, *arguments)
    assert "double: batch 0  in 200  out 199  rejected 1" in ended.stdout
    pushed = {f"p{n}": [*range(1 + 5 * n, 6 + 5 * n), *range(101 + 5 * n, 106 + 5 * n)] for n in range(20)}
    assert numbers(database_dsn, "doubled") == {
        name: [2 * n for n in numbered if n != 7] for name, numbered in pushed.items()
    }
    assert query(database_dsn, "select error from lockstep.dead_letter") == [("no sevens",)]
    assert problems(database_dsn) == []
    # Both workers had an executor, and neither the plan nor a log says where the database is.
    for number in WORKERS:
        assert list((tmp_path / f"work{number}").glob("app-*/*"))
    place = psycopg.conninfo.conninfo_to_dict(database_dsn)["dbname"]
    assert str(place) not in ended.stdout + ended.stderr

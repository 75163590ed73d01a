"""A standalone cluster on this machine: a master, two workers, and a pipeline that spark-submit brings there."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg
import pyspark
import pytest

from support.builders import batch
from support.spark_reads import Producer
from support.spark_writes import numbers, problems, query

pytestmark = pytest.mark.xdist_group("spark-pipelines")

BIN = Path(pyspark.__file__).parent / "bin"
START_SECONDS = 90
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


@contextmanager
def started(arguments: Sequence[str], log: Path, environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(BIN / "spark-class"), *arguments], stdout=output, stderr=output, env=environment
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def said(log: Path, pattern: str) -> str:
    """What a log says, once it does."""
    deadline = time.monotonic() + START_SECONDS
    while (found := re.search(pattern, log.read_text(errors="replace"))) is None:
        assert time.monotonic() < deadline, log.read_text(errors="replace")[-2000:]
        time.sleep(0.1)
    return found[0]


@pytest.fixture
def cluster(tmp_path: Path, database_dsn: str) -> Iterator[str]:
    """A master with two workers of one core each; only their environment knows the database."""
    environment = {
        **os.environ,
        "ORDERS_DSN": database_dsn,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": os.environ["SPARK_SUBMIT_OPTS"],
    }
    on = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
    with ExitStack() as processes:
        master = ["org.apache.spark.deploy.master.Master", *on]
        processes.enter_context(started(master, tmp_path / "master.log", environment))
        url = said(tmp_path / "master.log", r"spark://127\.0\.0\.1:[0-9]+")
        for number in (1, 2):
            limits = ["--cores", "1", "--memory", "700m", "--work-dir", str(tmp_path / f"work{number}")]
            worker = ["org.apache.spark.deploy.worker.Worker", *on, *limits, url]
            processes.enter_context(started(worker, tmp_path / f"worker{number}.log", environment))
        for number in (1, 2):
            said(tmp_path / f"worker{number}.log", "Successfully registered with master")
        yield url


def test_pipeline_on_a_cluster_of_two_workers(cluster: str, tmp_path: Path, database_dsn: str) -> None:
    producer = Producer(database_dsn)
    producer.pushed(*(batch("intake", 5, partition=f"p{lane}", start=1 + 5 * lane) for lane in range(20)))
    producer.pushed(*(batch("intake", 5, partition=f"p{lane}", start=101 + 5 * lane) for lane in range(20)))
    producer.close()
    file = tmp_path / "orders.py"
    file.write_text(FILE)
    settings = {
        "spark.executor.memory": "500m",
        "spark.executor.extraJavaOptions": os.environ["SPARK_SUBMIT_OPTS"],
        "spark.sql.shuffle.partitions": "4",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.ui.enabled": "false",
    }
    program = [str(BIN / "spark-submit"), "--master", cluster]
    program += [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    program += [str(file), "--once", "--dsn-env", "ORDERS_DSN", "--checkpoints", str(tmp_path / "checkpoints")]
    environment = {
        **os.environ,
        "ORDERS_DSN": database_dsn,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    ended = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=RUN_SECONDS, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert "double: batch 0  in 200  out 199  rejected 1" in ended.stdout
    pushed = {f"p{n}": [*range(1 + 5 * n, 6 + 5 * n), *range(101 + 5 * n, 106 + 5 * n)] for n in range(20)}
    assert numbers(database_dsn, "doubled") == {
        name: [2 * n for n in numbered if n != 7] for name, numbered in pushed.items()
    }
    assert query(database_dsn, "select error from lockstep.dead_letter") == [("no sevens",)]
    assert problems(database_dsn) == []
    # Both workers had an executor, and neither the plan nor a log says where the database is.
    for number in (1, 2):
        assert list((tmp_path / f"work{number}").glob("app-*/*"))
    place = psycopg.conninfo.conninfo_to_dict(database_dsn)["dbname"]
    assert str(place) not in ended.stdout + ended.stderr

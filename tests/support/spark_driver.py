"""A streaming query from queue to queue: in the test's own Spark, or as a driver of its own that can be killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

from support.spark_writes import wait_for_waiter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def copy(spark: SparkSession, dsn: str, checkpoint: Path, **options: str) -> Any:
    """Copy what is in queue `orders` to queue `sink`, in batches, until all is done; returns the ended query.

    Options that begin with `sink_` are those of the sink.
    """
    of_sink = {name.removeprefix("sink_"): value for name, value in options.items() if name.startswith("sink_")}
    of_source = {name: value for name, value in options.items() if not name.startswith("sink_")}
    query = (
        spark.readStream.format("lockstep")
        .options(dsn=dsn, queue="orders", **{"parallelism": "1", **of_source})
        .load()
        .select("partition", "payload")
        .writeStream.format("lockstep")
        .options(dsn=dsn, queue="sink", checkpointLocation=str(checkpoint), **of_sink)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return query


@contextmanager
def driver(dsn: str, checkpoint: Path, **options: str) -> Iterator[subprocess.Popen[bytes]]:
    """The same as a process of its own, which is killed in the end, with all that it started."""
    arguments = [f"{name}={value}" for name, value in options.items()]
    paths = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    process = subprocess.Popen(
        [sys.executable, "-m", "support.spark_driver", dsn, str(checkpoint), *arguments],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        kill(process)


def kill(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL to a driver, to its JVM and to all workers of that."""
    for pid in [process.pid, *_descendants(process.pid)]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    process.wait()


def _descendants(pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found = []
    todo = [pid]
    while todo:
        found += (more := children.get(todo.pop(), []))
        todo += more
    return found


def killed_while_waiting(dsn: str, checkpoint: Path, lock: str, waiting: str, **options: str) -> None:
    """Run the query until a statement with the text `waiting` waits for a lock, and kill it there."""
    with psycopg.connect(dsn) as holder:
        holder.execute(lock)  # type: ignore[call-overload]
        with driver(dsn, checkpoint, **options) as process:
            wait_for_waiter(dsn, waiting, seconds=300, alive=lambda: process.poll() is None)
        holder.rollback()


if __name__ == "__main__":
    from pyspark.sql import SparkSession

    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.memory", "512m")
        .getOrCreate()
    )
    copy(session, sys.argv[1], Path(sys.argv[2]), **dict(argument.split("=", 1) for argument in sys.argv[3:]))

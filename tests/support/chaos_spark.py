"""A streaming query in a Spark of its own, for chaos tests. It logs each batch that it has read.

    python -m support.chaos_spark DSN QUEUES CHECKPOINT LOG

As a supervisor would, it restarts the query after the database was unavailable. When its checkpoint is ahead of the
database it logs this, and waits for a line on standard input. When that input ends, it reads the rest and ends.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

from lockstep.errors import CheckpointAhead, LockstepError, Unavailable
from lockstep.spark.failures import explain

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = ("message_id", "queue", "partition", "seq", "payload")
POLL_SECONDS = 0.05


class Driver:
    def __init__(self, spark: SparkSession, dsn: str, queues: str, checkpoint: str, log: Path) -> None:
        self._spark = spark
        self._dsn = dsn
        self._queues = queues
        self._checkpoint = checkpoint
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._began = time.monotonic()
        self._told = Event()
        self._ended = Event()

    def run(self) -> None:
        Thread(target=self._listen, daemon=True).start()
        while not self._run_query():
            pass

    def _listen(self) -> None:
        for _ in sys.stdin:
            self._told.set()
        self._ended.set()
        self._told.set()

    def _run_query(self) -> bool:
        """Run until it is asked to end, or fails; returns whether everything was read."""
        from pyspark.errors import StreamingQueryException

        self._began = time.monotonic()
        query = (
            self._spark.readStream.format("lockstep")
            .options(dsn=self._dsn, queue=self._queues, parallelism="1")
            .load()
            .select(*COLUMNS)
            .writeStream.foreachBatch(self._keep)
            .option("checkpointLocation", self._checkpoint)
            .start()
        )
        try:
            while not self._ended.is_set():
                query.awaitTermination(POLL_SECONDS)
                if not query.isActive:
                    raise AssertionError("the query ended by itself")
            query.processAllAvailable()
            query.stop()
        except StreamingQueryException as error:
            self._explain(explain(error))
            return False
        return True

    def _explain(self, error: LockstepError) -> None:
        if isinstance(error, CheckpointAhead):
            self._told.clear()
            self._write({"ahead": str(error)})
            self._told.wait()
        elif not isinstance(error, Unavailable):
            raise error

    def _keep(self, frame: DataFrame, batch_id: int) -> None:
        rows = [row.asDict() for row in frame.collect()]
        now = time.monotonic()
        self._write({"batch": batch_id, "began": self._began, "ended": now, "rows": rows})
        self._began = now

    def _write(self, record: dict[str, Any]) -> None:
        os.write(self._log, json.dumps(record).encode() + b"\n")


def main(dsn: str, queues: str, checkpoint: str, log: str) -> None:
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "512m")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    Driver(spark, dsn, queues, checkpoint, Path(log)).run()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])

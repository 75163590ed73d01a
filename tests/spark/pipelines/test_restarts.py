"""Steps that are started again: what may pass, how long they wait, and a database that goes away under them."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lockstep.errors import (
    CheckpointAhead,
    DataLost,
    JobFailed,
    LeaseLost,
    LockstepError,
    LockTimeout,
    QueueFull,
    StepFailed,
    Unavailable,
)
from lockstep.spark import Pipeline
from lockstep.spark.database import Access
from lockstep.spark.pipelines import running, status
from lockstep.spark.pipelines.running import StepDone
from lockstep.spark.restarting import Restarts, may_pass
from support.builders import batch
from support.databases import away
from support.spark_reads import Producer
from support.spark_writes import numbers, problems
from support.until import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.xdist_group("spark-pipelines")


def _of_spark(text: str) -> Exception:
    from pyspark.errors import PySparkException

    return PySparkException(text)


def _because(error: LockstepError, cause: BaseException) -> LockstepError:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (Unavailable(), True),
        (LockTimeout(), True),
        (QueueFull(), True),
        (LeaseLost(), True),
        (StepFailed(), False),
        (CheckpointAhead(), False),
        (DataLost(), False),
        (JobFailed("Spark says: no"), False),
        (_because(StepFailed(), Unavailable()), True),
        (_because(StepFailed(), ZeroDivisionError()), False),
        (_because(StepFailed(), _of_spark("ExecutorLostFailure (executor 1 exited)")), True),
        (_because(StepFailed(), _of_spark("Python worker exited unexpectedly (crashed)")), False),
    ],
)
def test_what_may_pass(error: LockstepError, passes: bool) -> None:
    assert may_pass(error) is passes


def test_pauses_double_until_a_batch_is_done_and_end_some_time() -> None:
    now = 0.0
    restarts = Restarts(100, 5, clock=lambda: now, jitter=lambda: 1.0)
    assert [restarts.pause(Unavailable()) for _ in range(6)] == [0.5, 1.0, 2.0, 4.0, 5.0, 5.0]
    assert restarts.pause(StepFailed()) is None
    now = 99.0
    assert restarts.pause(Unavailable()) == 5.0
    now = 100.0
    assert restarts.pause(Unavailable()) is None
    restarts.has_worked()
    assert restarts.pause(Unavailable()) == 0.5
    assert restarts.count == 8
    assert Restarts(0, 5).pause(Unavailable()) is None


def test_steps_outlive_a_database_that_is_away(
    spark: SparkSession, database_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = Producer(database_dsn)
    producer.pushed(batch("q", 5))
    pipeline = Pipeline("copy")
    pipeline.step(source="q", sink="out", name="pass")(lambda df: df)
    pipeline.step(source="out", sink="end", name="last")(lambda df: df)
    told: list[str] = []
    monkeypatch.setattr(running._log, "warning", lambda text, *values: told.append(text % values))
    stop = threading.Event()
    done: list[StepDone] = []

    def run() -> None:
        done.extend(pipeline.run(spark, dsn=database_dsn, checkpoints=str(tmp_path), trigger="100ms", stop=stop))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        wait_until(lambda: numbers(database_dsn, "end") == {"Default": [1, 2, 3, 4, 5]}, seconds=240)
        producer.close()
        with away(database_dsn):
            wait_until(lambda: len(told) >= 4 and any("'last'" in line for line in told), seconds=240)
        producer = Producer(database_dsn)
        producer.pushed(batch("q", 3, start=6))
        wait_until(lambda: len(numbers(database_dsn, "end")["Default"]) == 8, seconds=240)
    finally:
        stop.set()
        thread.join(240)
        producer.close()
    assert numbers(database_dsn, "end") == numbers(database_dsn, "out") == {"Default": [1, 2, 3, 4, 5, 6, 7, 8]}
    assert [(one.step, one.pushed, one.restarts > 0) for one in done] == [("pass", 8, True), ("last", 8, True)]
    assert "step 'pass' of pipeline 'copy' is started again in 0." in next(line for line in told if "'pass'" in line)
    with Access(dsn=database_dsn).connect() as connection:
        found = {one.step: one for one in status.list_steps(connection, "copy")}
    assert {(one.state, one.restarts > 0, one.error) for one in found.values()} == {("stopped", True, None)}
    assert problems(database_dsn) == []

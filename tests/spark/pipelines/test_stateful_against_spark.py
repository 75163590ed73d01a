"""Stateful steps against Spark itself: many small batches, with kill -9 of the driver in between, come to what one
query over all messages comes to.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from support.soak import soak_only
from support.spark_reads import Producer
from support.spark_writes import left_on_stage, problems, query, stored
from support.stateful_cases import KINDS, SCHEMA, Case, results

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.xdist_group("spark-pipelines")

TESTS = Path(__file__).parents[2]
ROUND = len(KINDS)
_COMMITTED = "select coalesce(sum(batch_id + 1), 0) from lockstep.spark_batch"
_POLL_SECONDS = 0.05
_RUNS_MAX = 20


class Driver:
    """The driver of a pipeline of cases: a process group with its JVM and its Python workers."""

    def __init__(self, cases: Sequence[Case], dsn: str, folder: Path) -> None:
        self._dsn = dsn
        self._log = folder / "driver.log"
        seeds = [str(case.seed) for case in cases]
        arguments = [str(folder / "checkpoints"), str(cases[0].messages), *seeds]
        self._program = [sys.executable, "-m", "support.stateful_driver", *arguments]
        self._environment = {**os.environ, "LOCKSTEP_DSN": dsn, "PYTHONPATH": str(TESTS)}
        self._environment.pop("LOCKSTEP_SOAK", None)
        self.kills = 0

    def run(self, kills: Sequence[tuple[int, float]]) -> None:
        """Run until all is done. For each kill it says after how many more batches, and how much later."""
        for batches, seconds in kills:
            if self._killed(batches, seconds):
                return
        assert self._started().wait() == 0, self._log.read_text()[-3000:]

    def _killed(self, batches: int, seconds: float) -> bool:
        """Start it, and kill it after that many batches; whether it was done before."""
        process = self._started()
        try:
            with psycopg.connect(self._dsn, autocommit=True) as connection:
                target = self._batches(connection) + batches
                while process.poll() is None and self._batches(connection) < target:
                    time.sleep(_POLL_SECONDS)
            if process.poll() is None:
                time.sleep(seconds)
        finally:
            done = process.poll() is not None
            if not done:
                self.kills += 1
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if done:
            assert process.returncode == 0, self._log.read_text()[-3000:]
        return done

    def _started(self) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            return subprocess.Popen(
                self._program, env=self._environment, stdout=log, stderr=log, start_new_session=True
            )

    @staticmethod
    def _batches(connection: psycopg.Connection[tuple[int]]) -> int:
        row = connection.execute(_COMMITTED).fetchone()
        assert row is not None
        return int(row[0])


def check(
    cases: Sequence[Case], spark: SparkSession, dsn: str, folder: Path, kills: Sequence[tuple[int, float]]
) -> int:
    """Raises AssertionError if a case is not what Spark makes of all of its messages; how often it was killed."""
    producer = Producer(dsn)
    for case in cases:
        for push in case.pushes():
            producer.pushed(push)
    producer.close()
    driver = Driver(cases, dsn, folder)
    driver.run(kills)
    for case in cases:
        found = [(name, one.json()) for name, many in stored(dsn, case.sink).items() for one in many]
        expected = _expected(case, spark, dsn)
        assert len(expected) > 3, f"{case} has no results"
        assert results(found, of_keys=case.of_keys) == expected, f"{case.kind}, seed {case.seed}"
        dead = "select count(*), count(distinct (partition_id, seq)) from lockstep.dead_letter where group_name = %s"
        assert query(dsn, dead, f"cases.{case.name}") == [(case.bad(), case.bad())], f"{case.kind}, seed {case.seed}"
    assert problems(dsn) == []
    assert left_on_stage(dsn) == 0
    return driver.kills


def _expected(case: Case, spark: SparkSession, dsn: str) -> list[str]:
    """What one query over all messages comes to."""
    frames = []
    for source in case.sources:
        options = {"dsn": dsn, "queue": source, "payloadSchema": SCHEMA, "payloadMode": "permissive"}
        frames.append(spark.read.format("lockstep").options(**options).load().where("data is not null"))
    rows = [(row["partition"], json.loads(row["payload"])) for row in case.function()(*frames).collect()]
    return results(rows, of_keys=case.of_keys)


def test_small_batches_and_a_kill_come_to_what_one_query_does(
    spark: SparkSession, database_dsn: str, tmp_path: Path
) -> None:
    """One driver for all cases, killed once: a JVM takes long to start."""
    cases = [Case(seed, 30) for seed in range(4)]
    assert {case.kind for case in cases} == {"tumbling", "distinct", "inner_join", "totals"}
    assert check(cases, spark, database_dsn, tmp_path, [(7, 0.1)]) == 1


@soak_only
@pytest.mark.parametrize("number", range(6))
def test_random_cases_with_random_kills(number: int, spark: SparkSession, database_dsn: str, tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(10**6) * ROUND
    print(f"seed {seed}, round {number}")
    chance = random.Random(seed)
    messages = chance.randint(60, 160)
    cases = [Case(seed + place, messages) for place in range(ROUND)]
    kills = [(chance.randint(1, 15), chance.random() * 2) for _ in range(_RUNS_MAX)]
    check(cases, spark, database_dsn, tmp_path, kills[: chance.randint(3, 8)])

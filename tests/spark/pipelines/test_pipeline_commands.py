"""`lockstep pipeline`: in this process, and as one of its own that is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

import psycopg
import pytest
from click.testing import CliRunner, Result

from lockstep.cli.main import cli
from lockstep.exit_codes import USAGE
from support.builders import batch
from support.spark_reads import Producer
from support.spark_writes import numbers, problems, query, wait_for_waiter

pytestmark = pytest.mark.xdist_group("spark-pipelines")

FILE = """
from pyspark.sql import functions as F
from pyspark.sql.types import StringType
from lockstep.spark import Pipeline, reject

orders = Pipeline("orders")

@F.udf(StringType())
def stamped(payload):
    return payload

@orders.step(source="intake", sink="middle", options={"maxMessagesPerTrigger": 10})
def first(df):
    return reject(df, "seq = 5", "no fives").withColumn("payload", stamped("payload"))

@orders.step(source="middle", sink="done")
def second(df):
    return df

if __name__ == "__main__":
    orders.main()
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "orders.py"
    path.write_text(FILE)
    return str(path)


class Commands:
    def __init__(self, dsn: str, file: str, checkpoints: Path) -> None:
        self.file = file
        self.target = ["--dsn", dsn]
        self.checkpoints = ["--checkpoints", str(checkpoints)]

    def __call__(self, *arguments: str, code: int = 0) -> Result:
        result = CliRunner().invoke(cli, ["pipeline", *arguments])
        assert result.exit_code == code, result.output
        return result

    def run(self, *arguments: str, code: int = 0) -> Result:
        return self("run", self.file, *self.target, *self.checkpoints, *arguments, code=code)

    def status(self, *arguments: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self("status", *arguments, *self.target, "-o", "json").stdout)
        return found


@pytest.fixture
def commands(database_dsn: str, file: str, tmp_path: Path) -> Commands:
    return Commands(database_dsn, file, tmp_path / "checkpoints")


@pytest.fixture
def producer(database_dsn: str) -> Iterator[Producer]:
    made = Producer(database_dsn)
    yield made
    made.close()


def test_plan_needs_neither_database_nor_spark(commands: Commands) -> None:
    drawn = commands("plan", commands.file).stdout
    assert drawn.startswith("pipeline orders\n\n[intake]\n  └─ first  (maxMessagesPerTrigger=10)\n")
    assert "there is no file" in commands("plan", "none.py", code=3).output


def test_wrong_input_is_told_before_spark_starts(commands: Commands) -> None:
    assert "has no step 'third'; it has first, second" in commands.run("--step", "third", code=3).output
    assert "the trigger is not valid" in commands.run("--trigger", "soon", code=2).output
    assert "is no setting of Spark" in commands.run("--conf", "x=y", code=2).output
    assert "no pipeline has run" in commands("status", *commands.target).output
    assert "pipeline orders has not run" in commands("status", commands.file, *commands.target).output
    assert "say --yes" in commands("reset", commands.file, *commands.target, code=2).output


def test_reset_forgets_all_of_its_steps_or_none(commands: Commands, database_dsn: str, tmp_path: Path) -> None:
    first = tmp_path / "checkpoints/orders/first"
    first.mkdir(parents=True)
    reset = ("reset", commands.file, *commands.target, "--yes")
    with psycopg.connect(database_dsn) as running:
        running.execute("select lockstep.pipeline_lock('orders', 'second')")
        assert "is being run by another process" in commands(*reset, *commands.checkpoints, code=4).output
    assert first.exists()
    commands(*reset, *commands.checkpoints)
    assert not first.exists()
    first.write_text("not a folder that Spark has made")
    query(
        database_dsn,
        "select lockstep.pipeline_begin("
        "'orders', 'first', '{intake}', '{middle}', null, 'some-query', null, 0, null, null)",
    )
    assert (
        "cannot be removed, so nothing of the step was forgotten"
        in commands(*reset, *commands.checkpoints, code=2).output
    )
    assert [one["step"] for one in commands.status()] == ["first"]
    said = commands(*reset, "--checkpoints", "hdfs://head/checkpoints", code=2).output
    assert "remove hdfs://head/checkpoints/orders/first there, and reset without --checkpoints" in said


@pytest.mark.usefixtures("spark")
def test_run_status_and_reset(commands: Commands, producer: Producer, database_dsn: str) -> None:
    assert "there is no queue 'intake' (queue_not_found)" in commands.run("--once", code=3).output
    producer.pushed(batch("intake", 12))
    ran = commands.run("--once")
    assert "first: batch 0  in 12  out 11  rejected 1  " in ran.stderr
    assert [line.split() for line in ran.stdout.splitlines()] == [
        ["step", "batches", "rows", "in", "pushed", "duplicates", "rejected", "restarts"],
        ["first", "1", "12", "11", "0", "1", "0"],
        ["second", "1", "11", "11", "0", "0", "0"],
    ]
    [first, second] = commands.status("orders")
    assert commands.status(commands.file) == commands.status() == [first, second]
    assert (first["state"], first["lag"], first["rejected"], first["dead_letters"]) == ("stopped", 0, 1, 1)
    assert (second["step"], second["pushed"], second["error"]) == ("second", 11, None)
    producer.pushed(batch("intake", 2, start=13))
    assert {one["step"]: one["lag"] for one in commands.status()} == {"first": 2, "second": 0}
    ran = commands.run("--once", "--step", "first", "-o", "ndjson")
    assert [json.loads(line)["pushed"] for line in ran.stdout.splitlines()] == [2]
    reset = ("reset", commands.file, *commands.target, *commands.checkpoints, "--yes")
    assert commands(*reset, "--step", "second").stdout == "forgotten: second\n"
    assert commands(*reset, "--step", "second").stdout == "forgotten: nothing was known\n"
    assert [one["step"] for one in commands.status()] == ["first"]
    commands.run("--once", "--step", "second")
    assert numbers(database_dsn, "done")["Default"] == [*(n for n in range(1, 13) if n != 5)] * 2 + [13, 14]


@dataclass
class Program:
    """A program that runs. What it says goes to files: a pipe that nobody reads stops it once it is full."""

    popen: subprocess.Popen[str]
    said: IO[str]
    told: IO[str]

    def kill(self) -> None:
        """With all that it started."""
        if self.popen.poll() is None:
            os.killpg(self.popen.pid, signal.SIGKILL)
        self.popen.wait()

    def ended(self, seconds: float) -> tuple[int, str, str]:
        """Its exit code, and what it said on stdout and on stderr."""
        code = self.popen.wait(seconds)
        return code, _all_of(self.said), _all_of(self.told)


def _all_of(file: IO[str]) -> str:
    file.seek(0)
    return file.read()


@contextmanager
def process(*arguments: str) -> Iterator[Program]:
    """A program in a session of its own, which is killed in the end."""
    with TemporaryFile("w+") as said, TemporaryFile("w+") as told:
        command = [sys.executable, *arguments]
        popen = subprocess.Popen(command, stdout=said, stderr=told, text=True, start_new_session=True)
        program = Program(popen, said, told)
        try:
            yield program
        finally:
            program.kill()


def test_kill_in_the_midst_of_a_commit_and_clean_end(commands: Commands, producer: Producer, database_dsn: str) -> None:
    """kill -9 of the driver, then a run that is ended by SIGTERM: every message once, in order."""
    producer.pushed(batch("intake", 8, partition="a"))
    producer.pushed(batch("middle", 1, partition="a", start=0))
    program = ("-m", "lockstep", "pipeline", "run", commands.file, *commands.target, *commands.checkpoints)
    with psycopg.connect(database_dsn) as holder:
        holder.execute("select 1 from lockstep.partition where name = 'a' order by id for update")
        with process(*program, "--trigger", "100ms") as started:
            wait_for_waiter(database_dsn, "pipeline_open", seconds=240, alive=lambda: started.popen.poll() is None)
            started.kill()
    assert query(database_dsn, "select count(*) from lockstep.dead_letter") == [(0,)]
    producer.pushed(batch("intake", 30, partition="a", start=9))
    with process(commands.file, "--dsn-env", "ORDERS_DSN", *commands.checkpoints) as wrong:
        code, _, told = wrong.ended(120)
        assert "ORDERS_DSN, which is not set here (invalid_option)" in told
        assert code == USAGE
    with process(*program, "--trigger", "100ms") as started:
        expected = [n for n in range(39) if n != 5]
        deadline = time.monotonic() + 240
        while len(numbers(database_dsn, "done").get("a", [])) < len(expected):
            if started.popen.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"done are {numbers(database_dsn, 'done')}, and the program said:\n{_all_of(started.told)}")
            time.sleep(0.3)
        # As systemd and `timeout` do it: the whole process group gets it.
        os.killpg(started.popen.pid, signal.SIGTERM)
        code, said, told = started.ended(60)
        assert code == 0, told
        assert not [word for word in ("Traceback", "ERROR", "Exception") if word in told], told
    assert said.splitlines()[1].split()[0] == "first"
    assert {one["state"] for one in commands.status()} == {"stopped"}
    assert numbers(database_dsn, "done") == {"a": expected}
    assert query(database_dsn, "select seq, error from lockstep.dead_letter") == [(5, "no fives")]
    assert problems(database_dsn) == []

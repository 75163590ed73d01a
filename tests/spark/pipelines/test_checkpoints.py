"""Where a step goes on: with the checkpoint that it last ran with, or where it is asked to begin."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lockstep.errors import CheckpointElsewhere, CheckpointMismatch, InvalidOption
from lockstep.spark import Pipeline
from lockstep.spark.database import Access
from lockstep.spark.pipelines import running, status
from lockstep.spark.pipelines.changes import Definition, changes, definition_of
from lockstep.spark.pipelines.running import StepDone
from support.builders import batch
from support.spark_reads import Producer
from support.spark_writes import numbers, query

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.xdist_group("spark-pipelines")


@pytest.fixture
def producer(database_dsn: str) -> Iterator[Producer]:
    made = Producer(database_dsn)
    yield made
    made.close()


class Runner:
    """Runs a pipeline of one step, each time with the checkpoints that it is told."""

    def __init__(self, spark: SparkSession, dsn: str, folder: Path) -> None:
        self.spark = spark
        self.access = Access(dsn=dsn)
        self.folder = folder

    def __call__(self, place: str, restart_from: str | None = None, **options: Any) -> list[StepDone]:
        pipeline = Pipeline("copy")
        pipeline.step(**{"source": "q", "sink": "out", "name": "pass", **options})(lambda df: df)
        return pipeline.run(
            self.spark,
            once=True,
            dsn=self.access.dsn,
            checkpoints=str(self.folder / place),
            restart_from=restart_from,
        )

    def status(self) -> status.PipelineStep:
        with self.access.connect() as connection:
            [found] = status.list_steps(connection, "copy")
            return found


@pytest.fixture
def run(spark: SparkSession, database_dsn: str, tmp_path: Path) -> Runner:
    return Runner(spark, database_dsn, tmp_path)


def test_another_checkpoint_is_refused_and_names_both(run: Runner, producer: Producer, database_dsn: str) -> None:
    producer.pushed(batch("q", 5))
    run("here")
    with pytest.raises(CheckpointElsewhere) as refused:
        run("there")
    assert f"{run.folder}/here/copy/pass" in refused.value.message
    assert f"{run.folder}/there/copy/pass" in refused.value.message
    assert "--restart-from" in refused.value.message
    assert numbers(database_dsn, "out") == {"Default": [1, 2, 3, 4, 5]}
    # Nothing was begun there, and the step goes on where it was; its checkpoint may move.
    assert not (run.folder / "there").exists()
    (run.folder / "here").rename(run.folder / "moved")
    producer.pushed(batch("q", 1, start=6))
    assert [one.pushed for one in run("moved")] == [1]
    assert str(run.status().checkpoint).endswith(f":{run.folder}/moved/copy/pass")


def test_restart_goes_on_at_the_position_that_the_database_knows(
    run: Runner, producer: Producer, database_dsn: str
) -> None:
    producer.pushed(batch("q", 5))
    run("here")
    producer.pushed(batch("q", 2, start=6))
    assert [one.pushed for one in run("there", "position")] == [2]
    assert numbers(database_dsn, "out") == {"Default": [1, 2, 3, 4, 5, 6, 7]}
    producer.pushed(batch("q", 3, start=8))
    # One stream is left, and the lag is that of it alone.
    assert run.status().lag == 3
    assert query(database_dsn, "select count(*) from lockstep.spark_position") == [(1,)]
    with pytest.raises(CheckpointElsewhere):
        run("here")
    assert [one.pushed for one in run("there")] == [3]


def test_restart_from_either_end(run: Runner, producer: Producer, database_dsn: str) -> None:
    producer.pushed(batch("q", 2))
    run("here")
    assert [one.pushed for one in run("here", "earliest")] == [2]
    producer.pushed(batch("q", 1, start=3))
    assert [one.pushed for one in run("there", "latest")] == [0]
    producer.pushed(batch("q", 1, start=4))
    assert [one.pushed for one in run("there")] == [1]
    assert numbers(database_dsn, "out") == {"Default": [1, 2, 1, 2, 4]}
    with pytest.raises(InvalidOption, match="restart_from must be earliest, latest or position, not 'now'"):
        run("there", "now")


def test_checkpoint_that_was_put_back_is_refused(run: Runner, producer: Producer, database_dsn: str) -> None:
    producer.pushed(batch("q", 1))
    run("here")
    shutil.copytree(run.folder / "here", run.folder / "backup")
    for number in (2, 3):
        producer.pushed(batch("q", 1, start=number))
        run("here")
    with pytest.raises(CheckpointElsewhere, match="it ends with batch 0, and the step has written batch 2"):
        run("backup")
    assert [one.pushed for one in run("backup", "position")] == [0]
    assert numbers(database_dsn, "out") == {"Default": [1, 2, 3]}


def test_checkpoint_of_a_step_that_was_reset_is_refused(run: Runner, producer: Producer, database_dsn: str) -> None:
    producer.pushed(batch("q", 1))
    run("here")
    producer.pushed(batch("q", 1, start=2))
    run("here")
    pipeline = Pipeline("copy")
    pipeline.step(source="q", sink="out", name="pass")(lambda df: df)
    shutil.copytree(run.folder / "here", run.folder / "copied")
    # The checkpoint that it last ran with goes, too, wherever it is on this machine.
    assert status.reset(pipeline.steps, run.access, str(run.folder / "there")) == ["pass"]
    assert not (run.folder / "here/copy/pass").exists()
    with pytest.raises(CheckpointElsewhere, match="the database knows nothing of the step"):
        run("copied")
    assert [one.pushed for one in run("there")] == [2]
    assert numbers(database_dsn, "out") == {"Default": [1, 2, 1, 2]}


def test_renamed_step_is_refused_and_can_go_on(run: Runner, producer: Producer, database_dsn: str) -> None:
    producer.pushed(batch("q", 3))
    run("here")
    producer.pushed(batch("q", 1, start=4))
    renamed = Pipeline("copy")
    renamed.step(source="q", sink="out", name="renamed")(lambda df: df)
    given = {"once": True, "dsn": database_dsn, "checkpoints": str(run.folder / "here")}
    with pytest.raises(CheckpointElsewhere, match="it is new, and reads and writes what step 'pass' did"):
        renamed.run(run.spark, **given)
    assert [one.pushed for one in renamed.run(run.spark, **given, restart_from="position")] == [1]
    assert numbers(database_dsn, "out") == {"Default": [1, 2, 3, 4]}
    assert run.status().step == "renamed"
    assert query(database_dsn, "select name from lockstep.spark_position") == [("copy.renamed",)]


def test_changes_of_a_step_are_said_and_a_queue_is_added(
    run: Runner, producer: Producer, database_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(running._log, "warning", lambda text, *values: told.append(text % values))
    producer.pushed(batch("q", 2), batch("older", 1, start=100))
    run("here")
    assert told == []
    with pytest.raises(CheckpointMismatch, match="older, which has messages from before what the stream has read"):
        run("here", source=["older", "q"])
    with Access(dsn=database_dsn).connect() as connection:
        connection.execute("select lockstep.resolve('newer', '{}', null)")
    producer.pushed(batch("newer", 1, start=200), batch("q", 1, start=3))
    told.clear()
    run("here", source=["q", "newer"], payload_schema="n bigint")
    assert [one.partition("ran. ")[2].split(":")[0] for one in told] == [
        "payload_schema",
        "a queue more, newer",
        "a queue less, older",
    ]
    assert sorted(numbers(database_dsn, "out")["Default"]) == [1, 2, 3, 200]
    # A queue that the step no longer reads is let go with the next batch.
    producer.pushed(batch("q", 1, start=4))
    run("here")
    assert query(database_dsn, "select count(*) from lockstep.spark_position") == [(1,)]


def test_digest_of_a_function_is_that_of_what_it_does() -> None:
    def step(function: Any) -> Definition:
        pipeline = Pipeline("p")
        pipeline.step(source="q", sink="out", name="s")(function)
        return definition_of(pipeline.steps[0])

    assert step(lambda df: df) == step(lambda df: df)
    assert changes(step(lambda df: df), step(lambda df: df.limit(1)))[0].startswith("its function")


def test_step_with_a_group_goes_on_where_its_group_is(run: Runner, producer: Producer, database_dsn: str) -> None:
    producer.pushed(batch("q", 2))
    run("here", group="workers")
    producer.pushed(batch("q", 1, start=3))
    with pytest.raises(InvalidOption, match="step 'pass' goes on where its group 'workers' is"):
        run("there", "earliest", group="workers")
    assert [one.pushed for one in run("there", group="workers")] == [1]
    assert numbers(database_dsn, "out") == {"Default": [1, 2, 3]}

"""Pipelines on Spark: every message once, in order, with its trace; what a step cannot take becomes a dead letter."""

from __future__ import annotations

import inspect
import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen
from uuid import uuid4

import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyspark.sql import functions as F  # noqa: N812

import lockstep
from lockstep.cli.main import cli
from lockstep.core.messages import Batch, Columns
from lockstep.errors import Conflict, InvalidOption, QueueNotFound, StepFailed
from lockstep.spark import Pipeline, reject
from lockstep.spark.database import Access
from lockstep.spark.jobs import stats
from lockstep.spark.jobs import traces as follow
from lockstep.spark.jobs.stats import StatsOptions
from lockstep.spark.jobs.traces import Trace, TraceOptions
from lockstep.spark.pipelines import batches, status
from lockstep.spark.pipelines.running import StepDone, StepProgress
from lockstep.storage.postgres.store import PostgresStore
from support.builders import batch
from support.databases import Databases
from support.serving import serving
from support.spark_reads import Producer
from support.spark_writes import left_on_stage, numbers, problems, query, stored

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from lockstep.client import Client

pytestmark = pytest.mark.xdist_group("spark-pipelines")

SCHEMA = "n bigint, card string"


@pytest.fixture
def producer(database_dsn: str) -> Iterator[Producer]:
    made = Producer(database_dsn)
    yield made
    made.close()


@pytest.fixture
def client(database_dsn: str) -> Iterator[Client]:
    with lockstep.connect(database_dsn) as opened:
        yield opened


class Runner:
    """Runs pipelines until what is there is done."""

    def __init__(self, spark: SparkSession, dsn: str, checkpoints: Path) -> None:
        self.spark = spark
        self.dsn = dsn
        self.checkpoints = str(checkpoints)

    def __call__(self, pipeline: Pipeline, *steps: str, **more: Any) -> list[StepDone]:
        return pipeline.run(
            self.spark, once=True, steps=steps or None, dsn=self.dsn, checkpoints=self.checkpoints, **more
        )

    def status(self, pipeline: str) -> dict[str, status.PipelineStep]:
        with Access(dsn=self.dsn).connect() as connection:
            return {one.step: one for one in status.list_steps(connection, pipeline)}


@pytest.fixture
def run(spark: SparkSession, database_dsn: str, tmp_path: Path) -> Runner:
    return Runner(spark, database_dsn, tmp_path / "checkpoints")


def lanes(queue: str, count: int, partitions: int) -> list[Batch]:
    """Numbered messages, each with a trace of its own, over partitions a, b, …"""
    return [
        batch(
            queue,
            count,
            partition=chr(ord("a") + lane),
            start=1 + lane * count,
            trace_ids=[str(uuid4()) for _ in range(count)],
        )
        for lane in range(partitions)
    ]


def dead(dsn: str) -> list[tuple[str, str, int, str]]:
    """The dead letters: group, partition, seq, error."""
    return query(
        dsn,
        "select d.group_name, p.name, d.seq, d.error from lockstep.dead_letter d "
        "join lockstep.partition p on p.id = d.partition_id order by d.group_name, p.name, d.seq",
    )


def three_steps() -> Pipeline:
    orders = Pipeline("orders")

    @orders.step(source="intake", sink="payment", payload_schema=SCHEMA)
    def validate(df: DataFrame) -> DataFrame:
        return reject(df, "data.n % 10 = 3", "a three is not valid")

    @orders.step(source="payment", sink="shipping")
    def charge(df: DataFrame) -> DataFrame:
        # A card that is no number is an error of Spark's.
        card = "cast(coalesce(get_json_object(payload, '$.card'), '0') as bigint)"
        n = "cast(get_json_object(payload, '$.n') as bigint)"
        return df.withColumn("payload", F.expr(f"to_json(named_struct('n', {n}, 'card', {card}))"))

    @orders.step(source="shipping", sink="done")
    def ship(df: DataFrame) -> DataFrame:
        return df

    return orders


def test_three_steps_keep_order_and_traces_and_reject_what_fails(
    run: Runner, producer: Producer, database_dsn: str
) -> None:
    sent = lanes("intake", 20, 3)
    producer.pushed(*sent)
    # Not what the schema says, and a card that breaks the second step.
    traces = [str(uuid4()), str(uuid4()), str(uuid4())]
    bad = [b'{"n": "x"}', b'{"n": 61, "card": "none"}', b'{"n": 62, "card": "12"}']
    producer.pushed(Batch("intake", "a", Columns(bad, trace_ids=list(traces))))
    told: list[StepProgress] = []
    done = run(three_steps(), progress=told.append)
    by_step = {one.step: one for one in done}
    threes = [n for n in range(1, 61) if n % 10 == 3]
    assert (by_step["validate"].pushed, by_step["validate"].rejected) == (62 - len(threes), len(threes) + 1)
    assert (by_step["charge"].pushed, by_step["charge"].rejected) == (61 - len(threes), 1)
    assert by_step["ship"].pushed == 61 - len(threes)
    assert {one.step: one.lag for one in told} == {"validate": 0, "charge": 0, "ship": 0}
    # In order, each with its trace.
    arrived = stored(database_dsn, "done")
    expected = {
        one.partition: [
            (json.loads(payload)["n"], trace)
            for payload, trace in zip(one.columns.payloads, one.columns.trace_ids or (), strict=True)
            if json.loads(payload)["n"] % 10 != 3
        ]
        for one in sent
    }
    expected["a"].append((62, traces[2]))
    assert {
        name: [(message.json()["n"], message.trace_id) for message in messages] for name, messages in arrived.items()
    } == expected
    # Dead letters of the queue that the step read, with what was wrong.
    letters = dead(database_dsn)
    assert [letter[:3] for letter in letters if letter[0] == "orders.charge"] == [("orders.charge", "a", 19)]
    assert "CAST_INVALID_INPUT" in next(letter[3] for letter in letters if letter[0] == "orders.charge")
    errors = [letter[3] for letter in letters if letter[0] == "orders.validate"]
    assert errors.count("a three is not valid") == len(threes)
    assert [error for error in errors if "does not fit" in error] == [
        f"the payload does not fit the payload_schema {SCHEMA}"
    ]
    assert problems(database_dsn) == []
    assert left_on_stage(database_dsn) == 0
    # What a step has read is completed, what it has rejected is dead, and what came since waits for it.
    producer.pushed(Batch("intake", "b", Columns([b'{"n": 63}'], trace_ids=[late := str(uuid4())])))
    found = {one.trace_id: one for one in follow.job(run.spark, TraceOptions(access=Access(dsn=database_dsn)))}
    assert {one: ways(found[one]) for one in (*traces, late)} == {
        traces[0]: [("intake", "dead_letter", "orders.validate")],
        traces[1]: [("intake", "completed", None), ("payment", "dead_letter", "orders.charge")],
        traces[2]: [(queue, "completed", None) for queue in ("intake", "payment", "shipping")]
        + [("done", "pending", None)],
        late: [("intake", "pending", "orders.validate")],
    }


def ways(trace: Trace) -> list[tuple[str, str, str | None]]:
    """Where a trace has been, what became of it there, and who has not completed it."""
    return [(step.queue, step.status, step.group) for step in trace.steps]


def passing(
    name: str = "copy", *, source: str | list[str] = "q", sink: str | list[str] | None = "out", **more: Any
) -> Pipeline:
    """A pipeline of one step that changes nothing."""
    pipeline = Pipeline(name)
    pipeline.step(source=source, sink=sink, name="pass", **more)(lambda df: df)
    return pipeline


def failing(function: Any, **more: Any) -> Pipeline:
    """A pipeline of one step with this function."""
    pipeline = Pipeline("copy")
    pipeline.step(**{"source": "q", "sink": "out", "name": "pass", **more})(function)
    return pipeline


def test_runs_do_what_is_new_once_even_if_spark_forgets_that_it_is_done(
    run: Runner, producer: Producer, database_dsn: str
) -> None:
    producer.pushed(batch("q", 3, headers=[b'{"x":"y"}', None, None], kinds=["k", None, None]))
    assert [one.pushed for one in run(passing())] == [3]
    producer.pushed(batch("q", 2, start=4))
    assert [(one.rows_in, one.pushed) for one in run(passing())] == [(2, 2)]
    for commit in ("1", ".1.crc"):
        (Path(run.checkpoints) / "copy/pass/commits" / commit).unlink()
    [again] = run(passing())
    assert (again.batches, again.pushed) == (1, 0)
    assert numbers(database_dsn, "out") == {"Default": [1, 2, 3, 4, 5]}
    first = stored(database_dsn, "out")["Default"][0]
    assert (first.headers, first.kind) == ({"x": "y"}, "k")
    # It has no trace of its own, so it has the id of the message that it began with.
    assert first.trace_id == stored(database_dsn, "q")["Default"][0].id
    assert first.transaction_id == first.id
    found = run.status("copy")["pass"]
    assert (found.state, found.batch, found.pushed, found.rejected, found.lag) == ("stopped", 1, 5, 0, 0)


def test_rows_are_routed_from_several_queues_and_to_a_dead_queue(
    run: Runner, producer: Producer, client: Client, database_dsn: str
) -> None:
    client.configure("dead-r")
    client.configure("r", dead_queue="dead-r")
    producer.pushed(batch("q", 4), batch("r", 3, start=5))
    pipeline = Pipeline("routing")

    @pipeline.step(source=["q", "r"], sink=["odd", "even"])
    def route(df: DataFrame) -> DataFrame:
        n = "cast(get_json_object(payload, '$.n') as bigint)"
        return df.withColumn(
            "queue", F.expr(f"case when {n} = 6 then 'nowhere' when {n} % 2 = 0 then 'even' else 'odd' end")
        )

    [done] = run(pipeline)
    assert (done.pushed, done.rejected) == (6, 1)
    assert sorted(numbers(database_dsn, "odd")["Default"]) == [1, 3, 5, 7]
    assert sorted(numbers(database_dsn, "even")["Default"]) == [2, 4]
    assert dead(database_dsn) == [
        ("routing.route", "Default", 2, "column 'queue' is 'nowhere', which is no sink: odd, even")
    ]
    assert numbers(database_dsn, "dead-r") == {"Default": [6]}


@pytest.mark.parametrize("stateful", [False, True])
def test_queues_by_pattern_and_those_to_come(
    run: Runner, producer: Producer, database_dsn: str, stateful: bool
) -> None:
    producer.pushed(batch("tenant-a-orders", 3), batch("tenant-a-refunds", 1))
    pipeline = Pipeline("tenants")

    @pipeline.step(source_pattern="tenant-*-orders", sink="all", payload_schema="n bigint", stateful=stateful)
    def gather(df: DataFrame) -> DataFrame:
        return reject(df, "data.n = 2", "no twos")

    [done] = run(pipeline)
    assert (done.rows_in, done.pushed, done.rejected) == (3, 2, 1)
    producer.pushed(batch("tenant-b-orders", 2, start=4), batch("tenant-a-orders", 1, start=6))
    [done] = run(pipeline)
    assert (done.rows_in, done.pushed, done.rejected) == (3, 3, 0)
    assert sorted(numbers(database_dsn, "all")["Default"]) == [1, 3, 4, 5, 6]
    producer.pushed(batch("tenant-b-orders", 2, start=2))
    known = run.status("tenants")["gather"]
    assert (known.lag, known.dead_letters, known.pushed) == (2, 1, 5)
    assert known.sources == ["tenant-a-orders", "tenant-b-orders"]
    [done] = run(pipeline)
    assert (done.pushed, done.rejected, len(dead(database_dsn))) == (1, 1, 2)
    assert run.status("tenants")["gather"].lag == 0


def test_one_message_becomes_several_and_ids_deduplicate_only_if_asked(
    run: Runner, producer: Producer, database_dsn: str
) -> None:
    producer.pushed(batch("q", 2))

    def doubled(df: DataFrame) -> DataFrame:
        return df.withColumn("copy", F.explode(F.array(F.lit(1), F.lit(2)))).drop("copy")

    both = failing(doubled)
    both.step(source="q", sink="single", name="single", dedupe=True)(doubled)
    assert {one.step: one.pushed for one in run(both)} == {"pass": 4, "single": 2}
    assert numbers(database_dsn, "out") == {"Default": [1, 1, 2, 2]}
    assert numbers(database_dsn, "single") == {"Default": [1, 2]}


def test_every_figure_adds_up(run: Runner, producer: Producer, database_dsn: str) -> None:
    """What a run says, what the database knows of the steps, samples, and statistics: all are what was really done."""
    producer.pushed(*lanes("q", 20, 2))
    pipeline = Pipeline("figures")

    @pipeline.step(source="q", sink="out", payload_schema="n bigint")
    def twice(df: DataFrame) -> DataFrame:
        rows = reject(df, "data.n % 10 = 3", "no")
        return rows.unionByName(rows.where("seq <= 5"))

    @pipeline.step(source="out", sink="end", dedupe=True)
    def once(df: DataFrame) -> DataFrame:
        return df.withColumn("transaction_id", F.col("payload"))

    done = {one.step: (one.rows_in, one.pushed, one.duplicates, one.rejected) for one in run(pipeline)}
    assert done == {"twice": (40, 44, 0, 4), "once": (44, 36, 8, 0)}
    known = run.status("figures")
    assert {name: (one.pushed, one.duplicates, one.rejected, one.lag) for name, one in known.items()} == {
        name: (*counts[1:], 0) for name, counts in done.items()
    }
    assert sum(map(len, numbers(database_dsn, "out").values())) == 44
    assert sum(map(len, numbers(database_dsn, "end").values())) == 36
    assert len(dead(database_dsn)) == 4
    span = StatsOptions(access=Access(dsn=database_dsn), window_seconds=7 * 86_400)
    stats.job(run.spark, span)
    sampled = query(database_dsn, "select queue, pushed, completed, dead, pending, lag_seconds from lockstep.sample")
    assert sorted(sampled)[1:] == [("out", 44, 44, 0, 0, 0.0), ("q", 40, 36, 4, 0, 0.0)]
    windows = "select queue, group_name, pushed, completed, dead, pending from lockstep.stat_window order by 1, 2"
    assert query(database_dsn, windows)[1:] == [
        ("out", "", 44, 44, None, 0),
        ("out", "figures.once", None, None, None, 0),
        ("q", "", 40, 36, 4, 0),
        ("q", "figures.twice", None, None, 4, 0),
    ]
    # What comes later is counted once, too; and what waits is pending.
    producer.pushed(*lanes("q", 3, 1))
    stats.job(run.spark, span)
    assert query(database_dsn, windows)[3][2:] == (43, 36, 4, 3)
    expected = {"twice": (44, 0, 4, 3), "once": (36, 8, 0, 0)}
    with serving(PostgresStore(database_dsn)) as url:
        assert _figures_over_http(url) == expected
        assert _figures_of_prometheus(url) == expected
    listed = CliRunner().invoke(cli, ["pipeline", "status", "figures", "-o", "json", "--dsn", database_dsn])
    assert {
        one["step"]: (one["pushed"], one["duplicates"], one["rejected"], one["lag"])
        for one in json.loads(listed.stdout)
    } == expected


def _figures_over_http(url: str) -> dict[str, tuple[int, ...]]:
    with urlopen(f"{url}/api/v1/pipelines?pipeline=figures") as answer:
        steps = json.load(answer)["steps"]
    return {one["step"]: (one["pushed"], one["duplicates"], one["rejected"], one["lag"]) for one in steps}


def _figures_of_prometheus(url: str) -> dict[str, tuple[int, ...]]:
    with urlopen(f"{url}/metrics/prometheus") as answer:
        text = answer.read().decode()

    def value(name: str, step: str) -> int:
        labels = f'{{pipeline="figures",step="{step}"}}'
        return int(float(text.partition(f"\nlockstep_pipeline_step_{name}{labels} ")[2].partition("\n")[0]))

    names = ("pushed_total", "duplicates_total", "rejected_total", "lag")
    return {step: tuple(value(name, step) for name in names) for step in ("twice", "once")}


def test_step_that_fails_stops_and_resumes_where_it_was(run: Runner, producer: Producer, database_dsn: str) -> None:
    producer.pushed(batch("q", 12))
    what = r"step 'pass' of pipeline 'copy' failed in batch 0: {}.*; nothing of the batch was written"

    def fails(function: Any, said: str, **more: Any) -> None:
        with pytest.raises(StepFailed, match=what.format(said)):
            run(failing(function, **more))

    fails(
        lambda df: df.select("payload"), "its function dropped the column partition, trace_id, seq: keep it, or define"
    )
    fails(lambda df: reject(df, "true", "no").drop("message_id"), "its function marks rows in _error, and dropped")
    fails(lambda df: df.select("nothing"), r"\[UNRESOLVED_COLUMN")
    fails(lambda _: 1 / 0, "ZeroDivisionError: division by zero")
    fails(lambda _: 17, "its function returned int, and not a DataFrame")
    fails(
        lambda df: df.withColumn("total", F.lit(1)), "its function adds the column total, which a message does not have"
    )
    fails(
        lambda df: df.withColumn("payload", F.lit("no JSON")),
        "every message of the batch fails, one of them with: column 'payload' is no JSON: ",
    )
    assert run.status("copy")["pass"].state == "failed"
    assert "every message of the batch" in (run.status("copy")["pass"].error or "")
    assert [one.pushed for one in run(passing())] == [12]
    assert numbers(database_dsn, "out") == {"Default": list(range(1, 13))}
    assert dead(database_dsn) == []
    assert run.status("copy")["pass"].state == "stopped"


def test_messages_on_which_a_udf_raises_are_found_up_to_a_limit(
    run: Runner, producer: Producer, client: Client, database_dsn: str
) -> None:
    producer.pushed(*lanes("q", 20, 2))

    @F.udf("string")
    def checked(payload):  # type: ignore[no-untyped-def]  # Spark takes hints for a kind of function
        if json.loads(payload)["n"] in (7, 30):
            raise ValueError(f"bad luck: {payload}")
        return payload

    def step(df: DataFrame) -> DataFrame:
        return df.withColumn("payload", checked("payload"))

    with pytest.raises(
        StepFailed, match=r"more than 1 messages fail .rejects_max., the last one with: ValueError: bad luck"
    ):
        run(failing(step, rejects_max=1))
    assert dead(database_dsn) == []
    [done] = run(failing(step))
    assert (done.pushed, done.rejected) == (38, 2)
    line = inspect.getsourcelines(test_messages_on_which_a_udf_raises_are_found_up_to_a_limit)[1] + 8
    place = f"(test_pipelines.py:{line})"
    assert dead(database_dsn) == [
        ("copy.pass", "a", 7, f'ValueError: bad luck: {{"n":7}} {place}'),
        ("copy.pass", "b", 10, f'ValueError: bad luck: {{"n":30}} {place}'),
    ]
    assert run.status("copy")["pass"].dead_letters == 2
    # Redrive puts them back into the source queue, and a step that takes them goes on with them.
    assert client.redrive(queue="q", group="copy.pass") == 2
    assert [one.pushed for one in run(passing())] == [2]
    assert numbers(database_dsn, "out")["a"] == [*(n for n in range(1, 21) if n != 7), 7]


def test_bad_rows_are_found_in_one_pass(
    run: Runner, producer: Producer, database_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By Python functions of every kind, and by the sink."""
    producer.pushed(*lanes("q", 500, 2))
    monkeypatch.setattr(batches, "Search", None)

    @F.udf("string")
    def by_row(payload):  # type: ignore[no-untyped-def]
        return payload if json.loads(payload)["n"] % 50 else 1 / 0

    @F.pandas_udf("string")  # type: ignore[call-overload]
    def by_pandas(payloads: pd.Series) -> pd.Series:
        numbers = payloads.map(lambda payload: json.loads(payload)["n"])
        if (numbers % 50 == 0).any():
            raise ValueError(f"bad: {numbers[numbers % 50 == 0].iloc[0]}")
        return payloads

    @F.arrow_udf("string")  # type: ignore[call-overload]
    def by_arrow(payloads: pa.Array) -> pa.Array:
        if any(json.loads(payload)["n"] % 50 == 0 for payload in payloads.to_pylist()):
            raise ValueError("bad")
        return payloads

    steps = Pipeline("rows")
    for function in (by_row, by_pandas, by_arrow):
        name = function.__name__
        steps.step(source="q", sink=name, name=name)(
            lambda df, function=function: df.withColumn("payload", function("payload"))
        )
    by_sink = F.expr("if(cast(get_json_object(payload, '$.n') as int) % 50 = 0, '{', payload)")
    steps.step(source="q", sink="by_sink", name="by_sink")(lambda df: df.withColumn("payload", by_sink))
    done = run(steps)
    bad = [n for n in range(1, 1001) if n % 50 == 0]
    assert {one.step: (one.rows_in, one.pushed, one.rejected) for one in done} == {
        name: (1000, 980, 20) for name in ("by_row", "by_pandas", "by_arrow", "by_sink")
    }
    good = {"a": [n for n in range(1, 501) if n % 50], "b": [n for n in range(501, 1001) if n % 50]}
    assert {name: numbers(database_dsn, name) == good for name in ("by_row", "by_pandas", "by_arrow", "by_sink")} == {
        name: True for name in ("by_row", "by_pandas", "by_arrow", "by_sink")
    }
    letters = dead(database_dsn)
    assert sorted(seq + 500 * (lane == "b") for group, lane, seq, _ in letters if group == "rows.by_pandas") == bad
    assert ("rows.by_pandas", "a", 50) in [
        one[:3] for one in letters if one[3].startswith("ValueError: bad: 50 (test_")
    ]
    assert {error.split(":")[0] for group, *_, error in letters if group == "rows.by_row"} == {"ZeroDivisionError"}


@pytest.mark.parametrize("kind", ["explodes", "keeps_payload", "no_payload"])
def test_no_row_of_a_bad_message_is_written(run: Runner, producer: Producer, database_dsn: str, kind: str) -> None:
    """Also where one of its rows could be, and in the batches after the first one with bad messages."""
    for first in range(1, 81, 20):
        producer.pushed(batch("q", 20, start=first))
    producer.pushed(Batch("q", "Default", Columns([b'{"n": "none"}'])))

    @F.udf("string")
    def checked(payload, copy):  # type: ignore[no-untyped-def]
        n = json.loads(payload)["n"]
        if n % 10 == 0 and copy == n // 10 % 2:
            raise ValueError("bad")
        return None if kind == "no_payload" and n % 10 == 5 and copy else payload

    steps = Pipeline("rows")

    @steps.step(source="q", sink="out", name="step", payload_schema=SCHEMA, options={"maxMessagesPerTrigger": 20})
    def step(df: DataFrame) -> DataFrame:
        copied = df.withColumn("copy", F.explode(F.sequence(F.lit(0), F.lit(1))))
        column = "kind" if kind == "keeps_payload" else "payload"
        return copied.withColumn(column, checked("payload", "copy")).drop("copy")

    [done] = run(steps)
    bad = [n for n in range(1, 81) if n % 10 == 0 or (kind == "no_payload" and n % 10 == 5)]
    assert (done.rows_in, done.pushed, done.rejected) == (81, 2 * (80 - len(bad)), len(bad) + 1)
    assert numbers(database_dsn, "out")["Default"] == [n for n in range(1, 81) if n not in bad for _ in range(2)]
    assert [seq for _, _, seq, _ in dead(database_dsn)] == [*bad, 81]
    assert left_on_stage(database_dsn) == 0


@pytest.mark.parametrize("moves", [False, True])
def test_order_of_partitions_over_many_tasks(run: Runner, producer: Producer, database_dsn: str, moves: bool) -> None:
    """Where the step leaves the rows in place, and where it moves them."""
    for first in range(1, 60_001, 5_000):
        producer.pushed(*(batch("q", 500, partition=f"p{lane}", start=first + 500 * lane) for lane in range(10)))
    steps = Pipeline("order")
    steps.step(source="q", sink="out", name="step", options={"parallelism": "6"})(
        lambda df: df.repartition(5) if moves else df.where("seq % 2 = 0")
    )
    [done] = run(steps)
    assert done.rows_in == 60_000
    sent = {f"p{lane}": [n for n in range(1, 60_001) if (n - 1) // 500 % 10 == lane] for lane in range(10)}
    assert numbers(database_dsn, "out") == (sent if moves else {name: sent[name][1::2] for name in sent})


def test_batch_whose_worker_is_killed_runs_again(
    run: Runner, producer: Producer, database_dsn: str, tmp_path: Path
) -> None:
    """A worker that the system ends says nothing of a message, and Spark on one machine tries a task only once."""
    producer.pushed(*lanes("q", 20, 2))
    deaths = tmp_path / "deaths"

    def step(deaths_max: int) -> Any:
        @F.udf("string")
        def deadly(payload):  # type: ignore[no-untyped-def]  # Spark takes hints for a kind of function
            with deaths.open("a+") as noted:
                if noted.tell() < deaths_max:
                    noted.write("x")
                    noted.flush()
                    os.kill(os.getpid(), signal.SIGKILL)
            return payload

        return lambda df: df.withColumn("payload", deadly("payload"))

    with pytest.raises(StepFailed) as failed:
        run(failing(step(1000)))
    assert "failed in batch 0: Python worker exited unexpectedly (crashed)" in failed.value.message
    assert "\n" not in failed.value.message
    deaths.unlink()
    [done] = run(failing(step(1)))
    assert (done.pushed, done.rejected, deaths.read_text()) == (40, 0, "x")
    assert numbers(database_dsn, "out") == {"a": list(range(1, 21)), "b": list(range(21, 41))}
    assert dead(database_dsn) == []


def test_step_without_a_sink_rejects_and_is_not_tried_on_parts(
    run: Runner, producer: Producer, database_dsn: str
) -> None:
    producer.pushed(batch("q", 5))
    seen: list[int] = []

    def count(df: DataFrame) -> DataFrame:
        seen.append(df.count())
        return reject(df, "seq = 2", F.concat(F.lit("seq "), F.col("seq")))

    [done] = run(failing(count, sink=None))
    assert (done.pushed, done.rejected, seen) == (0, 1, [5])
    assert dead(database_dsn) == [("copy.pass", "Default", 2, "seq 2")]
    producer.pushed(batch("q", 5))

    def raises(df: DataFrame) -> None:
        seen.append(0)
        df.selectExpr("raise_error('no')").collect()

    with pytest.raises(StepFailed, match="USER_RAISED_EXCEPTION"):
        run(failing(raises, sink=None))
    assert seen == [5, 0]


def test_missing_queue_and_step_that_runs_elsewhere(run: Runner, producer: Producer, database_dsn: str) -> None:
    with pytest.raises(QueueNotFound, match="there is no queue 'q'"):
        run(passing())
    producer.pushed(batch("q", 1))
    [step] = passing().steps
    elsewhere = status.StepRecord(step, Access(dsn=database_dsn))
    elsewhere.lock()
    with pytest.raises(Conflict, match="step 'pass' of pipeline 'copy' is being run by another process"):
        run(passing())
    with pytest.raises(Conflict):
        status.reset([step], Access(dsn=database_dsn), run.checkpoints)
    elsewhere.close()
    assert [one.pushed for one in run(passing())] == [1]
    with pytest.raises(InvalidOption, match=r"step 'pass': the payload_schema 'n bigint, x nonsense' is not valid: "):
        run(passing(payload_schema="n bigint, x nonsense"))


def test_step_that_cannot_start_stops_those_that_have(run: Runner, producer: Producer, database_dsn: str) -> None:
    producer.pushed(batch("q", 1))
    both = passing()
    both.step(source="out", sink="end", name="last")(lambda df: df)
    elsewhere = status.StepRecord(both.steps[1], Access(dsn=database_dsn))
    elsewhere.lock()
    with pytest.raises(Conflict, match="step 'last' of pipeline 'copy' is being run by another process"):
        both.run(run.spark, dsn=database_dsn, checkpoints=run.checkpoints, trigger="100ms")
    elsewhere.close()
    assert run.spark.streams.active == []
    assert run.status("copy")["pass"].state == "stopped"


def test_reset_begins_anew(run: Runner, producer: Producer, database_dsn: str) -> None:
    producer.pushed(batch("q", 2))
    run(passing())
    access = Access(dsn=database_dsn)
    assert status.reset(passing().steps, access, run.checkpoints) == ["pass"]
    assert run.status("copy") == {}
    assert query(database_dsn, "select count(*) from lockstep.spark_position") == [(0,)]
    assert status.reset(passing().steps, access, run.checkpoints) == []
    run(passing())
    assert numbers(database_dsn, "out") == {"Default": [1, 2, 1, 2]}


def test_step_shares_a_group_and_acks_with_what_it_writes(
    run: Runner, producer: Producer, client: Client, database_dsn: str
) -> None:
    producer.pushed(batch("q", 4))
    client.pop("q", group="workers", batch=1, auto_ack=True)
    pipeline = failing(lambda df: reject(df, "seq = 3", "no threes"), group="workers")
    [done] = run(pipeline)
    assert (done.pushed, done.rejected) == (2, 1)
    assert numbers(database_dsn, "out") == {"Default": [2, 4]}
    assert len(client.pop("q", group="workers", batch=10)) == 0
    assert dead(database_dsn) == [("workers", "Default", 3, "no threes")]
    assert run.status("copy")["pass"].lag == 0


def test_sink_in_another_database(
    run: Runner, producer: Producer, database_dsn: str, databases: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = databases.clone()
    monkeypatch.setenv("ELSEWHERE", other)
    producer.pushed(batch("q", 3))
    pipeline = failing(lambda df: reject(df, "seq = 2", "no"), sink_dsn_env="ELSEWHERE")
    # The workers of the session that the tests share do not have the variable: that is no message's fault.
    with pytest.raises(StepFailed, match="the environment variable ELSEWHERE, which is not set here"):
        run(pipeline)
    assert dead(database_dsn) == []
    monkeypatch.setitem(run.spark.sparkContext.environment, "ELSEWHERE", other)
    [done] = run(pipeline)
    assert (done.pushed, done.rejected) == (2, 1)
    assert numbers(other, "out") == {"Default": [1, 3]}
    assert numbers(database_dsn, "out") == {}
    assert len(dead(database_dsn)) == 1
    databases.drop(other)


def test_running_pipeline_is_stopped_after_its_batch(run: Runner, producer: Producer, database_dsn: str) -> None:
    producer.pushed(batch("q", 2))
    stop, called, entered = threading.Event(), threading.Event(), threading.Event()

    def slow(df: DataFrame) -> DataFrame:
        # The stop comes while the batch is being worked on. Before the query starts, the function sees an empty one.
        if called.is_set():
            entered.set()
            assert stop.wait(60)
        called.set()
        return df

    pipeline = failing(slow)
    pipeline.step(source="out", sink="end", name="last")(lambda df: df)
    threading.Thread(target=lambda: entered.wait(60) and stop.set()).start()
    done = pipeline.run(run.spark, dsn=database_dsn, checkpoints=run.checkpoints, trigger="100ms", stop=stop)
    assert {one.step: (one.batches, one.rows_in, one.pushed) for one in done}["pass"] == (1, 2, 2)
    assert numbers(database_dsn, "out") == {"Default": [1, 2]}
    assert {one.state for one in run.status("copy").values()} == {"stopped"}
    run(pipeline, "last")
    assert numbers(database_dsn, "end") == {"Default": [1, 2]}


def test_batch_that_fails_after_the_stop_is_no_failure_and_runs_again(
    run: Runner, producer: Producer, database_dsn: str
) -> None:
    """Spark fails in its own ways where it is interrupted."""
    producer.pushed(batch("q", 2))
    stop, called, entered = threading.Event(), threading.Event(), threading.Event()

    def interrupted(df: DataFrame) -> DataFrame:
        if called.is_set() and not stop.is_set():
            entered.set()
            assert stop.wait(60)
            raise RuntimeError("interrupted")
        called.set()
        return df

    pipeline = failing(interrupted)
    threading.Thread(target=lambda: entered.wait(60) and stop.set()).start()
    pipeline.run(run.spark, dsn=database_dsn, checkpoints=run.checkpoints, trigger="100ms", stop=stop)
    assert numbers(database_dsn, "out") == {}
    run(pipeline)
    assert numbers(database_dsn, "out") == {"Default": [1, 2]}

"""Pipelines as they are defined, loaded and drawn; nothing here needs a JVM."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lockstep.errors import Conflict, InvalidName, InvalidOption, InvalidRequest, NotFound
from lockstep.spark import Pipeline, inputs
from lockstep.spark.pipelines.loading import load
from lockstep.spark.pipelines.running import RunOptions, StepProgress, line_of
from lockstep.spark.pipelines.status import checkpoint_of


def defined(*steps: dict[str, Any]) -> Pipeline:
    """A pipeline with these steps, which are named a, b, …"""
    pipeline = Pipeline("p")
    for number, given in enumerate(steps):
        pipeline.step(**{"name": chr(ord("a") + number), **given})(lambda df: df)
    return pipeline


# --- Names and options --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "a/b", "a.b", "-a", "ä", "x" * 101, "a b"])
def test_names_are_parts_of_paths(name: str) -> None:
    with pytest.raises(InvalidName, match="letters, digits"):
        Pipeline(name)
    with pytest.raises(InvalidName, match="the name of a step"):
        Pipeline("p").step(source="q", sink=None, name=name or "/")(lambda df: df)


def test_step_is_named_after_its_function_and_gives_it_back() -> None:
    pipeline = Pipeline("p")

    @pipeline.step(source="in", sink="out")
    def double(df: int) -> int:
        return 2 * df

    assert double(2) == 4
    assert [(step.name, step.full_name) for step in pipeline.steps] == [("double", "p.double")]
    assert repr(pipeline) == "Pipeline('p', steps: double)"


def test_second_step_of_a_name_is_refused() -> None:
    with pytest.raises(Conflict, match="has a step 'a' already"):
        defined({"source": "q", "sink": "r"}, {"source": "q", "sink": "s", "name": "a"})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"source": []}, "the source of a step is a queue, or several; none is named"),
        ({"source": ["q", "q"]}, "names a queue twice"),
        ({"source": 5}, "the source of a step is a queue, or several, not 5"),
        ({"payload_schema": 5}, "step 'a': payload_schema must be text, not 5"),
        ({"group": 3}, "step 'a': group must be text, not 3"),
        ({"sink": []}, "the sink of a step is a queue, or several; none is named"),
        ({"options": {"maxMessages": 1}}, "unknown option maxMessages; known are .*maxMessagesPerTrigger"),
        ({"options": {"streamName": "s"}}, "unknown option streamName"),
        ({"options": {"maxMessagesPerTrigger": 0}}, "step 'a': the option maxMessagesPerTrigger is not valid"),
        ({"options": {"failOnDataLoss": "maybe"}}, "neither true nor false"),
        ({"rejects_max": -1}, "rejects_max must be 0 or more"),
        ({"rejects_max": True}, "rejects_max must be 0 or more"),
        ({"sink": None, "sink_dsn_env": "OTHER"}, "has no sink"),
        ({"group": "g", "sink_dsn_env": "OTHER"}, "one database"),
        ({"source_pattern": "q*"}, "a step has a source, or a source_pattern"),
        ({"source": None}, "a step has a source, or a source_pattern"),
        ({"source": None, "source_pattern": "q*", "group": "g"}, "step 'a': the option queuePattern is for mode"),
        ({"source": None, "source_pattern": "r*"}, "step 'a' closes a cycle, r -> r: "),
        ({"source": {"a": "q"}}, "sources have names in stateful steps only"),
        ({"output_mode": "update"}, "output_mode is for stateful steps"),
        ({"order_by": "n"}, "order_by is for stateful steps"),
        ({"payload_schema": {"q": "n int"}}, "payload_schema is for 'q'; its sources are none that have a name"),
        ({"inputs": {"x": "y"}}, "the side input 'x' is 'y'; make one with lockstep.spark.inputs"),
        ({"inputs": {"not a name": inputs.table("t")}}, "cannot be the parameter 'not a name'"),
        ({"inputs": {"x": inputs.table("t")}}, "its function is called with a DataFrame, x: got an unexpected"),
        ({"stateful": True, "group": "g"}, "is stateful, and cannot have group: a batch that runs again"),
        ({"stateful": True, "per_batch": True}, "is stateful, and cannot have per_batch"),
        ({"stateful": True, "sink": None}, "is stateful, and needs a sink"),
        ({"stateful": True, "output_mode": "all"}, "output_mode is one of append, update, complete, not 'all'"),
        ({"stateful": True, "state_partitions": 0}, "state_partitions must be 1 or more, not 0"),
        ({"stateful": True, "order_by": [1]}, "order_by is a column, or several"),
        ({"stateful": True, "source": ["q", "r"]}, "its function is called with q, r: "),
        ({"stateful": True, "source": ["1", "r"]}, "cannot be the parameter '1': give it a name"),
        ({"stateful": True, "source": ["a.b", "a-b"]}, "two sources would be one parameter, a_b, a_b"),
        (
            {"stateful": True, "inputs": {"x": inputs.table("t", refresh="batch")}},
            "its side input 'x' cannot be read for every batch; give a span",
        ),
    ],
)
def test_wrong_options_are_named(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidOption, match=said):
        defined({"source": "q", "sink": "r", **given})


def test_step_is_a_function() -> None:
    with pytest.raises(InvalidOption, match="a step is a function from DataFrame to DataFrame, not 'no function'"):
        Pipeline("p").step(source="q", sink="r", name="a")("no function")  # type: ignore[type-var]


def test_wrong_names_of_queues_are_refused() -> None:
    with pytest.raises(InvalidName, match="the source of a step must not be empty"):
        defined({"source": "", "sink": "r"})
    with pytest.raises(InvalidName, match="control character"):
        defined({"source": "q", "sink": "a\nb"})


def test_options_of_the_stream() -> None:
    [step] = defined(
        {
            "source": ["q", "r,s"],
            "sink": "t",
            "payload_schema": "n bigint",
            "group": "g",
            "options": {"maxMessagesPerTrigger": 7, "failOnDataLoss": False},
        }
    ).steps
    assert step.source_options() == {
        "queue": '["q","r,s"]',
        "streamName": "p.a",
        "mode": "lease",
        "group": "g",
        "payloadSchema": "n bigint",
        "payloadMode": "permissive",
        "maxMessagesPerTrigger": "7",
        "failOnDataLoss": "false",
    }


@pytest.mark.parametrize("trigger", ["", "soon", "1 year"])
def test_trigger_is_a_span(trigger: str) -> None:
    with pytest.raises(InvalidOption, match="the trigger is not valid"):
        RunOptions(trigger=trigger)


# --- The graph ----------------------------------------------------------------------------------------------


def test_cycle_is_refused_and_named() -> None:
    with pytest.raises(InvalidOption, match="step 'a' closes a cycle, q -> q"):
        defined({"source": "q", "sink": "q"})
    with pytest.raises(InvalidOption, match="step 'c' closes a cycle, s -> q -> r -> s"):
        defined({"source": "q", "sink": "r"}, {"source": "r", "sink": ["s", "t"]}, {"source": ["s", "x"], "sink": "q"})


def test_cycle_may_be_meant_and_another_database_makes_none() -> None:
    back, forth = {"source": "r", "sink": ["q", "s"], "allow_cycle": True}, {"source": "q", "sink": "r"}
    pipeline = defined(forth, back)
    assert [step.name for step in pipeline.chosen()] == ["a", "b"]
    pipeline = defined({**back, "sink": "s"}, forth, {**back, "name": "back"})
    assert [step.name for step in pipeline.chosen()] == ["b", "a", "back"]
    assert len(defined({"source": "q", "sink": "q", "sink_dsn_env": "OTHER"}).steps) == 1


def test_what_writes_a_queue_comes_before_what_reads_it() -> None:
    pipeline = defined({"source": "s", "sink": None}, {"source": "r", "sink": "s"}, {"source": "q", "sink": "r"})
    assert [step.name for step in pipeline.chosen()] == ["c", "b", "a"]
    assert [step.name for step in pipeline.chosen(["a", "c"])] == ["c", "a"]
    with pytest.raises(NotFound, match="has no step 'x'; it has a, b, c"):
        pipeline.chosen(["x"])
    with pytest.raises(InvalidRequest, match="has no steps"):
        Pipeline("empty").chosen()


def test_drawing() -> None:
    pipeline = defined(
        {"source": "intake", "sink": "payment", "name": "validate", "payload_schema": "n bigint"},
        {"source": "payment", "sink": ["eu", "us"], "name": "route", "options": {"parallelism": 2}},
        {"source": ["payment", "eu"], "sink": None, "name": "count", "order": False, "group": "g"},
    )
    assert pipeline.draw() == (
        "pipeline p\n"
        "\n"
        "[intake]\n"
        "  └─ validate  (payload n bigint)\n"
        "       ──> [payment]\n"
        "       ──x dead letters of [intake], group p.validate\n"
        "\n"
        "[payment]\n"
        "  ├─ route  (parallelism=2)\n"
        "  │    ──> [eu], by the column queue\n"
        "  │    ──> [us], by the column queue\n"
        "  │    ──x dead letters of [payment], group p.route\n"
        "  └─ count  (shares group g, order not kept)\n"
        "       ──> nothing is pushed\n"
        "       ──x dead letters of its queue, group g\n"
        "\n"
        "[eu]\n"
        "  └─ count  (shares group g, order not kept)\n"
        "       ──> nothing is pushed\n"
        "       ──x dead letters of its queue, group g\n"
        "\n"
        "[us]"
    )


def test_drawing_of_state_and_side_inputs() -> None:
    pipeline = Pipeline("p")
    pipeline.step(
        source={"left": "intake", "right": "payment"},
        sink="out",
        name="match",
        stateful=True,
        output_mode="update",
        payload_schema={"left": "n bigint"},
        inputs={"prices": inputs.latest("price", key="data.sku", refresh="10m"), "eu": inputs.parquet("/eu")},
    )(lambda **frames: frames["left"])
    pipeline.step(source="intake", sink="out", name="count", per_batch=True)(lambda df: df)
    assert pipeline.draw() == (
        "pipeline p\n"
        "\n"
        "[intake]\n"
        "  ├─ match  (stateful, output mode update, payload of left n bigint)\n"
        "  │    <── left: stream of [intake]\n"
        "  │    <── right: stream of [payment]\n"
        "  │    <── prices: latest of [price] by data.sku, read every 10m\n"
        "  │    <── eu: Parquet /eu, read once\n"
        "  │    ──> [out]\n"
        "  │    ──x dead letters of its queue, group p.match\n"
        "  └─ count  (each batch by itself)\n"
        "       ──> [out]\n"
        "       ──x dead letters of [intake], group p.count\n"
        "\n"
        "[payment]\n"
        "  └─ match  (stateful, output mode update, payload of left n bigint)\n"
        "       <── left: stream of [intake]\n"
        "       <── right: stream of [payment]\n"
        "       <── prices: latest of [price] by data.sku, read every 10m\n"
        "       <── eu: Parquet /eu, read once\n"
        "       ──> [out]\n"
        "       ──x dead letters of its queue, group p.match\n"
        "\n"
        "[out]"
    )


@pytest.mark.parametrize(
    ("refresh", "said"), [("soon", "give 'batch', a span"), (5, "give 'batch'"), ("0s", "say 'batch'")]
)
def test_wrong_refresh_is_named(refresh: Any, said: str) -> None:
    with pytest.raises(InvalidOption, match=said):
        inputs.table("t", refresh=refresh)
    with pytest.raises(InvalidOption, match="the name of a table must be text"):
        inputs.table("")


def test_checkpoints_are_by_pipeline_and_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    [step] = defined({"source": "q", "sink": "r"}).steps
    assert checkpoint_of(step, None) == f"{tmp_path}/.lockstep/pipelines/p/a"
    assert checkpoint_of(step, "there") == f"{tmp_path}/there/p/a"
    assert checkpoint_of(step, "hdfs://host/x/") == "hdfs://host/x/p/a"


def test_batch_in_one_line() -> None:
    progress = StepProgress(
        step="charge", batch=3, rows_in=200, pushed=198, duplicates=0, rejected=2, rows_per_second=410.4, lag=7
    )
    assert line_of(progress) == "charge: batch 3  in 200  out 198  rejected 2  410 rows/s  lag 7"
    repeated = msgspec.structs.replace(progress, pushed=190, duplicates=8)
    assert line_of(repeated) == "charge: batch 3  in 200  out 190  duplicates 8  rejected 2  410 rows/s  lag 7"


# --- Files --------------------------------------------------------------------------------------------------

ONE = """
from dataclasses import dataclass
from lockstep.spark import Pipeline
from beside import QUEUE

@dataclass
class Limits:
    most: int = 3

orders = Pipeline("orders")

@orders.step(source=QUEUE, sink="payment")
def validate(df):
    return df
"""


def written(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def test_pipeline_of_a_file(tmp_path: Path) -> None:
    written(tmp_path / "beside.py", "QUEUE = 'intake'")
    file = written(tmp_path / "orders.py", ONE)
    pipeline = load(file)
    assert (pipeline.name, pipeline.steps[0].sources) == ("orders", ("intake",))
    assert load(f"{file}:orders").name == "orders"
    with pytest.raises(NotFound, match="defines no pipeline 'other'; it has orders"):
        load(f"{file}:other")


def test_file_without_a_pipeline_or_with_two(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="there is no file"):
        load(str(tmp_path / "none.py"))
    with pytest.raises(InvalidRequest, match="defines no pipeline"):
        load(written(tmp_path / "empty.py", "x = 1"))
    two = "from lockstep.spark import Pipeline\na = Pipeline('a')\nb = Pipeline('b')\n"
    with pytest.raises(InvalidRequest, match=r"several pipelines: say .*two.py:NAME, of a, b"):
        load(written(tmp_path / "two.py", two))
    assert load(f"{tmp_path / 'two.py'}:b").name == "b"


def test_file_that_fails_says_how(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="cannot be loaded, line 2: ZeroDivisionError: division by zero"):
        load(written(tmp_path / "broken.py", "x = 0\n1 / x"))
    with pytest.raises(InvalidRequest, match="cannot be loaded: SyntaxError"):
        load(written(tmp_path / "wrong.py", "def"))
    refused = "from lockstep.spark import Pipeline\nPipeline('a/b')\n"
    with pytest.raises(InvalidName):
        load(written(tmp_path / "refused.py", refused))


def test_file_that_runs_its_pipeline_while_it_is_loaded_is_told_what_to_do(tmp_path: Path) -> None:
    text = "from lockstep.spark import Pipeline\np = Pipeline('p')\np.main(['--help'])\n"
    with pytest.raises(
        InvalidRequest, match=r'cannot be loaded, line 3: it ends the program .* __name__ == "__main__"'
    ):
        load(written(tmp_path / "runs.py", text))


def test_two_pipelines_of_a_file_have_two_names(tmp_path: Path) -> None:
    text = "from lockstep.spark import Pipeline\na = Pipeline('p')\nb = Pipeline('p')\n"
    file = written(tmp_path / "same.py", text)
    with pytest.raises(InvalidRequest, match="defines two pipelines with the name 'p'"):
        load(file)
    assert load(written(tmp_path / "once.py", text.replace("b = Pipeline('p')", "b = a"))).name == "p"


def test_package_and_definition_import_no_spark() -> None:
    program = (
        "import sys; from lockstep.spark import Pipeline; p = Pipeline('p');"
        "p.step(source='q', sink='r', name='s')(print); p.draw(); assert 'pyspark' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


@pytest.mark.parametrize("early", ["F.udf('string')(str)", "F.col('total')"])
def test_file_that_uses_spark_too_early_is_told_what_to_do(tmp_path: Path, early: str) -> None:
    file = written(tmp_path / "early.py", f"from pyspark.sql import functions as F\n{early}\n")
    # In a process of its own: in this one another test may have started Spark.
    program = [sys.executable, "-m", "lockstep", "pipeline", "plan", file]
    ended = subprocess.run(program, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert "there is no Spark yet: give the types of UDFs as objects" in ended.stderr

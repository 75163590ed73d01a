"""`lockstep pipeline`: pipelines of steps from queue to queue. They run on Spark.

What needs PySpark is imported when a pipeline runs, so that a command line without it starts, and says what is missing.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lockstep.cli.arguments import confirm, yes_option
from lockstep.cli.connection import Session, on_session
from lockstep.cli.exits import INTERRUPTED
from lockstep.cli.on_spark import database_of, running, spark_options
from lockstep.cli.output import Column, note
from lockstep.spark.session import check_spark

if TYPE_CHECKING:
    from lockstep.spark.pipelines.pipeline import Pipeline
    from lockstep.spark.pipelines.running import Progress

_DONE = ("step", "batches", "rows_in", "pushed", "rejected")
_STATUS: tuple[Column, ...] = (
    "pipeline",
    "step",
    "state",
    ("from", lambda one: ", ".join(one.sources)),
    ("to", lambda one: ", ".join(one.sinks) or None),
    "lag",
    "batch",
    "committed_at",
    "pushed",
    "rejected",
    "dead_letters",
    ("rows/s", lambda one: None if one.rows_per_second is None else round(one.rows_per_second, 1)),
    "error",
)

_checkpoints_option = click.option(
    "--checkpoints",
    metavar="DIR",
    help="Where Spark keeps how far the steps are; default .lockstep/pipelines. On a cluster: a place that all share.",
)
_steps_option = click.option("--step", "-s", "steps", multiple=True, help="Only this step; repeatable.")


@click.group()
def pipeline() -> None:
    """Run pipelines: functions on DataFrames, from queue to queue.

    FILE is a Python file that defines one with lockstep.spark.Pipeline; FILE:NAME chooses one of several. They run on
    Spark (pip install 'lockstep[spark]', and Java 17 or newer), on this machine or with --master on a cluster, and work
    directly on the database of --dsn, LOCKSTEP_DSN or --data-dir; without any, on that of the server that runs on the
    default data directory.
    """


@pipeline.command()
@click.argument("file")
@click.option("--once", is_flag=True, help="End when all that is there is done.")
@_steps_option
@_checkpoints_option
@click.option("--trigger", default="1s", show_default=True, metavar="SPAN", help="How often a step looks for messages.")
@on_session("dsn", "data_dir", "output")
@spark_options
@click.pass_context
def run(
    ctx: click.Context,
    session: Session,
    file: str,
    once: bool,
    steps: tuple[str, ...],
    checkpoints: str | None,
    trigger: str,
    master: str | None,
    conf: Sequence[tuple[str, str]],
) -> None:
    """Run a pipeline until Ctrl-C, or once.

    Every step goes on where it was, also after kill -9, and nothing is written twice. With --step one process runs one
    step, and others run the rest. Ctrl-C and SIGTERM let the batches that are being worked on finish; a second Ctrl-C
    does not wait for them.
    """
    check_spark()
    from lockstep.spark.pipelines import running as steps_running

    # What is wrong with the command line is said before Spark starts.
    found = _load(file)
    chosen = found.chosen(steps)
    options = steps_running.RunOptions(once=once, checkpoints=checkpoints, trigger=trigger)
    stop = threading.Event()
    with running(
        session,
        f"pipeline {found.name}",
        master,
        conf,
        first=lambda connection: steps_running.prepare(found, chosen, connection),
    ) as spark:
        options = replace(options, access=spark.access)
        if not once:
            note(f"pipeline {found.name} runs: {', '.join(step.name for step in chosen)}; Ctrl-C ends it")
        done = steps_running.run(
            found, options, spark=spark.session, steps=steps, progress=_progress(session), stop=stop
        )
    if session.format != "ndjson":
        session.output.rows(done, _DONE)
    if once and stop.is_set():
        ctx.exit(INTERRUPTED)


def _progress(session: Session) -> Progress:
    from lockstep.spark.pipelines.running import line_of

    if session.format == "ndjson":
        return session.output.line
    return lambda one: note(line_of(one))


@pipeline.command()
@click.argument("file")
def plan(file: str) -> None:
    """Draw a pipeline: its queues, its steps and where their rows go. Nothing is run."""
    click.echo(_load(file).draw())


@pipeline.command()
@click.argument("pipeline", required=False)
@on_session("dsn", "data_dir", "output")
def status(session: Session, pipeline: str | None) -> None:
    """Show how steps are doing, whoever runs them.

    PIPELINE is a name, or the file that defines it; without one, all that have run are shown. The lag is in messages;
    the state is running, stopped, failed, or gone where a step ended without a word.
    """
    from lockstep.spark.database import Access
    from lockstep.spark.pipelines.status import list_steps

    name = _load(pipeline).name if pipeline is not None and _is_file(pipeline) else pipeline
    with database_of(session) as dsn, Access(dsn=dsn).connect() as connection:
        empty = "no pipeline has run" if name is None else f"pipeline {name} has not run"
        session.output.rows(list_steps(connection, name), _STATUS, empty=empty)


@pipeline.command()
@click.argument("file")
@_steps_option
@_checkpoints_option
@yes_option
@on_session("dsn", "data_dir", "output")
def reset(session: Session, file: str, steps: tuple[str, ...], checkpoints: str | None, yes: bool) -> None:
    """Forget how far steps are.

    Their checkpoints and positions go, so that the next run begins at the beginning of what their queues hold, and
    pushes all of it again. What they have pushed, and their dead letters, stay.
    """
    from lockstep.spark.database import Access
    from lockstep.spark.pipelines.status import reset as resetting

    found = _load(file)
    chosen = found.chosen(steps)
    names = ", ".join(step.name for step in chosen)
    confirm(f"Forget how far pipeline {found.name} is ({names}), so that it does all messages again?", yes=yes)
    with database_of(session) as dsn:
        forgotten = resetting(chosen, Access(dsn=dsn), checkpoints)
    session.output.done(f"forgotten: {', '.join(forgotten) or 'nothing was known'}", forgotten=forgotten)


def _load(file: str) -> Pipeline:
    from lockstep.spark.pipelines.loading import load

    return load(file)


def _is_file(text: str) -> bool:
    return text.partition(":")[0].endswith(".py") or Path(text).is_file()

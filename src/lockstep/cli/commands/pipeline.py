"""`lockstep pipeline`: pipelines of steps from queue to queue. They run on Spark.

Modules that need PySpark are imported when a pipeline runs, so that the command line works without PySpark and can
report that it is missing.
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
from lockstep.cli.on_spark import database_of, running, spark_options
from lockstep.cli.output import Column, note
from lockstep.exit_codes import INTERRUPTED
from lockstep.spark.pipelines.checkpoints import RESTARTS
from lockstep.spark.session import check_spark

if TYPE_CHECKING:
    from lockstep.spark.pipelines.pipeline import Pipeline
    from lockstep.spark.pipelines.running import Progress

_DONE = ("step", "batches", "rows_in", "pushed", "duplicates", "rejected", "restarts")
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
    "duplicates",
    "rejected",
    "dead_letters",
    "restarts",
    ("rows/s", lambda one: None if one.rows_per_second is None else round(one.rows_per_second, 1)),
    "error",
)

_checkpoints_option = click.option(
    "--checkpoints",
    metavar="DIR",
    help="Where Spark keeps the progress of steps; default .lockstep/pipelines. On a cluster: a place that all share.",
)
_steps_option = click.option("--step", "-s", "steps", multiple=True, help="Only this step; repeatable.")


@click.group()
def pipeline() -> None:
    """Run pipelines: functions on DataFrames, from queue to queue.

    FILE is a Python file that defines a pipeline with lockstep.spark.Pipeline; FILE:NAME selects one of several.
    Pipelines run on Spark (pip install 'lockstep[spark]', and Java 17 or newer), on this machine, or on a cluster with
    --master. They work directly on the database of --dsn, LOCKSTEP_DSN or --data-dir. Without any of these they use the
    database of the server that runs on the default data directory.
    """


@pipeline.command()
@click.argument("file")
@click.option("--once", is_flag=True, help="End when all present messages are processed.")
@_steps_option
@_checkpoints_option
@click.option("--trigger", default="1s", show_default=True, metavar="SPAN", help="How often a step looks for messages.")
@click.option(
    "--restart-from",
    type=click.Choice(RESTARTS),
    help="Start there, with an empty checkpoint; position is the progress that the database has recorded.",
)
@click.option("--traceback", is_flag=True, help="Print where it was raised if a step fails.")
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
    restart_from: str | None,
    traceback: bool,
    master: str | None,
    conf: Sequence[tuple[str, str]],
) -> None:
    """Run a pipeline until Ctrl-C, or once.

    Every step continues where it stopped, even after kill -9, and nothing is written twice. A step refuses any
    checkpoint other than that of its last run, unless --restart-from says where to start. With --step, separate
    processes can run the steps. A step that fails because the database is away, a queue is full or a machine is lost is
    restarted, for up to pipeline_restart_seconds_max. On Ctrl-C and SIGTERM the current batches finish, and the command
    ends with 0, or with --once with 130; a second Ctrl-C does not wait.
    """
    check_spark()
    from lockstep.spark.pipelines import running as steps_running

    # Mistakes in the command line are reported before Spark starts.
    found = _load(file)
    chosen = found.chosen(steps)
    options = steps_running.RunOptions(once=once, checkpoints=checkpoints, trigger=trigger, restart_from=restart_from)
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
        with steps_running.tracebacks(shown=traceback):
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
    """Draw a pipeline: its queues, its steps and the targets of their rows. Runs nothing."""
    click.echo(_load(file).draw())


@pipeline.command()
@click.argument("pipeline", required=False)
@on_session("dsn", "data_dir", "output")
def status(session: Session, pipeline: str | None) -> None:
    """Show the state of steps, on any machine.

    PIPELINE is a name, or the file that defines it; the default is all pipelines that have run. The lag is in messages.
    The state is running, stopped, failed, or gone: the step ended without reporting it.
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
    """Forget the progress of steps.

    Removes their checkpoints and positions. The next run starts with the first stored message of their queues and
    pushes all results again. Messages that the steps have pushed, and their dead letters, stay.
    """
    from lockstep.spark.database import Access
    from lockstep.spark.pipelines.status import reset as resetting

    found = _load(file)
    chosen = found.chosen(steps)
    names = ", ".join(step.name for step in chosen)
    confirm(
        f"Forget the progress of pipeline {found.name} ({names}), so that it processes all messages again?", yes=yes
    )
    with database_of(session) as dsn:
        forgotten = resetting(chosen, Access(dsn=dsn), checkpoints)
    session.output.done(f"forgotten: {', '.join(forgotten) or 'nothing was known'}", forgotten=forgotten)


def _load(file: str) -> Pipeline:
    from lockstep.spark.pipelines.loading import load

    return load(file)


def _is_file(text: str) -> bool:
    return text.partition(":")[0].endswith(".py") or Path(text).is_file()

"""`lockstep job`: jobs that process more messages than a consumer should. They run on Spark.

PySpark is imported only when a job runs, so that the command line works without it and can report that it is missing.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from lockstep.cli.arguments import Seconds, confirm, time, yes_option
from lockstep.cli.connection import Session, on_session
from lockstep.cli.on_spark import running, spark_options
from lockstep.cli.output import Column, ProgressBar, note
from lockstep.cli.signals import handling
from lockstep.errors import InvalidOption
from lockstep.exit_codes import INTERRUPTED
from lockstep.spark.jobs.formats import FORMATS, Format
from lockstep.spark.session import check_spark

if TYPE_CHECKING:
    import psycopg

    from lockstep.spark.database import Access
    from lockstep.spark.jobs.archive import QueueArchived
    from lockstep.spark.jobs.traces import Order, Trace

F = TypeVar("F", bound=Callable[..., Any])

_ARCHIVED = ("queue", "batches", "messages", "files", "bytes")
_TRACES: tuple[Column, ...] = (
    "trace_id",
    "status",
    ("steps", lambda trace: trace.steps_count),
    "started_at",
    "duration_seconds",
    "longest_gap_seconds",
    "longest_gap",
    "stopped_at",
    "path",
    "error",
)
_STEPS = (
    "step",
    "created_at",
    "elapsed_seconds",
    "gap_seconds",
    "queue",
    "partition",
    "seq",
    "kind",
    "status",
    "group",
    "error",
)
_CLASSES: tuple[Column, ...] = (
    "fingerprint",
    "count",
    ("queues", lambda one: ", ".join(one.queues)),
    ("groups", lambda one: ", ".join(one.groups)),
    "partitions",
    "attempts_max",
    "first_at",
    "last_at",
    "pattern",
)


def _times(what: str) -> Callable[[F], F]:
    def decorate(command: F) -> F:
        command = click.option("--to", "to_at", type=time, metavar="TIME", help=f"{what} before this time.")(command)
        return click.option("--from", "from_at", type=time, metavar="TIME", help=f"{what} at or after it.")(command)

    return decorate


_queues_option = click.option("--queue", "-q", "queues", multiple=True, help="Only this queue; repeatable.")
_files_option = click.option(
    "--files", "files_only", is_flag=True, help="Read all files that lie there, for a database that lost the manifest."
)


def _knows(queues: Sequence[str]) -> Callable[[psycopg.Connection[Any]], object]:
    """Check that named queues exist. Raises QueueNotFound."""
    from lockstep.spark.read.positions import find_queues

    return lambda connection: find_queues(connection, queues)


@contextmanager
def _stopping(stop: threading.Event) -> Iterator[None]:
    """The first Ctrl-C or SIGTERM stops after the current work; a second one does not wait."""

    def ask(*_: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    with handling(signal.SIGINT, ask), handling(signal.SIGTERM, ask):
        yield


@click.group()
def job() -> None:
    """Archive and replay messages, compute statistics, show traces, group dead letters.

    The jobs run on Spark (pip install 'lockstep[spark]', and Java 17 or newer), on this machine or with --master on a
    cluster. They work directly on the database of --dsn, LOCKSTEP_DSN or --data-dir; without any of these, on that of
    the server that runs on the default data directory.
    """


@job.command()
@click.argument("queues", nargs=-1, required=True, metavar="QUEUE...")
@click.option(
    "--to", "location", required=True, metavar="LOCATION", help="The archive: a folder, or a URI of Hadoop's."
)
@click.option("--follow", is_flag=True, help="Continue with new messages until Ctrl-C.")
@click.option(
    "--interval",
    type=Seconds(0.1, 86_400),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="With --follow: how often new messages become files.",
)
@click.option(
    "--batch-messages",
    type=click.IntRange(min=1),
    default=500_000,
    show_default=True,
    help="Most messages that become files at a time, about.",
)
@click.option(
    "--format",
    "archive_format",
    type=click.Choice(FORMATS),
    help="Publish the archive as files alone (parquet) or as a table, too; the default keeps its format, or parquet.",
)
@click.option(
    "--payload-schema",
    metavar="DDL",
    help="Adds a column data with the JSON payload in types: 'id BIGINT, total DOUBLE'. An archive keeps it.",
)
@click.option(
    "--table", "table_name", metavar="NAME", help="With iceberg: the table; default lockstep and the last folder."
)
@click.option(
    "--catalog", metavar="URI", help="With iceberg: a SQL catalog, such as sqlite:////srv/catalog.db; default here."
)
@on_session("dsn", "data_dir", "output")
@spark_options
@click.pass_context
def archive(
    ctx: click.Context,
    session: Session,
    queues: tuple[str, ...],
    location: str,
    follow: bool,
    interval: float,
    batch_messages: int,
    archive_format: Format | None,
    payload_schema: str | None,
    table_name: str | None,
    catalog: str | None,
    master: str | None,
    conf: Sequence[tuple[str, str]],
) -> None:
    """Write messages to Parquet files, and show them as a table.

    Archives the messages pushed to each QUEUE since the last run, by queue and day, each exactly once. Retention keeps
    messages until they are archived.
    """
    check_spark()
    from lockstep.spark.jobs import archive as archiving
    from lockstep.spark.jobs.formats.settings import ArchiveSettings

    options = archiving.ArchiveOptions(
        location=location,
        queues=queues,
        follow=follow,
        interval_seconds=interval,
        batch_messages_max=batch_messages,
        settings=ArchiveSettings(archive_format, payload_schema, table_name, catalog),
    )
    with running(session, "archive", master, conf, first=_knows(queues)) as spark:
        options = replace(options, access=spark.access)
        with _stopping(spark.stop), ProgressBar("archiving") as shown:
            done = archiving.job(spark.session, options, progress=lambda one: _tell(shown, one), stop=spark.stop)
        session.output.rows(done, _ARCHIVED)
        if spark.stop.is_set() and not follow:
            ctx.exit(INTERRUPTED)


def _tell(shown: ProgressBar, archived: QueueArchived) -> None:
    shown.say(f"{archived.queue}: {archived.messages:,} messages in {archived.batches:,} batches")


@job.command()
@click.argument("location")
@_queues_option
@click.option("--to-queue", help="To this queue; otherwise each message to the queue that it was in.")
@click.option("--partition", "-p", "partitions", multiple=True, help="Only this partition; repeatable.")
@click.option("--trace", "trace_ids", multiple=True, metavar="TRACE_ID", help="Only this trace; repeatable.")
@_times("Created")
@click.option(
    "--keep-created-at", is_flag=True, help="Messages keep the time at which they were created; otherwise it is now."
)
@_files_option
@click.option("--parallelism", type=click.IntRange(min=1), help="Tasks that write at a time; default Spark's cores.")
@click.option("--dry-run", is_flag=True, help="Change nothing; count.")
@on_session("dsn", "data_dir", "output")
@spark_options
def replay(session: Session, location: str, master: str | None, conf: Sequence[tuple[str, str]], **given: Any) -> None:
    """Put archived messages back into queues.

    The messages at LOCATION keep their ids and their order, and follow the messages already in the queue. Messages that
    are already stored are left out, so a replay can be repeated.
    """
    check_spark()
    from lockstep.spark.jobs import replay as replaying

    selected = {name: given[name] or None for name in ("queues", "partitions", "trace_ids")}
    options = replaying.ReplayOptions(location=location, **{**given, **selected})
    with running(session, "replay", master, conf) as spark:
        done = replaying.job(spark.session, replace(options, access=spark.access))
    if done.dry_run:
        text = f"{done.messages:,} messages would be replayed, as far as they are not stored"
    else:
        text = f"{done.restored:,} messages replayed, {done.duplicates:,} were stored already"
    session.output.done(text, messages=done.messages, restored=done.restored, duplicates=done.duplicates)


@job.command()
@_queues_option
@_times("What happened")
@click.option(
    "--window",
    "window_seconds",
    type=click.IntRange(min=1),
    default=300,
    show_default=True,
    metavar="SECONDS",
    help="How long a window is.",
)
@click.option("--keep-days", type=click.IntRange(min=1), default=90, show_default=True, help="Remove older windows.")
@click.option(
    "--report",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Write a page of HTML with tables and plots.",
)
@on_session("dsn", "data_dir", "output")
@spark_options
def stats(
    session: Session,
    queues: tuple[str, ...],
    report: Path | None,
    master: str | None,
    conf: Sequence[tuple[str, str]],
    **given: Any,
) -> None:
    """Compute statistics by window, queue and group.

    Throughput, latency, attempts, lag and dead letters of the last day, or of a given period. They are stored in the
    table lockstep.stat_window, where a window never loses figures.
    """
    check_spark()
    from lockstep.spark.jobs import stats as computing

    options = computing.StatsOptions(queues=queues or None, **given)
    if report is not None and not report.parent.is_dir():
        raise InvalidOption(f"the report cannot be written: there is no folder {report.parent}")
    with running(session, "stats", master, conf, first=_knows(queues)) as spark:
        done = computing.job(spark.session, replace(options, access=spark.access), skipped=_tell_skipped)
        if report is not None:
            span = (done.from_at, done.to_at, done.window_seconds)
            _write_report(report, spark.access, span, options.queues)
    where = "" if report is None else f"; the report is {report}"
    text = f"{done.windows:,} windows of {done.queues:,} queues computed{where}"
    session.output.done(text, computed=done, report=None if report is None else str(report))


def _write_report(
    path: Path, access: Access, span: tuple[datetime, datetime, int], queues: tuple[str, ...] | None
) -> None:
    from lockstep.spark.jobs import report as reporting

    about = reporting.ReportSpan(*span)
    with access.connect() as connection:
        windows = reporting.read_windows(connection, about, queues)
    try:
        path.write_text(reporting.render(windows, about), encoding="utf-8")
    except OSError as error:
        raise InvalidOption(f"the report cannot be written: {error}") from error


@job.command()
@click.argument("trace_id", required=False)
@_queues_option
@_times("Messages created")
@click.option("--stopped", is_flag=True, help="Only traces that are not completed.")
@click.option("--slowest", is_flag=True, help="The slowest first; otherwise the newest.")
@click.option("--limit", type=click.IntRange(min=1), default=100, show_default=True, help="Most traces that are shown.")
@on_session("dsn", "data_dir", "output")
@spark_options
def traces(
    session: Session,
    trace_id: str | None,
    queues: tuple[str, ...],
    slowest: bool,
    master: str | None,
    conf: Sequence[tuple[str, str]],
    **given: Any,
) -> None:
    """Show the path of messages through the queues.

    Shows the messages of TRACE_ID as a timeline: the time, the gap before each message, and its status. Without
    TRACE_ID, shows all traces of a period: how long they took, and where they stopped.
    """
    check_spark()
    from lockstep.spark.jobs import traces as stitching

    order: Order = "slowest" if slowest else "newest"
    options = stitching.TraceOptions(trace_id=trace_id, queues=queues or None, order=order, **given)
    with running(session, "traces", master, conf, first=_knows(queues)) as spark:
        found = stitching.job(spark.session, replace(options, access=spark.access), skipped=_tell_skipped)
    _show_traces(session, found, alone=trace_id is not None)


def _tell_skipped(queues: Sequence[str]) -> None:
    note(f"left out, because they are encrypted and there is no LOCKSTEP_ENCRYPTION_KEY: {', '.join(queues)}")


def _show_traces(session: Session, found: list[Trace], *, alone: bool) -> None:
    if not alone or session.format != "table":
        session.output.rows(found, _TRACES, empty="no trace found")
        return
    session.output.rows([step for trace in found for step in trace.steps], _STEPS, empty="no message has this trace id")
    for trace in found:
        stop = "" if trace.stopped_at is None else f"; it stopped in {trace.stopped_at}: {trace.error or trace.status}"
        note(f"{trace.status} after {trace.duration_seconds:.3f} s over {trace.path}{stop}")


@job.command("dead-letters")
@click.option("--queue", "-q", help="Only those of a queue.")
@click.option("--group", "-g", help="Only those of a group.")
@_times("Failed")
@click.option(
    "--examples", type=click.IntRange(min=0), default=3, show_default=True, help="How many of each are shown."
)
@click.option(
    "--limit", type=click.IntRange(min=1), default=100, show_default=True, help="Most classes that are shown."
)
@click.option("--redrive", "fingerprint", metavar="FINGERPRINT", help="Push the messages of this class again.")
@yes_option
@on_session("dsn", "data_dir", "output")
@spark_options
def dead_letters(
    session: Session,
    fingerprint: str | None,
    yes: bool,
    master: str | None,
    conf: Sequence[tuple[str, str]],
    **given: Any,
) -> None:
    """Group dead letters by their cause.

    Errors that differ only in numbers, ids and quoted words form one class, identified by a fingerprint. The JSON
    output includes examples. With --redrive, the messages of a class are pushed again, to the end of their partitions.
    """
    check_spark()
    from lockstep.spark.jobs import dead_letters as sorting

    options = sorting.DeadLetterOptions(**given)
    if fingerprint is not None:
        sorting.check_fingerprint(fingerprint)
        confirm(f"Push the messages of all dead letters with the fingerprint {fingerprint} again?", yes=yes)
    with running(session, "dead-letters", master, conf) as spark:
        options = replace(options, access=spark.access)
        if fingerprint is None:
            found = sorting.job(spark.session, options)
            session.output.rows(found, _CLASSES, empty="there is no dead letter")
            return
        with ProgressBar("pushing") as shown:
            moved = sorting.redrive(
                spark.session,
                options,
                fingerprint,
                progress=lambda done, total: shown.say(f"{done:,} of {total:,} pushed again"),
            )
    session.output.done(f"{moved:,} dead letters pushed again", redriven=moved)


@job.command()
@click.argument("location")
@click.argument("to_location")
@click.option("--key", default="partition", show_default=True, help="partition, or a JSON path such as $.customer.id.")
@_queues_option
@_files_option
@on_session("dsn", "data_dir", "output")
@spark_options
def compact(
    session: Session,
    location: str,
    to_location: str,
    key: str,
    queues: tuple[str, ...],
    files_only: bool,
    master: str | None,
    conf: Sequence[tuple[str, str]],
) -> None:
    """Keep the latest message per key of an archive.

    Reads the archive at LOCATION and writes one to TO_LOCATION, replacing the output of an earlier run. The result is
    an archive as well and can be replayed.
    """
    check_spark()
    from lockstep.spark.jobs import compact as compacting

    options = compacting.CompactOptions(
        location=location, to_location=to_location, key=key, queues=queues or None, files_only=files_only
    )
    with running(session, "compact", master, conf) as spark:
        done = compacting.job(spark.session, replace(options, access=spark.access))
    missing = f"; {done.without_key:,} have no key and are left out" if done.without_key else ""
    session.output.done(f"{done.kept:,} of {done.messages:,} messages kept{missing}", compacted=done)


@job.command()
@click.argument("location")
@click.option(
    "--target-mb",
    type=click.IntRange(1, 1_000_000),
    default=128,
    show_default=True,
    metavar="MIB",
    help="About how large merged files are; files of half of it are left alone.",
)
@click.option(
    "--expire-days",
    type=click.IntRange(min=1),
    metavar="DAYS",
    help="Remove days that ended at least this many days ago.",
)
@click.option(
    "--grace",
    type=Seconds(0, 366 * 86_400),
    default=86_400.0,
    show_default=True,
    metavar="SECONDS",
    help="How long files stay that are no part of the archive any more.",
)
@on_session("dsn", "data_dir", "output")
@spark_options
def tidy(
    session: Session,
    location: str,
    target_mb: int,
    expire_days: int | None,
    grace: float,
    master: str | None,
    conf: Sequence[tuple[str, str]],
) -> None:
    """Merge small files of an archive, and remove old days.

    Merges the small files of each queue and day at LOCATION. With --expire-days, removes old days from the archive. A
    later run deletes files that are no longer part of the archive, once no reader can be using them.
    """
    check_spark()
    from lockstep.spark.jobs import tidy as tidying

    options = tidying.TidyOptions(
        location=location, target_bytes=target_mb * 1024**2, expire_days=expire_days, grace_seconds=grace
    )
    with running(session, "tidy", master, conf) as spark, ProgressBar("tidying") as shown:
        done = tidying.job(
            spark.session,
            replace(options, access=spark.access),
            progress=lambda one: shown.say(f"{one.merged_files:,} files merged into {one.into_files:,}"),
        )
    session.output.done(
        f"{done.merged_files:,} files merged into {done.into_files:,}, {done.expired_files:,} expired, "
        f"{done.deleted_files:,} deleted",
        tidied=done,
    )

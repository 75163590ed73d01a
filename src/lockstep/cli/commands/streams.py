"""`lockstep streams`: Spark streams and their progress."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase

import click

from lockstep.cli.arguments import confirm, yes_option
from lockstep.cli.connection import Session, on_session
from lockstep.cli.output import at_screen, note
from lockstep.cli.watching import watchable

_PATTERN = re.compile(r"[*?\[]")
_SILENT = timedelta(minutes=10)
_COLUMNS = ("id", "name", "queue", "lag", "oldest_at", "updated_at", "held_until")


@click.group()
def streams() -> None:
    """Manage Spark streams."""


@streams.command("ls")
@on_session()
@click.option("--queue", "-q", help="Only those of a queue.")
@watchable
def list_(session: Session, queue: str | None) -> None:
    """List the streams with the number of messages that they still have to read.

    Retention keeps those messages until the time in the column held_until, which advances while a stream runs.
    """
    with session.client() as client:
        found = client.spark_streams(queue=queue)
        session.output.rows(found, _COLUMNS, empty="no stream told of itself")
    silent = [one for one in found if one.lag and datetime.now(UTC) - one.updated_at > _SILENT]
    if silent and at_screen():
        note(f"{len(silent)} of them were not heard of for 10 minutes, and hold messages: lockstep streams forget")


@streams.command()
@click.argument("stream")
@on_session()
def accept(session: Session, stream: str) -> None:
    """Let a stream continue that stopped with checkpoint_ahead after a failover or a restore.

    STREAM is its id, which the error names. The stream continues from the position that it last published in this
    database, so it may read some messages again. Start its query after this command.
    """
    with session.client() as client:
        queues = client.accept_spark_stream(stream)
        session.output.done("accepted", accepted=stream, queues=queues)


@streams.command()
@click.argument("stream")
@yes_option
@on_session()
def forget(session: Session, stream: str, yes: bool) -> None:
    """Forget streams that will not come back, so that retention may remove messages that they have not read.

    STREAM is an id from the list; or a pattern, such as 'experiment-*', for all streams with a matching name or id. A
    running stream reports its position again.
    """
    with session.client() as client:
        if not _PATTERN.search(stream):
            queues = client.forget_spark_stream(stream)
            session.output.done("forgotten", forgotten=stream, queues=queues)
            return
        names = {one.id: one.name for one in client.spark_streams() if _fits(stream, one.name, one.id)}
        if names:
            confirm(f"Forget {len(names)} streams ({', '.join(sorted(set(names.values())))})?", yes=yes)
        for id_ in names:
            client.forget_spark_stream(id_)
    session.output.done(f"forgotten: {', '.join(names.values()) or 'none fits'}", forgotten=list(names))


def _fits(pattern: str, *texts: str) -> bool:
    return any(fnmatchcase(text, pattern) for text in texts)

"""`lockstep streams`: Spark's streams, and how far they are."""

from __future__ import annotations

import click

from lockstep.cli.connection import Session, on_session

_COLUMNS = ("id", "name", "queue", "lag", "oldest_at", "updated_at", "held_until")


@click.group()
def streams() -> None:
    """Spark's streams, and how far they are."""


@streams.command("ls")
@on_session()
@click.option("--queue", "-q", help="Only those of a queue.")
def list_(session: Session, queue: str | None) -> None:
    """List the streams with the messages that they have still to read.

    Retention leaves those messages until the time in the column held_until, which moves on while a stream runs.
    """
    with session.client() as client:
        session.output.rows(client.spark_streams(queue=queue), _COLUMNS, empty="no stream told of itself")


@streams.command()
@click.argument("stream")
@on_session()
def accept(session: Session, stream: str) -> None:
    """Let a stream go on that stopped with checkpoint_ahead, after a failover or a restore.

    STREAM is its id, which the error names. The stream goes on from the position that it last published in this
    database, so it may read some messages again. Start its query after this command.
    """
    with session.client() as client:
        queues = client.accept_spark_stream(stream)
        session.output.done("accepted", accepted=stream, queues=queues)


@streams.command()
@click.argument("stream")
@on_session()
def forget(session: Session, stream: str) -> None:
    """Forget a stream that will not come back, so that retention may take what it has not read.

    STREAM is its id, as in the list. A stream that runs tells of itself again.
    """
    with session.client() as client:
        queues = client.forget_spark_stream(stream)
        session.output.done("forgotten", forgotten=stream, queues=queues)

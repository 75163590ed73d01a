"""`lockstep pause` and `lockstep resume`: whether a group gets messages of a queue."""

from __future__ import annotations

import click

from lockstep.cli.connection import Session, on_session


@click.command()
@click.argument("queue")
@click.argument("group")
@on_session()
def pause(session: Session, queue: str, group: str) -> None:
    """Deliver nothing more of QUEUE to GROUP until `lockstep resume`. What is leased can still be acknowledged."""
    with session.client() as client:
        client.pause_group(queue, group)
    session.output.done(f"{group} is paused on {queue}", queue=queue, group=group, paused=True)


@click.command()
@click.argument("queue")
@click.argument("group")
@on_session()
def resume(session: Session, queue: str, group: str) -> None:
    """Deliver messages of QUEUE to GROUP again."""
    with session.client() as client:
        client.pause_group(queue, group, paused=False)
    session.output.done(f"{group} goes on with {queue}", queue=queue, group=group, paused=False)

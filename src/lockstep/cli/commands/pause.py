"""`lockstep pause` and `lockstep resume`: delivery of a queue to a group."""

from __future__ import annotations

import click

from lockstep.cli.connection import Session, on_session


@click.command()
@click.argument("queue")
@click.argument("group")
@on_session()
def pause(session: Session, queue: str, group: str) -> None:
    """Stop delivering QUEUE to GROUP until `lockstep resume`. Leased messages can still be acknowledged."""
    with session.client() as client:
        client.pause_group(queue, group)
    session.output.done(f"{group} is paused on {queue}", queue=queue, group=group, paused=True)


@click.command()
@click.argument("queue")
@click.argument("group")
@on_session()
def resume(session: Session, queue: str, group: str) -> None:
    """Resume delivering QUEUE to GROUP."""
    with session.client() as client:
        client.pause_group(queue, group, paused=False)
    session.output.done(f"{group} goes on with {queue}", queue=queue, group=group, paused=False)

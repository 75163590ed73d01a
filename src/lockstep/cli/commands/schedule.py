"""`lockstep schedule`: scheduled messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import click

from lockstep.cli.arguments import PAGE, ahead, later, limit_option
from lockstep.cli.connection import Session, on_session
from lockstep.cli.output import Column, payload_text
from lockstep.client import Client
from lockstep.core.messages import NewSchedule
from lockstep.core.schedules import Scheduled
from lockstep.errors import ScheduleNotFound

F = TypeVar("F", bound=Callable[..., Any])

_COLUMNS: tuple[Column, ...] = (
    "id",
    "queue",
    "partition",
    "key",
    "due_at",
    "created_at",
    ("payload", lambda waiting: payload_text(waiting, length_max=60)),
)


def _named(command: F) -> F:
    """Identifies a scheduled message: ID, or --queue and --key."""
    for option in (
        click.option("--key", "-k", help="The key that it was pushed with, in place of ID; needs --queue."),
        click.option("--queue", "-q", help="The queue, with --key."),
        click.argument("id", type=click.IntRange(min=1), required=False),
    ):
        command = option(command)
    return command


def _check_named(id: int | None, queue: str | None, key: str | None) -> None:
    if (id is None) == (key is None) or (key is None) != (queue is None):
        raise click.UsageError("Give an ID, or --queue and --key.")


@click.group()
def schedule() -> None:
    """List, cancel and reschedule messages that wait for their time."""


@schedule.command()
@on_session()
@click.option("--queue", "-q", help="Only those of a queue.")
@click.option("--partition", "-p", help="Only those of a partition; needs --queue.")
@click.option("--key-prefix", help="Only messages whose key has this prefix.")
@click.option(
    "--from", "from_at", type=ahead, metavar="TIME", help="Due at or after this time, or this duration from now."
)
@click.option(
    "--to", "to_at", type=ahead, metavar="TIME", help="Due before this time, or within this duration: 90s, 15m, 2h."
)
@limit_option
def ls(session: Session, limit: int, **where: Any) -> None:
    """List scheduled messages by due time."""
    if where["partition"] is not None and where["queue"] is None:
        raise click.UsageError("--partition needs --queue.")
    with session.client() as client:
        session.output.rows(_waiting(client, where, limit), _COLUMNS, empty="no message waits")


def _waiting(client: Client, where: dict[str, Any], limit: int) -> Iterator[Scheduled]:
    cursor = None
    while limit > 0:
        page = client.schedules(**where, cursor=cursor, limit=min(limit, PAGE))
        yield from page.items
        limit -= len(page.items)
        cursor = page.next_cursor
        if cursor is None:
            return


@schedule.command()
@on_session()
@_named
def show(session: Session, id: int | None, queue: str | None, key: str | None) -> None:
    """Show the scheduled message ID, or the one with --key."""
    _check_named(id, queue, key)
    with session.client() as client:
        session.output.record(client.schedule(id, queue=queue, key=key))


@schedule.command()
@on_session()
@_named
def cancel(session: Session, id: int | None, queue: str | None, key: str | None) -> None:
    """Cancel the scheduled message ID, or the one with --key. Fails if it is no longer scheduled."""
    _check_named(id, queue, key)
    with session.client() as client:
        if not client.cancel_schedule(id, queue=queue, key=key):
            raise ScheduleNotFound("no such message waits: it was delivered, or cancelled, before")
    session.output.done("cancelled", cancelled=True)


@schedule.command()
@on_session()
@_named
@click.option(
    "--at", "when", type=later, required=True, metavar="TIME", help="The new time, or in how long: 90s, 15m, 2h, 7d."
)
def reschedule(session: Session, id: int | None, queue: str | None, key: str | None, when: NewSchedule) -> None:
    """Change the time of the scheduled message ID, or of the one with --key."""
    _check_named(id, queue, key)
    with session.client() as client:
        moved = client.reschedule(
            id, queue=queue, key=key, deliver_at=when.deliver_at, delay_seconds=when.delay_seconds
        )
    session.output.record(moved)

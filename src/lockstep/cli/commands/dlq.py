"""`lockstep dlq`: dead letters: messages that a group gave up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import click

from lockstep.cli.arguments import PAGE, confirm, limit_option, time, yes_option
from lockstep.cli.connection import Session, on_session
from lockstep.cli.output import Column, ProgressBar, counted, payload_text
from lockstep.cli.watching import watchable
from lockstep.client import Client
from lockstep.core.records import DeadLetter

F = TypeVar("F", bound=Callable[..., Any])

_COLUMNS: tuple[Column, ...] = (
    "id",
    "message.queue",
    "message.partition",
    "message.seq",
    "group",
    "attempts",
    "failed_at",
    "error",
    ("payload", lambda letter: payload_text(letter.message, length_max=60)),
)


def _filters(command: F) -> F:
    """Selects dead letters."""
    for option in (
        click.option("--to", "to_at", type=time, metavar="TIME", help="Failed before this time."),
        click.option("--from", "from_at", type=time, metavar="TIME", help="Failed at or after this time."),
        click.option("--id", "ids", type=click.IntRange(min=1), multiple=True, help="May be given several times."),
        click.option("--group", "-g", help="Only those of a group."),
        click.option("--partition", "-p", help="Only those of a partition; needs --queue."),
        click.option("--queue", "-q", help="Only those of a queue."),
    ):
        command = option(command)
    return command


def _where(given: dict[str, Any]) -> dict[str, Any]:
    if given["partition"] is not None and given["queue"] is None:
        raise click.UsageError("--partition needs --queue.")
    return given | {"ids": given["ids"] or None}


@click.group()
def dlq() -> None:
    """List dead letters, push them again, or remove them."""


def _total(client: Client, where: dict[str, Any]) -> int:
    """The number of dead letters. Raises an error for an unknown queue, which is probably a typo."""
    if where["queue"] is not None:
        client.queue(where["queue"])
    return client.dead_letters(**where, limit=1).total


@dlq.command()
@on_session()
@_filters
@limit_option
@watchable
def ls(session: Session, limit: int, **given: Any) -> None:
    """List dead letters, newest first."""
    where = _where(given)
    with session.client() as client:
        limit = min(limit, _total(client, where))
        session.output.rows(_letters(client, where, limit), _COLUMNS, empty="there is no dead letter")


def _letters(client: Client, where: dict[str, Any], limit: int) -> Iterator[DeadLetter]:
    for offset in range(0, limit, PAGE):
        yield from client.dead_letters(**where, limit=min(limit - offset, PAGE), offset=offset).items


@dlq.command()
@click.argument("id", type=click.IntRange(min=1))
@on_session()
def show(session: Session, id: int) -> None:
    """Show the dead letter ID, with its message and the reason of its failure."""
    with session.client() as client:
        session.output.record(client.dead_letter(id))


@dlq.command()
@on_session()
@_filters
@yes_option
def redrive(session: Session, yes: bool, **given: Any) -> None:
    """Push the messages of dead letters again, oldest first, to the end of their partitions.

    Dead letters whose copies were completed in the dead queue are left out, unless --id names them.
    """
    where = _where(given)
    with session.client() as client:
        total = _total(client, where)
        if total:
            confirm(f"Push {counted(total, 'dead letter')} again?", yes=yes)
        redriven = _redrive(client, where, total)
    said = f"{counted(redriven, 'dead letter')} pushed again"
    if redriven < total:
        said += f"; {total - redriven} left: their copies in the dead queue are done, or under a lease"
    session.output.done(said, redriven=redriven)


def _redrive(client: Client, where: dict[str, Any], total: int) -> int:
    """At most as many as there were at the start, so that messages which fail again in the meantime are left out."""
    redriven = 0
    with ProgressBar("pushing", total) as shown:
        while redriven < total:
            moved = client.redrive(**where, all=True, limit=min(total - redriven, PAGE))
            if not moved:
                break
            redriven += moved
            shown.advance(moved)
    return redriven


@dlq.command()
@on_session()
@_filters
@yes_option
def purge(session: Session, yes: bool, **given: Any) -> None:
    """Remove dead letters permanently."""
    where = _where(given)
    with session.patient_client() as client:
        total = _total(client, where)
        if total:
            confirm(f"Remove {counted(total, 'dead letter')} for good?", yes=yes)
        with ProgressBar("removing", total) as bar, bar.following(lambda: _total(client, where), total):
            purged = client.purge(**where, all=True) if total else 0
    session.output.done(f"{counted(purged, 'dead letter')} removed", purged=purged)

"""`lockstep cron`: recurring messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

import click
import msgspec

from lockstep.cli.arguments import header, limit_option, paged
from lockstep.cli.connection import Session, on_session
from lockstep.cli.output import Column, payload_text
from lockstep.core.crons import CatchUp, Cron
from lockstep.core.names import DEFAULT_PARTITION
from lockstep.errors import CronNotFound, InvalidPayload

_COLUMNS: tuple[Column, ...] = (
    "name",
    "queue",
    "partition",
    "expression",
    "timezone",
    "catch_up",
    "enabled",
    "next_at",
    "last_at",
    ("payload", lambda cron: payload_text(cron, length_max=60)),
)


@click.group()
def cron() -> None:
    """Manage recurring messages, which are pushed by a cron expression."""


@cron.command()
@click.argument("name")
@click.argument("queue")
@click.argument("expression")
@click.argument("payload", default="null")
@on_session()
@click.option("--partition", "-p", default=DEFAULT_PARTITION, show_default=True, help="The partition.")
@click.option("--timezone", default="UTC", show_default=True, help="In which the expression is read: Europe/Berlin.")
@click.option(
    "--catch-up",
    type=click.Choice(get_args(CatchUp)),
    default="skip",
    show_default=True,
    help="What becomes of times at which no server ran.",
)
@click.option("--kind", help="What kind of message it is.")
@click.option("--reference", help="The thing that the message is about, such as an order id.")
@click.option(
    "--header", "headers", type=header, metavar="NAME=VALUE", multiple=True, help="May be given several times."
)
@click.option("--paused", is_flag=True, help="Push nothing until `lockstep cron resume`.")
def add(session: Session, payload: str, headers: Sequence[tuple[str, str]], paused: bool, **given: Any) -> None:
    """Push PAYLOAD, which is JSON, to QUEUE at the times of EXPRESSION.

    EXPRESSION has five fields, as in "*/15 8-18 * * MON-FRI", or six with seconds before them. A cron with the same
    NAME is replaced.
    """
    try:
        decoded = msgspec.json.decode(payload)
    except msgspec.DecodeError as error:
        raise InvalidPayload(f"not JSON: {error}") from error
    with session.client(begins=True) as client:
        made = client.set_cron(payload=decoded, headers=dict(headers) or None, enabled=not paused, **given)
    session.output.record(made)


@cron.command()
@on_session()
@limit_option
def ls(session: Session, limit: int) -> None:
    """List recurring messages by name."""
    with session.client() as client:

        def page(last: Cron | None, size: int) -> list[Cron]:
            return client.crons(after=None if last is None else last.name, limit=size)

        session.output.rows(paged(page, limit), _COLUMNS, empty="there is no recurring message")


@cron.command()
@click.argument("name")
@on_session()
def rm(session: Session, name: str) -> None:
    """Remove the recurring message NAME. Messages already pushed stay."""
    with session.client() as client:
        if not client.remove_cron(name):
            raise CronNotFound(f"there is no recurring message {name!r}", name=name)
    session.output.done("removed", removed=name)


@cron.command()
@click.argument("name")
@on_session()
def pause(session: Session, name: str) -> None:
    """Pause the recurring message NAME."""
    _enable(session, name, enabled=False)


@cron.command()
@click.argument("name")
@on_session()
def resume(session: Session, name: str) -> None:
    """Resume the recurring message NAME, from its next time on."""
    _enable(session, name, enabled=True)


def _enable(session: Session, name: str, *, enabled: bool) -> None:
    with session.client() as client:
        session.output.record(client.enable_cron(name, enabled))

"""`lockstep key`: API keys for access to a server."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import click

from lockstep.cli.arguments import ahead, confirm, limit_option, paged, yes_option
from lockstep.cli.connection import Session, on_session
from lockstep.core.access import ApiKey
from lockstep.core.rights import ROLES
from lockstep.errors import ApiKeyNotFound

_COLUMNS = ("id", "name", "role", "rules", "created_at", "expires_at", "revoked_at")


@click.group()
def key() -> None:
    """Create, list and revoke API keys."""


@key.command()
@click.argument("name")
@on_session()
@click.option("--role", type=click.Choice(tuple(ROLES)), help="What the key may do on all queues.")
@click.option(
    "--rule",
    "rules",
    multiple=True,
    metavar="RULE",
    help="Rights on queues by pattern, as 'push,pop orders.*'. May be given several times.",
)
@click.option("--expires", type=ahead, metavar="TIME", help="Until when it is valid: ISO 8601, or in how long: 90d.")
def create(session: Session, name: str, role: str | None, rules: Sequence[str], expires: datetime | None) -> None:
    """Create an API key for NAME, and print it. It is shown only once. NAME identifies its holder in the audit log, and
    the producer of messages pushed with it.
    """
    if role is None and not rules:
        raise click.UsageError("A key needs --role or --rule.")
    with session.client(begins=True) as client:
        made = client.create_key(name, role=role, rules=rules, expires_at=expires)
    if session.format == "table":
        click.echo(f"key {made.key.id} for {name}; this is the only time it is shown:", err=True)
        click.echo(made.token)
    else:
        session.output.record(made)


@key.command()
@on_session()
@limit_option
def ls(session: Session, limit: int) -> None:
    """List API keys, including revoked and expired ones."""
    with session.client() as client:

        def page(last: ApiKey | None, size: int) -> list[ApiKey]:
            return client.keys(after=None if last is None else last.id, limit=size)

        session.output.rows(paged(page, limit), _COLUMNS, empty="there is no API key")


@key.command()
@click.argument("key_id", metavar="ID")
@on_session()
@yes_option
def revoke(session: Session, key_id: str, yes: bool) -> None:
    """Revoke the key ID. It stops working on all servers within 5 seconds."""
    confirm(f"Revoke the key {key_id}?", yes=yes)
    with session.client() as client:
        if not client.revoke_key(key_id):
            raise ApiKeyNotFound(f"there is no valid key {key_id!r}", id=key_id)
    session.output.done("revoked", revoked=key_id)

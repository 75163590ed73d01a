"""`lockstep grant`, `revoke` and `grants`: the rights of database roles on queues."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from functools import partial
from typing import Any, TypeVar

import asyncpg
import click

from lockstep.cli.connection import Session, database_in, on_session
from lockstep.cli.on_database import on_database
from lockstep.storage.postgres import role_rules

_COLUMNS = ("role", "right", "pattern", "created_at", "exists")

T = TypeVar("T")


@click.command()
@click.argument("rights")
@click.argument("pattern")
@click.argument("to", type=click.Choice(["to"]))
@click.argument("role")
@on_session("dsn", "data_dir", "output")
def grant(session: Session, rights: str, pattern: str, to: str, role: str) -> None:  # noqa: ARG001
    """Grant a database role RIGHTS on the queues of a PATTERN: lockstep grant push,pop 'orders.*' to shop.

    The rights apply to the library, SQL and `push_within` directly on the database. Run it as the owner of the schema.
    Programs that use a server have API keys instead.
    """
    named, queues = role_rules.rights_of(f"{rights} {pattern}")
    new = _on(session, partial(role_rules.grant, rights=named, pattern=queues, role=role))
    text = f"granted: {', '.join(new)} on {queues} to {role}" if new else f"{role} has that already; nothing was done"
    session.output.done(text, granted=new, pattern=queues, role=role)


@click.command()
@click.argument("rights")
@click.argument("pattern")
@click.argument("from_", metavar="{from}", type=click.Choice(["from"]))
@click.argument("role")
@on_session("dsn", "data_dir", "output")
def revoke(session: Session, rights: str, pattern: str, from_: str, role: str) -> None:  # noqa: ARG001
    """Revoke RIGHTS on the queues of a PATTERN, as they were granted, from a database role."""
    named, queues = role_rules.rights_of(f"{rights} {pattern}")
    gone = _on(session, partial(role_rules.revoke, rights=named, pattern=queues, role=role))
    text = f"revoked: {', '.join(gone)} on {queues} from {role}" if gone else f"{role} has no such rule"
    session.output.done(text, revoked=gone, pattern=queues, role=role)


@click.command()
@click.option("--role", help="Only the rules of this role.")
@on_session("dsn", "data_dir", "output")
def grants(session: Session, role: str | None) -> None:
    """List the rights of database roles on queues."""
    listed = _on(session, partial(role_rules.rules, role=role))
    session.output.rows(listed, _COLUMNS, empty="no role has a rule")


def _on(session: Session, work: Callable[[asyncpg.Connection[Any]], Awaitable[T]]) -> T:
    config = session.settings()
    if config.dsn is None and session.data_dir is None:
        raise click.UsageError("Name the database: --dsn, LOCKSTEP_DSN or --data-dir.")
    with nullcontext(config.dsn) if session.data_dir is None else database_in(session.data_dir) as dsn:
        return on_database(dsn or "", config, work, failed="the database refuses it")

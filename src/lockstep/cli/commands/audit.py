"""`lockstep audit`: who did what."""

from __future__ import annotations

import click

from lockstep.cli.arguments import limit_option, paged
from lockstep.cli.connection import Session, on_session
from lockstep.core.access import AuditEntry

_COLUMNS = ("at", "who", "act", "queues", "outcome", "detail")


@click.command()
@on_session()
@click.option("--who", help="Only acts of this key's or subject's name.")
@click.option("--queue", "-q", help="Only acts on a queue.")
@click.option("--act", help="Only one kind of act, as delete_queue.")
@limit_option
def audit(session: Session, who: str | None, queue: str | None, act: str | None, limit: int) -> None:
    """List administrative acts, newest first."""
    with session.client() as client:

        def page(last: AuditEntry | None, size: int) -> list[AuditEntry]:
            before = None if last is None else last.id
            return client.audit(who=who, queue=queue, act=act, before=before, limit=size)

        session.output.rows(paged(page, limit), _COLUMNS, empty="the audit log is empty")

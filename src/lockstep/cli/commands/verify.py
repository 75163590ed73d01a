"""`lockstep verify`: checks the stored data."""

from __future__ import annotations

import click

from lockstep.cli.connection import Session, on_session
from lockstep.cli.output import ProgressBar
from lockstep.exit_codes import FAILED

_COLUMNS = ("kind", "queue", "partition_id", "repairable", "repaired", "text")


@click.command()
@on_session()
@click.option("--queue", "-q", help="Only what belongs to a queue.")
@click.option("--repair", is_flag=True, help="Recompute what can be recomputed.")
@click.pass_context
def verify(ctx: click.Context, session: Session, queue: str | None, repair: bool) -> None:
    """Check the stored data.

    Exits with 1 if a problem remains.
    """
    with session.patient_client() as client:
        with ProgressBar("checking"):
            problems = client.repair(queue=queue) if repair else client.verify(queue=queue)
        session.output.rows(problems, _COLUMNS, empty="all is as it should be")
    if not all(problem.repaired for problem in problems):
        ctx.exit(FAILED)

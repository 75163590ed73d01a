"""`lockstep maintenance`: buffers pushes while the database is being maintained; lists background duties."""

from __future__ import annotations

import click

from lockstep.cli.connection import Session, on_session
from lockstep.cli.output import counted

_DUTIES = ("name", "last_finished_at", "next_run_at", "runs", "failures", "last_error", "claimed_by", "last_effect")

_pop = click.option("--pop", is_flag=True, help="Pops, which then find nothing, instead of pushes.")


@click.group()
def maintenance() -> None:
    """Make all servers of the database buffer pushes or stop pops, and list their background duties."""


@maintenance.command()
@on_session()
@_pop
def on(session: Session, pop: bool) -> None:
    """Buffer pushes on the servers' disks from now on; pops continue."""
    _set(session, pop=pop, enabled=True)


@maintenance.command()
@on_session()
@_pop
def off(session: Session, pop: bool) -> None:
    """Push the buffered messages, in order, followed by all new ones."""
    _set(session, pop=pop, enabled=False)


@maintenance.command()
@on_session()
def status(session: Session) -> None:
    """Show the modes, and what the server has buffered."""
    with session.client() as client:
        session.output.record(client.maintenance_mode())


@maintenance.command()
@on_session()
def retry(session: Session) -> None:
    """Retry the records that the database refused while draining and the server set aside."""
    with session.client() as client:
        messages = client.retry_rejected()
    session.output.done(f"{counted(messages, 'message')} pushed again", messages=messages)


@maintenance.command()
@on_session()
def accept(session: Session) -> None:
    """Continue draining after a failover that lost messages which the server had buffered and pushed (spool_ahead).

    The lost messages stay lost. Run it for each server whose status shows bytesLost."""
    with session.client() as client:
        lost = client.accept_buffer_loss()
    session.output.done(f"{counted(lost, 'lost byte')} accepted", bytes=lost)


@maintenance.command()
@on_session()
def duties(session: Session) -> None:
    """List the background duties of servers: last run, server and result."""
    with session.client() as client:
        session.output.rows(client.duties(), _DUTIES, empty="no server has done any yet")


def _set(session: Session, *, pop: bool, enabled: bool) -> None:
    with session.client() as client:
        mode = client.set_maintenance_mode(pop=enabled) if pop else client.set_maintenance_mode(push=enabled)
    session.output.record(mode)

"""`lockstep operations`: requests that a busy server has queued."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

import click

from lockstep.cli.arguments import PAGE, limit_option
from lockstep.cli.connection import Session, on_session
from lockstep.cli.output import Column
from lockstep.cli.watching import watchable
from lockstep.client import Client
from lockstep.core.operations import OperationInfo, OperationStats, OperationStatus

_AIM: tuple[Column, ...] = ("queues", "partition", "partitions", "messages")
_WHEN: tuple[Column, ...] = ("created_at", "due_at", "completed_at", "retries")
_COLUMNS: tuple[Column, ...] = ("id", "kind", "status", *_AIM, *_WHEN, "error")
_ONE: tuple[Column, ...] = (*_COLUMNS[:-1], "position", "worker", "error", "error_code")
_STATS = ("kind", "answer", "load", "seconds", "queued", "rejected", "waiting", "oldest_at")


@click.group()
def operations() -> None:
    """Show requests that were queued while a server was busy, and its load."""


@operations.command()
@on_session()
@click.option("--status", "-s", type=click.Choice(get_args(OperationStatus)), help="Only those of a status.")
@click.option("--queue", "-q", metavar="QUEUE", help="Only pushes to a queue.")
@limit_option
@watchable
def ls(session: Session, limit: int, status: OperationStatus | None, queue: str | None) -> None:
    """List operations, oldest first."""
    with session.client() as client:
        session.output.rows(_all(client, status, queue, limit), _COLUMNS, empty="there is no operation")


def _all(client: Client, status: OperationStatus | None, queue: str | None, limit: int) -> Iterator[OperationInfo]:
    cursor = None
    while limit > 0:
        page = client.operations(status=status, queue=queue, cursor=cursor, limit=min(limit, PAGE))
        yield from page.items
        limit -= len(page.items)
        cursor = page.next_cursor
        if cursor is None:
            return


@operations.command()
@click.argument("operation_id", metavar="ID")
@on_session()
def show(session: Session, operation_id: str) -> None:
    """Show one operation: its position in the queue, and its outcome."""
    with session.client() as client:
        session.output.record(client.operation(operation_id), _ONE)


@operations.command()
@on_session()
def stats(session: Session) -> None:
    """Show the waiting operations, and how the server treats the next request."""
    with session.client() as client:
        found = client.operation_stats()
    if session.output.format == "table":
        session.output.rows(_rows(found), [(name.replace("_", " "), _field(name)) for name in _STATS])
    else:
        session.output.record(found)


def _rows(stats: OperationStats) -> list[dict[str, Any]]:
    depths = {depth.kind: depth for depth in stats.pending}
    rows = []
    for load in stats.load:
        depth = None if load.kind == "pop" else depths[load.kind]
        waiting = None if depth is None else depth.operations
        shown = {name: getattr(load, name) for name in load.__struct_fields__}
        rows.append({**shown, "waiting": waiting, "oldest_at": None if depth is None else depth.oldest_at})
    return rows


def _field(name: Any) -> Any:
    return lambda row: row[name]


@operations.command()
@click.argument("operation_id", metavar="ID")
@on_session()
def retry(session: Session, operation_id: str) -> None:
    """Queue a failed operation again, in its old position."""
    with session.client() as client:
        session.output.record(client.retry_operation(operation_id), _ONE)

"""`lockstep messages`: stored messages, with what became of them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from itertools import islice
from typing import Any, get_args

import click

from lockstep.cli.arguments import PAGE, limit_option, time
from lockstep.cli.connection import Session, on_session
from lockstep.cli.output import Column, payload_text
from lockstep.client import Client
from lockstep.core.records import MessageStatus, MessageView

_PAYLOAD_LENGTH = 100
_COLUMNS: tuple[Column, ...] = (
    "message.partition",
    "message.seq",
    "status",
    "message.created_at",
    "message.id",
    ("payload", lambda view: payload_text(view.message, length_max=_PAYLOAD_LENGTH)),
)


@click.command()
@click.argument("queue")
@on_session()
@click.option("--partition", "-p", help="Only this partition.")
@click.option("--status", type=click.Choice(get_args(MessageStatus)), help="Only those of a status.")
@click.option("--from", "from_at", type=time, metavar="TIME", help="Created at or after this time.")
@click.option("--to", "to_at", type=time, metavar="TIME", help="Created before this time.")
@click.option("--newest-first", is_flag=True, help="Begin with the message that was stored last.")
@limit_option
def messages(session: Session, queue: str, limit: int, **where: str | datetime | bool | None) -> None:
    """List the stored messages of QUEUE.

    They come by partition and seq, or with --newest-first the last stored first. Nothing is leased. A table cuts long
    payloads; -o json and -o ndjson show all of each message.
    """
    with session.client() as client:
        session.output.rows(islice(_views(client, queue, min(limit, PAGE), where), limit), _COLUMNS)


def _views(client: Client, queue: str, size: int, where: Any) -> Iterator[MessageView]:
    cursor: str | None = None
    while True:
        page = client.messages(queue, cursor=cursor, limit=size, **where)
        yield from page.items
        cursor = page.next_cursor
        if cursor is None:
            return

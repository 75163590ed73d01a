"""`lockstep messages`: stored messages and their status."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from itertools import islice
from typing import Any, get_args

import click

from lockstep.cli.arguments import PAGE, limit_option, time
from lockstep.cli.connection import Session, on_session
from lockstep.cli.output import Column, ProgressBar, counted, note, payload_text
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

    Sorted by partition and seq, or by time of storage with --newest-first. Nothing is leased. Tables truncate long
    payloads; -o json and -o ndjson show messages in full. With a filter, the command searches until it has found
    as many messages as requested or has read all of them, and reports how many it has examined; Ctrl-C ends the search.
    """
    with session.client() as client:
        search = _Search(client, queue, where)
        if session.output.format == "ndjson":
            session.output.rows(islice(search.views(min(limit, PAGE)), limit), _COLUMNS)
        else:
            with ProgressBar("looking") as search.shown:
                found = list(islice(search.views(min(limit, PAGE)), limit))
            session.output.rows(found, _COLUMNS)
    if search.pages > 1 and any(where[name] is not None for name in ("status", "from_at", "to_at")):
        note(f"looked at {counted(search.looked_into, 'message')}")


class _Search:
    """A walk over the pages of a list, and how far it has come."""

    def __init__(self, client: Client, queue: str, where: Mapping[str, Any]) -> None:
        self.shown: ProgressBar | None = None
        self.pages = 0
        self.looked_into = 0
        self._client = client
        self._queue = queue
        self._where = where

    def views(self, size: int) -> Iterator[MessageView]:
        cursor: str | None = None
        while True:
            page = self._client.messages(self._queue, cursor=cursor, limit=size, **self._where)
            self.pages += 1
            self.looked_into += page.looked_into
            if self.shown is not None:
                self.shown.advance(page.looked_into)
            yield from page.items
            cursor = page.next_cursor
            if cursor is None:
                return

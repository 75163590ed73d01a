"""`lockstep encryption`: the encryption keys of stored messages, and how much is stored under each."""

from __future__ import annotations

import os
from base64 import b64encode
from collections import Counter
from pathlib import Path

import click
import msgspec

from lockstep.cli.arguments import confirm, yes_option
from lockstep.cli.connection import Session, on_session
from lockstep.cli.output import ProgressBar, counted, note
from lockstep.client import Client
from lockstep.core.sealing import KEY_BYTES, key_id
from lockstep.exit_codes import FAILED

_SLICE = 200


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """How much is stored under a key."""

    key: str
    active: bool
    items: int
    """Segments, scheduled messages and recurring messages."""


@click.group()
def encryption() -> None:
    """Change the key of encrypted queues, count stored bodies by key, and create keys.

    These keys encrypt stored data. For access to a server, see `lockstep key`."""


@encryption.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@on_session("output")
def create(session: Session, file: Path) -> None:
    """Create a key and write it to FILE, which must not exist; use it in the setting encryption_key_file."""
    key = os.urandom(KEY_BYTES)
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise click.ClickException(f"{file} cannot be written: {error.strerror}") from None
    with os.fdopen(descriptor, "wb") as opened:
        opened.write(b64encode(key) + b"\n")
    text = f"key {key_id(key)} written to {file}. Back it up: without it the messages are lost."
    session.output.done(text, key=key_id(key), file=str(file))


@encryption.command()
@on_session()
@click.pass_context
def rotate(ctx: click.Context, session: Session) -> None:
    """Re-encrypt everything with the active key that is stored under other keys, or unencrypted in encrypted queues.

    Servers keep running. The command may be stopped and repeated. Exits with 1 if something cannot be read."""
    if _walk(session, "re-encrypting", count_only=False):
        ctx.exit(FAILED)


@encryption.command()
@on_session()
def status(session: Session) -> None:
    """Count the stored bodies of encrypted queues, by key. A key under which nothing is stored may be removed.

    `unbound` bodies have the encrypted form of older versions, `plain` bodies are older than the encryption of their
    queue. `lockstep encryption rotate` converts both."""
    _walk(session, "counting", count_only=True)


@encryption.command()
@click.argument("queue")
@on_session()
@yes_option
def off(session: Session, queue: str, yes: bool) -> None:
    """Store messages of QUEUE unencrypted from now on. Stored messages stay encrypted."""
    with session.client() as client:
        confirm(f"Store new messages of {queue} without encryption?", yes=yes)
        client.stop_encryption(queue)
    session.output.done(f"{queue} stores new messages without encryption", queue=queue)


def _walk(session: Session, label: str, *, count_only: bool) -> int:
    """Process it slice by slice; returns how many items could not be read."""
    with session.patient_client() as client, ProgressBar(label) as bar:
        found, rotated, failed, active = _slices(client, bar, count_only=count_only)
    figures = {"active_key": active, "rotated": rotated, "failed": failed}
    if count_only:
        rows = [Stored(key=name, active=name == active, items=count) for name, count in sorted(found.items())]
        session.output.rows(rows, Stored.__struct_fields__, empty="no queue is encrypted, or nothing is stored in one")
    else:
        text = f"{counted(rotated, 'stored item')} encrypted with key {active}; {failed} cannot be read"
        session.output.done(text, **figures)
    return failed


def _slices(client: Client, bar: ProgressBar, *, count_only: bool) -> tuple[Counter[str], int, int, str | None]:
    found: Counter[str] = Counter()
    looked_at = rotated = failed = 0
    cursor = None
    while True:
        done = client.rotate_encryption(cursor=cursor, limit=_SLICE, count_only=count_only)
        looked_at, rotated, failed = looked_at + done.looked_at, rotated + done.rotated, failed + done.failed
        found.update(done.found)
        for failure in done.failures:
            note(failure)
        bar.show(f"{looked_at} looked at, {rotated} encrypted")
        cursor = done.next_cursor
        if cursor is None:
            return found, rotated, failed, done.active_key

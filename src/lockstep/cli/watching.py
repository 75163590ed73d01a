"""The option `--watch` for lists that are shown repeatedly."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar

import click

from lockstep.cli.arguments import Seconds
from lockstep.cli.connection import Session
from lockstep.cli.output import clear_screen, note
from lockstep.errors import Unavailable

F = TypeVar("F", bound=Callable[..., None])

SECONDS = 2.0
_CLEAR_SECONDS_MIN = 0.1


def watchable(command: F) -> F:
    """Add the option `--watch` to a list, below the command's other options."""

    @click.option(
        "--watch",
        type=Seconds(_CLEAR_SECONDS_MIN, 86_400),
        is_flag=False,
        flag_value=SECONDS,
        metavar="[SECONDS]",
        help=f"Show the list again at this interval in seconds, by default {SECONDS:g}, until Ctrl-C.",
    )
    @functools.wraps(command)
    def shown(session: Session, *args: Any, watch: float | None, **options: Any) -> None:
        if watch is None:
            command(session, *args, **options)
        else:
            _watch(session, functools.partial(command, session, *args, **options), watch)

    return shown  # type: ignore[return-value]


def _watch(session: Session, show: Callable[[], None], seconds: float) -> None:
    """Uses one connection. A server that is away for a while does not end it."""
    with session.staying_connected():
        while True:
            if clear_screen():
                click.echo(f"{datetime.now().astimezone():%H:%M:%S}, every {seconds:g} s; Ctrl-C ends\n")
            try:
                show()
            except Unavailable as error:
                note(f"{error.message} ({error.code})")
            time.sleep(seconds)

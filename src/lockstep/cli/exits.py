"""How the program ends: its exit codes, and which error means which. Nothing else decides about them."""

from __future__ import annotations

import os
import sys
from typing import Any, NoReturn

import click

from lockstep.cli.output import at_screen
from lockstep.cli.signals import terminating
from lockstep.errors import (
    Conflict,
    DataDirectoryInUse,
    Forbidden,
    InvalidRequest,
    LockstepError,
    NotFound,
    Overloaded,
    QueueFull,
    TooLarge,
    Unauthorized,
    Unavailable,
)

FAILED, USAGE, NOT_FOUND, REFUSED, UNAVAILABLE, INTERRUPTED, PIPE_CLOSED = 1, 2, 3, 4, 5, 130, 141

EXIT_CODES: dict[int, str] = {
    0: "It is done.",
    FAILED: "It failed, or something was found that is not as it should be.",
    USAGE: "The command line, a setting or another input is not valid. Nothing was changed.",
    NOT_FOUND: "What was named does not exist.",
    REFUSED: "Refused: a conflict, a lost lease, a full queue, a limit, a data directory in use, or no permission.",
    UNAVAILABLE: "The server or the database cannot be reached, or is overloaded; try again later.",
    INTERRUPTED: "Interrupted (Ctrl-C, SIGTERM). A server that runs ends with 0 then.",
    PIPE_CLOSED: "Whoever read the output went away.",
}

# The first that fits.
_CODE_OF_ERROR: tuple[tuple[tuple[type[LockstepError], ...], int], ...] = (
    ((InvalidRequest,), USAGE),
    ((NotFound,), NOT_FOUND),
    ((Conflict, QueueFull, TooLarge, DataDirectoryInUse, Unauthorized, Forbidden), REFUSED),
    ((Unavailable, Overloaded), UNAVAILABLE),
)


def exit_code(error: LockstepError) -> int:
    return next((code for kinds, code in _CODE_OF_ERROR if isinstance(error, kinds)), FAILED)


def end_with(error: LockstepError, code: int) -> NoReturn:
    """Say what went wrong, and end."""
    click.echo(f"Error: {error.message} ({error.code})", err=True)
    click.get_current_context().exit(code)


class Program(click.Group):
    """The whole command line: whatever a command raises becomes an exit code here."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with terminating():
                return super().invoke(ctx)
        except LockstepError as error:
            end_with(error, exit_code(error))
        except BrokenPipeError:
            _discard_output()
            ctx.exit(PIPE_CLOSED)
        except OSError as error:
            _discard_output()
            click.echo(f"Error: {error}", err=True)
            ctx.exit(FAILED)
        except (KeyboardInterrupt, click.Abort):
            if at_screen():
                click.echo(err=True)  # behind the ^C, or a question, or half of a bar
            ctx.exit(INTERRUPTED)


def _discard_output() -> None:
    # What is still buffered has nowhere to go, and Python would complain about that when it ends.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

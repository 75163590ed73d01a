"""Ends the program with the right exit code, whatever a command raises."""

from __future__ import annotations

import os
import sys
from typing import Any, NoReturn

import click

from lockstep.cli.output import at_screen
from lockstep.cli.signals import terminating
from lockstep.errors import LockstepError
from lockstep.exit_codes import FAILED, INTERRUPTED, PIPE_CLOSED, exit_code


def end_with(error: LockstepError, code: int) -> NoReturn:
    """Report the error and exit."""
    click.echo(f"Error: {error.message} ({error.code})", err=True)
    click.get_current_context().exit(code)


class Program(click.Group):
    """The whole command line; every exception of a command becomes an exit code here."""

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
                click.echo(err=True)  # after ^C, a prompt or part of a progress bar
            ctx.exit(INTERRUPTED)


def _discard_output() -> None:
    # The rest of the buffer cannot be written, and Python would complain about that at exit.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

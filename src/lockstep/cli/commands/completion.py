"""`lockstep completion`: completion for shells."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

_SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(_SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print completion for a shell.

    For bash: echo 'eval "$(lockstep completion bash)"' >> ~/.bashrc
    """
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(ctx.find_root().command, {}, "lockstep", "_LOCKSTEP_COMPLETE").source())

"""The command line as a whole: all commands, and the options that they share."""

from __future__ import annotations

import os
from collections.abc import Iterator, MutableMapping
from importlib import import_module

import click

from lockstep.cli.connection import Session, shared_options
from lockstep.cli.exits import Program
from lockstep.cli.output import prepare_stdout
from lockstep.version import VERSION

COMMANDS = {
    "serve": "serve",
    "push": "push",
    "pop": "pop",
    "next": "next",
    "ack": "ack",
    "tail": "tail",
    "top": "top",
    "queues": "queues",
    "queue": "queue",
    "partitions": "partitions",
    "groups": "groups",
    "seek": "seek",
    "pause": "pause",
    "resume": "pause",
    "lag": "lag",
    "streams": "streams",
    "schedule": "schedule",
    "cron": "cron",
    "dlq": "dlq",
    "messages": "messages",
    "trace": "trace",
    "leases": "leases",
    "pipeline": "pipeline",
    "job": "job",
    "operations": "operations",
    "verify": "verify",
    "maintenance": "maintenance",
    "key": "key",
    "audit": "audit",
    "grant": "grant",
    "revoke": "grant",
    "grants": "grant",
    "encryption": "encryption",
    "migrate": "migrate",
    "doctor": "doctor",
    "dsn": "dsn",
    "bench": "bench",
    "demo": "demo",
    "completion": "completion",
}
"""Each command and its module in `lockstep.cli.commands`, the most useful first."""


class _Commands(MutableMapping[str, click.Command]):
    """The commands, each imported when it is asked for: a call of one does not wait until all are loaded."""

    def __init__(self) -> None:
        self._loaded: dict[str, click.Command] = {}

    def __getitem__(self, name: str) -> click.Command:
        if name not in self._loaded:
            module = import_module(f"lockstep.cli.commands.{COMMANDS[name]}")
            self._loaded[name] = getattr(module, name)
        return self._loaded[name]

    def __setitem__(self, name: str, command: click.Command) -> None:
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        del self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class _InOrder(Program):
    """Lists the commands in the order of the table, so that the most useful come first."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(self.commands)


@click.group(cls=_InOrder, commands=_Commands(), context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, message="lockstep %(version)s")
@shared_options
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Ordered message queues on PostgreSQL.

    The commands talk to the server at --url, or work directly on a database with --dsn or --data-dir. These options,
    and -o, may stand before or after the command.
    """
    ctx.ensure_object(Session)
    if os.environ.get("NO_COLOR"):
        ctx.color = False


def main() -> None:
    """The program `lockstep`."""
    prepare_stdout()
    cli(prog_name="lockstep")

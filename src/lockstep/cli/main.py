"""The command line as a whole: all commands, and the options that they share."""

from __future__ import annotations

import os

import click

from lockstep.cli.commands.ack import ack
from lockstep.cli.commands.audit import audit
from lockstep.cli.commands.bench import bench
from lockstep.cli.commands.completion import completion
from lockstep.cli.commands.cron import cron
from lockstep.cli.commands.demo import demo
from lockstep.cli.commands.dlq import dlq
from lockstep.cli.commands.doctor import doctor
from lockstep.cli.commands.dsn import dsn
from lockstep.cli.commands.encryption import encryption
from lockstep.cli.commands.grant import grant, grants, revoke
from lockstep.cli.commands.groups import groups
from lockstep.cli.commands.job import job
from lockstep.cli.commands.key import key
from lockstep.cli.commands.lag import lag
from lockstep.cli.commands.leases import leases
from lockstep.cli.commands.maintenance import maintenance
from lockstep.cli.commands.messages import messages
from lockstep.cli.commands.migrate import migrate
from lockstep.cli.commands.next import next
from lockstep.cli.commands.operations import operations
from lockstep.cli.commands.partitions import partitions
from lockstep.cli.commands.pause import pause, resume
from lockstep.cli.commands.pipeline import pipeline
from lockstep.cli.commands.pop import pop
from lockstep.cli.commands.push import push
from lockstep.cli.commands.queue import queue
from lockstep.cli.commands.queues import queues
from lockstep.cli.commands.schedule import schedule
from lockstep.cli.commands.seek import seek
from lockstep.cli.commands.serve import serve
from lockstep.cli.commands.streams import streams
from lockstep.cli.commands.tail import tail
from lockstep.cli.commands.top import top
from lockstep.cli.commands.trace import trace
from lockstep.cli.commands.verify import verify
from lockstep.cli.connection import Session, shared_options
from lockstep.cli.exits import Program
from lockstep.cli.output import prepare_stdout
from lockstep.version import VERSION

COMMANDS = (
    serve,
    push,
    pop,
    next,
    ack,
    tail,
    top,
    queues,
    queue,
    partitions,
    groups,
    seek,
    pause,
    resume,
    lag,
    streams,
    schedule,
    cron,
    dlq,
    messages,
    trace,
    leases,
    pipeline,
    job,
    operations,
    verify,
    maintenance,
    key,
    audit,
    grant,
    revoke,
    grants,
    encryption,
    migrate,
    doctor,
    dsn,
    bench,
    demo,
    completion,
)


class _InOrder(Program):
    """Lists the commands in the order in which they were added, so that the most useful come first."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(self.commands)


@click.group(cls=_InOrder, context_settings={"help_option_names": ["-h", "--help"]})
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


for command in COMMANDS:
    cli.add_command(command)


def main() -> None:
    """The program `lockstep`."""
    prepare_stdout()
    cli(prog_name="lockstep")

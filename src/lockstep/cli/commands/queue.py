"""`lockstep queue`: one queue: its options and its contents."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, TypeVar, get_args, get_origin

import click
import msgspec

from lockstep.cli.arguments import confirm, exact_option, limit_option, paged, yes_option
from lockstep.cli.connection import Session, on_session
from lockstep.cli.output import ProgressBar, counted
from lockstep.client import Client
from lockstep.core.policy import DEFAULTS, OPTION_NAMES, OPTION_TYPES, OPTIONS, QueueOptions, encryption_stays
from lockstep.core.records import ClearScope, PartitionStats
from lockstep.errors import QueueNotFound

F = TypeVar("F", bound=Callable[..., Any])

_STATS = PartitionStats.__struct_fields__


def _queue_options(command: F) -> F:
    """One command-line option for each queue option."""
    for name in reversed(OPTION_NAMES):
        command = _option(name)(command)
    return command


def _option(name: str) -> Callable[[F], F]:
    flag, default, hint = name.replace("_", "-"), getattr(DEFAULTS, name), OPTION_TYPES[name]
    shown = "none; an empty name removes it" if default is None else msgspec.json.encode(default).decode()
    help_text = f"{OPTIONS[name].help} Default {shown}."
    if hint is bool:
        return click.option(f"--{flag}/--no-{flag}", name, default=None, help=help_text)
    kind = click.Choice(get_args(hint)) if get_origin(hint) is Literal else str if hint == str | None else hint
    return click.option(f"--{flag}", name, type=kind, help=help_text)


def _changes(options: dict[str, Any]) -> dict[str, Any]:
    """The given options. An empty name clears the option."""
    return {name: None if value == "" else value for name, value in options.items() if value is not None}


def _refuse_to_stop_encryption(options: dict[str, Any], present: QueueOptions | None) -> None:
    if options["encryption"] is False and present is not None and present.encryption:
        raise encryption_stays()


@click.group()
def queue() -> None:
    """Show, configure, clear or delete one queue."""


@queue.command()
@click.argument("queue")
@on_session()
@exact_option
def show(session: Session, queue: str, exact: bool) -> None:
    """Show the options and the contents of QUEUE."""
    with session.client() as client:
        session.output.record(client.queue(queue, exact=exact))


@queue.command()
@click.argument("queue")
@on_session()
@click.option("--namespace", help="Default: stays, or is the first part of a new queue's name.")
@click.option("--task", help="Default: stays, or is the second part of a new queue's name.")
@click.option("--reset", is_flag=True, help="Options that are not given get their defaults, and do not stay.")
@_queue_options
def configure(
    session: Session, queue: str, namespace: str | None, task: str | None, reset: bool, **options: Any
) -> None:
    """Create QUEUE, or change the given options; the others stay."""
    changes = _changes(options)
    with session.client(begins=True) as client:
        try:
            present = client.queue(queue).options
        except QueueNotFound:
            present = None
        _refuse_to_stop_encryption(options, present)
        base = None if reset else present
        session.output.record(client.configure(queue, base, namespace=namespace, task=task, **changes))


@queue.command()
@click.argument("queue")
@on_session()
@click.option("--namespace", help="Default: stays.")
@click.option("--task", help="Default: stays.")
@_queue_options
def update(session: Session, queue: str, namespace: str | None, task: str | None, **options: Any) -> None:
    """Change the given options of QUEUE, which must exist; the others stay, even if another caller changes them at the
    same time."""
    changes = _changes(options)
    if not changes and namespace is None and task is None:
        raise click.UsageError("Name at least one option.")
    with session.client() as client:
        session.output.record(client.update_queue(queue, namespace=namespace, task=task, **changes))


@queue.command()
@click.argument("queue")
@on_session()
@limit_option
def stats(session: Session, queue: str, limit: int) -> None:
    """Show the current partitions of QUEUE: number of messages, how many of them are leased or scheduled, and their
    age."""
    with session.client() as client:

        def fetch(last: PartitionStats | None, size: int) -> list[PartitionStats]:
            return client.stats(queue, after=None if last is None else last.partition, limit=size)

        session.output.rows(paged(fetch, limit), _STATS, empty="there is no partition")


@queue.command()
@click.argument("queue")
@on_session()
@click.option("--limit", type=click.IntRange(min=1), default=1000, show_default=True, help="Most messages.")
@yes_option
def redrive(session: Session, queue: str, limit: int, yes: bool) -> None:
    """Send messages of QUEUE, a dead queue, back to where they came from."""
    with session.client() as client:
        confirm(f"Send up to {counted(limit, 'message')} of {queue} back?", yes=yes)
        with ProgressBar("sending back"):
            redriven = client.redrive_queue(queue, limit=limit)
    session.output.done(f"{counted(redriven, 'message')} of {queue} sent back", queue=queue, redriven=redriven)


@queue.command()
@click.argument("queue")
@on_session()
@yes_option
def delete(session: Session, queue: str, yes: bool) -> None:
    """Delete QUEUE and everything in it: messages, groups, dead letters."""
    with session.patient_client() as client:
        messages = client.queue(queue).messages
        confirm(f"Delete the queue {queue} with {counted(messages, 'message')}?", yes=yes)
        with ProgressBar("deleting"):
            deleted = client.delete_queue(queue)
        if not deleted:
            raise QueueNotFound(f"there is no queue {queue!r}")
    session.output.done(f"{queue} deleted", queue=queue, deleted=True)


@queue.command()
@click.argument("queue")
@on_session()
@click.option("--partition", "-p", help="Only this partition.")
@click.option(
    "--scope",
    type=click.Choice(get_args(ClearScope)),
    default="all",
    show_default=True,
    help="unleased keeps messages under a live lease; scheduled removes only messages that wait for their time.",
)
@yes_option
def clear(session: Session, queue: str, partition: str | None, scope: ClearScope, yes: bool) -> None:
    """Remove stored messages of QUEUE, consumed or not. The queue and its groups stay."""
    with session.patient_client() as client:
        what = queue if partition is None else f"{queue}/{partition}"
        total: int | None = None
        if scope == "scheduled":
            confirm(f"Remove the scheduled messages of {what}?", yes=yes)
        else:
            where = client.queue(queue) if partition is None else client.partition(queue, partition)
            total = where.messages if scope == "all" else None
            kind = "all" if scope == "all" else "the unleased"
            confirm(f"Remove {kind} of {counted(where.messages, 'message')} of {what}?", yes=yes)
        with _removal(client, queue, partition, total):
            removed = client.clear(queue, partition=partition, scope=scope)
    session.output.done(
        f"{counted(removed, 'message')} of {what} removed", queue=queue, partition=partition, removed=removed
    )


@contextmanager
def _removal(client: Client, queue: str, partition: str | None, total: int | None) -> Iterator[None]:
    """Show how many messages are left, if the server knows."""

    def left() -> int | None:
        where = client.queue(queue) if partition is None else client.partition(queue, partition)
        return where.messages

    with ProgressBar("removing", total) as bar, bar.following(left, total):
        yield

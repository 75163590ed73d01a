"""`lockstep pop`: leases messages and prints them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, get_args

import click

from lockstep.cli.arguments import begin
from lockstep.cli.connection import Session, on_session
from lockstep.cli.hints import program, same_target
from lockstep.cli.output import Column, Output, note, payload_text, plain
from lockstep.client import Delivery
from lockstep.core.names import QUEUE_MODE
from lockstep.core.policy import GroupMode

F = TypeVar("F", bound=Callable[..., Any])

_COLUMNS: tuple[Column, ...] = ("queue", "partition", "seq", "attempt", "created_at", "id", ("payload", payload_text))


_OPTIONS = (
    click.option("--group", "-g", default=QUEUE_MODE, help="The consumer group; default the queue's plain consumers."),
    click.option("--partition", "-p", help="Only this partition."),
    click.option("--namespace", help="Instead of a queue: all queues of a namespace."),
    click.option("--task", help="Instead of a queue: all queues of a task."),
    click.option("--batch", "-n", type=click.IntRange(min=1), default=1, show_default=True, help="Most messages."),
    click.option("--partitions", type=click.IntRange(min=1), default=1, show_default=True, help="Most partitions."),
    click.option(
        "--wait", type=click.FloatRange(min=0), default=0.0, metavar="SECONDS", help="Wait this long for messages."
    ),
    click.option(
        "--lease-seconds", type=click.FloatRange(min=0, min_open=True), help="Instead of the queue's lease time."
    ),
    click.option(
        "--begin",
        type=begin,
        metavar="all|new|TIME",
        default="all",
        help="Where a group begins that the queue sees first.",
    ),
    click.option(
        "--mode", type=click.Choice(get_args(GroupMode)), help="How a new group is served; default as the queue says."
    ),
)


def pop_options(command: F) -> F:
    """What to pop, and how; also for the next messages under a lease."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@click.command()
@click.argument("queue", required=False)
@on_session()
@pop_options
@click.option("--auto-ack", is_flag=True, help="They count as done as soon as they leave the store.")
@click.option("--ack", is_flag=True, help="Acknowledge them once they are printed.")
def pop(session: Session, queue: str | None, wait: float, begin: Any, ack: bool, auto_ack: bool, **asked: Any) -> None:
    """Pop messages of QUEUE and print them.

    Without --ack or --auto-ack they stay leased under the lease id that is printed: acknowledge them with
    `lockstep ack`, or they are delivered again when the lease expires.
    """
    check_named(queue, asked)
    if ack and auto_ack:
        raise click.UsageError("--ack and --auto-ack exclude each other.")
    with session.client() as client:
        delivery = client.pop(
            queue, wait=wait > 0, timeout_seconds=wait or None, subscription=begin, auto_ack=auto_ack, **asked
        )
        show(delivery, session.output)
        # Only now: messages that could not be printed are not done.
        if delivery and ack:
            delivery.ack()
        elif delivery and not auto_ack:
            note_lease(session, delivery)


def check_named(queue: str | None, asked: Mapping[str, Any]) -> None:
    if queue is None and asked["namespace"] is None and asked["task"] is None:
        raise click.UsageError("Name a QUEUE, a --namespace or a --task.")


def note_lease(session: Session, delivery: Delivery) -> None:
    """Hints how to continue with the popped messages."""
    ack_it = f"{program()} ack {delivery.lease_id}{same_target(session)}"
    note(f"lease {delivery.lease_id}; acknowledge it with: {ack_it}")


def show(delivery: Delivery, output: Output) -> None:
    messages = [message.record for message in delivery]
    if output.format == "table":
        output.rows(messages, _COLUMNS, empty="nothing to pop")
    else:
        lease = {"lease_id": delivery.lease_id, "lease_expires_at": delivery.expires_at}
        output.rows([plain(message) | lease for message in messages], ())

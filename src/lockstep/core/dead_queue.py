"""Copies of dead messages in a dead queue: their format, and how they are sent back to where they came from."""

from __future__ import annotations

from dataclasses import dataclass

from lockstep.core.messages import REDRIVEN_FROM, Batch, Message, again

PREFIX = "lockstep-dead-from-"
"""Prefix of the headers that say where a copy came from, and why."""


def dead_copy(message: Message, dead_queue: str, *, group: str, attempts: int, error: str | None) -> Batch:
    """A dead message as it is pushed to a dead queue: to the same partition, with headers that say where it came
    from.
    """
    story = {
        "queue": message.queue,
        "partition": message.partition,
        "group": group,
        "seq": str(message.seq),
        "message-id": message.id,
        "attempts": str(attempts),
    }
    if error is not None:
        story["error"] = error
    headers = {**(message.headers or {}), **{PREFIX + name: value for name, value in story.items()}}
    return again(message, dead_queue, message.partition, headers)


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a copy came from."""

    queue: str
    partition: str
    seq: int
    group: str


def origin_of(message: Message) -> Origin | None:
    """Where a message of a dead queue came from; None if it is not a copy of a dead message."""
    headers = message.headers or {}
    try:
        return Origin(
            queue=headers[PREFIX + "queue"],
            partition=headers[PREFIX + "partition"],
            seq=int(headers[PREFIX + "seq"]),
            group=headers[PREFIX + "group"],
        )
    except (KeyError, ValueError):
        return None


def sent_back(message: Message, origin: Origin) -> Batch:
    """A copy as it is pushed back to where it came from: without the headers about its death, but with the id of the
    original message.
    """
    headers = {name: value for name, value in (message.headers or {}).items() if not name.startswith(PREFIX)}
    headers[REDRIVEN_FROM] = (message.headers or {}).get(PREFIX + "message-id", message.id)
    return again(message, origin.queue, origin.partition, headers)

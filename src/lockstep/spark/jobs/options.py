"""Options that several jobs share, and their checks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any

import psycopg

from lockstep.core.ids import parse_uuid
from lockstep.core.names import check_name
from lockstep.errors import InvalidOption
from lockstep.spark.database import Access, rows_of


def source_options(access: Access) -> dict[str, str]:
    """How the data source finds the database of a job."""
    given = {"dsn": access.dsn, "dsnEnv": access.dsn_env, "encryptionKeyEnv": access.encryption_key_env}
    return {name: value for name, value in given.items() if value is not None}


Skipped = Callable[[Sequence[str]], None]
"""Called with the queues that a job over all queues leaves out."""


def readable_queues(connection: psycopg.Connection[Any], access: Access, skipped: Skipped | None) -> list[str]:
    """All queues; without a key, encrypted queues are left out."""
    names = [name for (name,) in rows_of(connection, "queue_names")]
    if access.config().encryption_keys:
        return names
    encrypted = [name for (name,) in rows_of(connection, "encrypted_queue_names")]
    if encrypted and skipped is not None:
        skipped(encrypted)
    return [name for name in names if name not in set(encrypted)]


def check_queues(queues: Iterable[str]) -> None:
    """Raises InvalidOption if the list is empty, and InvalidName for an invalid name."""
    found = list(queues)
    if not found:
        raise InvalidOption("name at least one queue")
    for queue in found:
        check_name(queue, what="queue")


def check_location(location: str, what: str = "the location of the archive") -> None:
    if not location.strip():
        raise InvalidOption(f"{what} is empty")


def check_times(from_at: datetime | None, to_at: datetime | None) -> None:
    for name, at in (("from", from_at), ("to", to_at)):
        if at is not None and at.tzinfo is None:
            raise InvalidOption(f"the time {name!r} has no zone: {at.isoformat()}")
    if from_at is not None and to_at is not None and from_at >= to_at:
        raise InvalidOption(f"the time range ends before it begins: {from_at.isoformat()} to {to_at.isoformat()}")


def check_trace_ids(trace_ids: Sequence[str] | None) -> None:
    for trace_id in trace_ids or ():
        parse_uuid(trace_id, what="trace id")


def check_positive(name: str, value: float | None) -> None:
    if value is not None and not value > 0:
        raise InvalidOption(f"{name} must be more than 0, not {value}")

"""The seam between what is said to PostgreSQL and the driver that says it.

A conversation is a generator that yields steps, receives what they gave and returns its result. It is written once
and driven by asyncpg in the store and by psycopg, sync or async, inside a caller's own transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Call:
    """One query with its parameters, which gives its rows. The placeholders are $1, $2, …"""

    name: str
    sql: str
    args: Sequence[Any]


@dataclass(frozen=True, slots=True)
class Work:
    """Something that takes a while and lets other threads run, such as compressing; it gives its result."""

    run: Callable[[], Any]


Conversation = Generator[Call | Work, Any, T]


def milliseconds(seconds: float | None) -> int | None:
    """What procedures take for a length of time."""
    return None if seconds is None else round(seconds * 1000)

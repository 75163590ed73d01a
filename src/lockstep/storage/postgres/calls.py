"""The seam between what is said to PostgreSQL and the driver that says it.

A conversation is a generator that yields calls, receives their rows and returns its result. It is written once and
driven by asyncpg in the store and by psycopg, sync or async, inside a caller's own transaction.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Call:
    """One query with its parameters. The placeholders are $1, $2, …"""

    name: str
    sql: str
    args: Sequence[Any]


Conversation = Generator[Call, list[Any], T]

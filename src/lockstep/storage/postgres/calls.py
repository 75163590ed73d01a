"""The interface between conversations with PostgreSQL and the drivers that run them.

A conversation is a generator that yields steps, receives their results and returns its own. It is written once and
driven by asyncpg in the store and by psycopg, sync or async, inside a caller's own transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar

import msgspec

from lockstep.core.rules import STOPPED

T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True)


class Call(msgspec.Struct, Generic[R_co], frozen=True):
    """One query with its parameters, and the function that makes a record of each row. The placeholders are $1, $2,
    …"""

    name: str
    sql: str
    args: Sequence[Any]
    record: Callable[[Any], R_co] | None = None

    def rows(self, given: list[Any]) -> list[R_co]:
        """The records of the driver's rows."""
        return given if self.record is None else list(map(self.record, given))


@dataclass(frozen=True, slots=True)
class Work:
    """Work that takes a while and lets other threads run, such as compressing; it returns its result."""

    run: Callable[[], Any]


Conversation = Generator[Call[Any] | Work, Any, T]


def milliseconds(seconds: float | None) -> int | None:
    """A duration as procedures take it."""
    return None if seconds is None else round(seconds * 1000)


def due_at_of(value: datetime | None) -> datetime | None:
    """When a cursor is due: asyncpg returns infinity as the last datetime, without a time zone."""
    return STOPPED if value is not None and value.tzinfo is None else value

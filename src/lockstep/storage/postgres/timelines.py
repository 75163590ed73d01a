"""On which timeline of a database a connection is, and what may be used together.

A replica that takes over may lack what was last committed, and a restored database lacks more. Both give out again the
numbers that went with it: a partition's id, a segment's. So what was learned on one timeline means nothing on another,
and every connection finds out where it is before anybody gets it. A server does not change its timeline while a
connection to it lasts, unless it was a standby; those are turned away.

A *span* is one call of a store: what it remembers and every connection that it is lent are of one timeline.
"""

from __future__ import annotations

import asyncio
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass
from typing import Any

import asyncpg

from lockstep.errors import Unavailable
from lockstep.storage.postgres.cache import Memory
from lockstep.storage.postgres.failures import NotPrimary

# All of it is allowed to every role. The statistics of the archiver begin anew after a crash, which may have lost what
# was committed with synchronous_commit = off, and leaves the postmaster as it is.
_FIND = """
select c.system_identifier::text || '/' || (select d.oid from pg_database d where d.datname = current_database()),
       case when not pg_is_in_recovery() then left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) end,
       pg_postmaster_start_time()::text, (select a.stats_reset::text from pg_stat_archiver a)
from pg_control_system() c
"""
_STANDBY = (
    "the server is a standby, which takes no changes; an address with several hosts finds the primary among them: "
    "postgresql://user@host1,host2/database"
)


@dataclass(frozen=True, slots=True)
class Timeline:
    """A database as it was brought up once: nothing that it has acknowledged since is lost to it."""

    database: str
    """PostgreSQL's system identifier and the database's own id."""
    number: int
    """PostgreSQL's timeline, which rises with every promotion."""
    started: str
    """When the server was started, or went on after a crash: it may have been restored in between."""

    def is_before(self, other: Timeline) -> bool:
        """Whether this is a primary that the other has replaced."""
        return self.database == other.database and self.number < other.number


class Link(asyncpg.Connection):  # type: ignore[misc]
    """A connection to a primary, and its timeline."""

    __slots__ = ("epoch", "pid", "timeline")
    timeline: Timeline
    epoch: int
    """By which the pool that has it counts timelines."""
    pid: int
    """The session's process; a connection that was closed does not know it any more."""


async def find_timeline(connection: asyncpg.Connection[Any]) -> Timeline:
    """Raises NotPrimary."""
    [row] = await connection.fetch(_FIND)
    if row[1] is None:
        raise NotPrimary(_STANDBY)
    return Timeline(row[0], int(row[1], 16), f"{row[2]} {row[3]}")


class TimelineChanged(Exception):
    """The database is on another timeline than the call, which has asked nothing yet: begin it again. Never leaves the
    store."""


@dataclass(slots=True)
class Span:
    """One call of a store."""

    owner: object
    task: asyncio.Task[Any] | None
    memory: Memory
    is_open: bool = True
    has_asked: bool = False

    def check(self, epoch: int) -> None:
        """Use a connection. Raises TimelineChanged; or Unavailable, if it is too late to begin again."""
        if epoch == self.memory.epoch:
            self.has_asked = True
        elif self.has_asked:
            raise Unavailable(
                "another server took over during the call, which may have been applied or not", maybe_applied=True
            )
        else:
            raise TimelineChanged


_span: ContextVar[Span | None] = ContextVar("lockstep_span", default=None)
begin_span = _span.set
end_span = _span.reset


def current_span() -> Span | None:
    span = _span.get()
    return span if span is not None and span.is_open else None


def outside() -> Context:
    """The context for a task that is none of the call's in which it is begun."""
    context = copy_context()
    context.run(_span.set, None)
    return context

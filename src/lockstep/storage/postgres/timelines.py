"""The timelines of a database: which one a connection is on, and what may be used together.

A replica that takes over may lack the last commits, and a restored database lacks more. Both reuse the lost ids, such
as those of partitions and segments. So cached ids of one timeline are invalid on another, and every connection
determines its timeline before it is used. A server does not change its timeline while a connection to it lasts, unless
it was a standby; connections to standbys are refused.

A *span* is one call of a store: its caches and all its connections belong to one timeline.
"""

from __future__ import annotations

import logging
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass
from typing import Any

import asyncpg
import msgspec

from lockstep.errors import Unavailable
from lockstep.logs import REQUEST_ID
from lockstep.storage.postgres import sql
from lockstep.storage.postgres.cache import Memory
from lockstep.storage.postgres.failures import NotPrimary

logger = logging.getLogger("lockstep.storage.pool")

# Every role may query all of this. The archiver's statistics are reset after a crash, which may have lost what was
# committed with synchronous_commit = off, and which does not restart the postmaster.
_FIND = """
select c.system_identifier::text || '/' || (select d.oid from pg_database d where d.datname = current_database()),
       case when not pg_is_in_recovery() then left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) end,
       to_char(pg_postmaster_start_time() at time zone 'utc', 'YYYY-MM-DD HH24:MI:SS.US'),
       (select to_char(a.stats_reset at time zone 'utc', 'YYYY-MM-DD HH24:MI:SS.US') from pg_stat_archiver a)
from pg_control_system() c
"""
_PROVIDE_IDS: sql.Procedure[bool] = sql.procedure("provide_ids")
_CANNOT_PROVIDE = (
    asyncpg.InvalidSchemaNameError,
    asyncpg.UndefinedFunctionError,
    asyncpg.InsufficientPrivilegeError,
    asyncpg.ReadOnlySQLTransactionError,
)
"""The database has no schema of ours yet, or one of an older version; or this role only reads."""
_STANDBY = (
    "the server is a standby, which takes no changes; an address with several hosts finds the primary among them: "
    "postgresql://user@host1,host2/database"
)


@dataclass(frozen=True, slots=True)
class Timeline:
    """One start of a database: it has lost nothing that it has acknowledged since then."""

    database: str
    """PostgreSQL's system identifier and the database's own id."""
    number: int
    """PostgreSQL's timeline, which rises with every promotion."""
    started: str
    """When the server was started, or went on after a crash: it may have been restored in between."""

    def __str__(self) -> str:
        return f"{self.database} {self.number} {self.started}"


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
    [(database, number, started, archived)] = await connection.fetch(_FIND)
    if number is None:
        raise NotPrimary(_STANDBY)
    return Timeline(database, int(number, 16), f"{started} {archived}")


async def provide_ids(connection: Link) -> bool:
    """Ensure that this timeline does not reuse ids of an earlier timeline (sql/procedures/timeline.sql). False if this
    cannot be done here, or not yet."""
    try:
        call = _PROVIDE_IDS(timeline=str(connection.timeline))
        moved = await connection.fetchval(call.sql, *call.args)
    except _CANNOT_PROVIDE as error:
        logger.debug("ids_not_provided", extra={"action": "ids_not_provided", "error": str(error)})
        return False
    if moved:
        logger.info("ids_provided", extra={"action": "ids_provided", "timeline": str(connection.timeline)})
    return True


class TimelineChanged(Exception):
    """The database is on another timeline than the call, which has not queried anything yet: restart the call. Never
    leaves the store."""


class Span(msgspec.Struct, eq=False):
    """One call of a store."""

    owner: Any
    task: Any
    """The asyncio task that it runs in."""
    memory: Memory
    is_open: bool = True
    has_asked: bool = False


_span: ContextVar[Span | None] = ContextVar("lockstep_span", default=None)
begin_span = _span.set
end_span = _span.reset
current_span = _span.get
"""The span that was begun last, which may have ended since: a task that it began may outlive it."""


def check_span(epoch: int) -> None:
    """Use a connection in the span. Raises TimelineChanged; or Unavailable, if it is too late to restart."""
    span = current_span()
    if span is None or not span.is_open:
        return
    if epoch == span.memory.epoch:
        span.has_asked = True
    elif span.has_asked:
        raise Unavailable(
            "another server took over during the call, which may have been applied or not", maybe_applied=True
        )
    else:
        raise TimelineChanged


def outside() -> Context:
    """The context for a task that does not belong to the call that begins it."""
    context = copy_context()
    context.run(_span.set, None)
    context.run(REQUEST_ID.set, None)
    return context

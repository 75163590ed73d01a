"""Which files make up an archive: kept in PostgreSQL, so that a batch is in the archive wholly, and once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

import psycopg

from lockstep.errors import Conflict
from lockstep.spark.database import explained

_LOCK = "select lockstep.archive_lock(%s)"
_UNLOCK = "select lockstep.archive_unlock(%s)"
_BEGIN = "select _id, _committed from lockstep.archive_begin(%s, %s, %s)"
_STAGE = (
    "select lockstep.archive_stage"
    "(%s, %s::text[], %s::text[], %s::date[], %s::bigint[], %s::bigint[], %s::timestamptz[], %s::timestamptz[])"
)
_COMMIT = "select lockstep.archive_commit(%s, %s)"
_LEFT_OVER = "select path from lockstep.archive_left_over(%s)"
_DISCARD = "select lockstep.archive_discard(%s)"
_HAS_OTHERS = (
    "select exists (select 1 from lockstep.archive_batch b "
    "where b.archive = %s and b.committed_at is not null and not starts_with(b.query, %s))"
)
_FILES = "select * from lockstep.archive_files(%s, %s::text[], %s, %s)"


@dataclass(frozen=True, slots=True)
class NewFile:
    """A file that is about to be part of an archive."""

    path: str
    queue: str
    day: date
    messages: int
    bytes: int
    first_at: datetime
    last_at: datetime


@dataclass(frozen=True, slots=True)
class ArchiveFile:
    """A file of an archive."""

    batch_id: int
    path: str
    queue: str
    messages: int
    bytes: int


class Manifest:
    """The manifest of one archive, on a connection without a transaction around its statements."""

    def __init__(self, connection: psycopg.Connection[Any], archive: str) -> None:
        self._connection = connection
        self.archive = archive

    def lock(self) -> None:
        """Be the only one who writes to the archive, until `unlock` or the end of the connection. Raises Conflict."""
        if not self._one(_LOCK, self.archive)[0]:
            raise Conflict(f"another run writes to the archive {self.archive}")

    def unlock(self) -> None:
        self._one(_UNLOCK, self.archive)

    def begin(self, query: str, batch: int) -> tuple[int, bool]:
        """The id of a batch, which is the same however often it is begun; and whether it is committed already."""
        batch_id, committed = self._one(_BEGIN, self.archive, query, batch)
        return batch_id, committed

    def stage(self, batch_id: int, files: Sequence[NewFile]) -> None:
        """Note which files a batch is going to have."""
        columns: Sequence[Sequence[Any]] = (
            [file.path for file in files],
            [file.queue for file in files],
            [file.day for file in files],
            [file.messages for file in files],
            [file.bytes for file in files],
            [file.first_at for file in files],
            [file.last_at for file in files],
        )
        self._one(_STAGE, batch_id, *columns)

    def commit(self, batch_id: int, *, alone: bool = False) -> list[str]:
        """Make the batch part of the archive, or all of it; returns the files that are no longer in it."""
        gone: list[str] = self._one(_COMMIT, batch_id, alone)[0]
        return gone

    def has_others(self, prefix: str) -> bool:
        """Whether a query whose name does not begin with this has written to the archive."""
        return bool(self._one(_HAS_OTHERS, self.archive, prefix)[0])

    def left_over(self) -> list[str]:
        """The files of batches that were never committed, as far as they were written."""
        return [path for (path,) in self._all(_LEFT_OVER, self.archive)]

    def discard(self) -> None:
        """Forget the files of batches that were never committed."""
        self._one(_DISCARD, self.archive)

    def files(
        self,
        *,
        queues: Sequence[str] | None = None,
        from_at: datetime | None = None,
        to_at: datetime | None = None,
    ) -> list[ArchiveFile]:
        """The files that may have messages of these queues and times."""
        given = (self.archive, None if queues is None else list(queues), from_at, to_at)
        return [ArchiveFile(*row) for row in self._all(_FILES, *given)]

    def _one(self, query: str, *arguments: Any) -> Any:
        return self._all(query, *arguments)[0]

    def _all(self, query: str, *arguments: Any) -> list[Any]:
        # Explained here, because Spark calls from a thread of its own and tells of an error only its text.
        with explained():
            return self._connection.execute(query, arguments).fetchall()

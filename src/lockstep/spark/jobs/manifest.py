"""The manifest: which files make up an archive. Kept in PostgreSQL, so that a batch is added completely and once."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime
from typing import Any, NamedTuple, TypeVar

import psycopg

from lockstep.errors import Conflict
from lockstep.spark.database import cursor_of, explained, results_of, rows_of
from lockstep.storage.postgres import sql
from lockstep.storage.postgres.calls import Call

T = TypeVar("T")


class NewFile(NamedTuple):
    """A file that is part of an archive, or about to become so."""

    path: str
    queue: str
    day: date
    messages: int
    bytes: int
    first_at: datetime
    last_at: datetime


class ArchiveFile(NamedTuple):
    """A file of an archive."""

    batch_id: int
    path: str
    queue: str
    messages: int
    bytes: int


_LOCK: sql.Procedure[bool] = sql.procedure("archive_lock")
_UNLOCK: sql.Procedure[None] = sql.procedure("archive_unlock")
_BEGIN: sql.Procedure[tuple[int, bool]] = sql.procedure("archive_begin")
_STAGE: sql.Procedure[None] = sql.procedure("archive_stage")
_COMMIT: sql.Procedure[list[str]] = sql.procedure("archive_commit")
_LEFT_OVER: sql.Procedure[tuple[int, str]] = sql.procedure("archive_left_over")
_DISCARD: sql.Procedure[None] = sql.procedure("archive_discard")
_FILES = sql.procedure("archive_files", ArchiveFile)
_TABLE_FILES = sql.procedure("archive_table_files", NewFile)
_SETTINGS: sql.Procedure[tuple[str, str | None, str | None, str | None]] = sql.procedure("archive_settings")
_KEEP_SETTINGS: sql.Procedure[None] = sql.procedure("archive_keep_settings")
_EXPIRE: sql.Procedure[tuple[int, int, int]] = sql.procedure("archive_expire")
_MERGE: sql.Procedure[None] = sql.procedure("archive_merge")
_REMOVED: sql.Procedure[tuple[str]] = sql.procedure("archive_removed")
_FORGET: sql.Procedure[None] = sql.procedure("archive_forget")


class Manifest:
    """The manifest of one archive, on a connection without a transaction around its statements."""

    def __init__(self, connection: psycopg.Connection[Any], archive: str) -> None:
        self._connection = connection
        self.archive = archive

    def lock(self) -> None:
        """Lock the archive against other writers, until `unlock` or the end of the connection. Raises Conflict."""
        if not self._one(_LOCK(archive=self.archive)):
            raise Conflict(f"another run writes to the archive {self.archive}")

    def unlock(self) -> None:
        self._one(_UNLOCK(archive=self.archive))

    def begin(self, query: str, batch: int) -> tuple[int, bool]:
        """The id of a batch, which stays the same however often it is begun; and whether it is already committed."""
        batch_id, committed = self._one(_BEGIN(archive=self.archive, query=query, batch=batch))
        return batch_id, committed

    def stage(self, batch_id: int, files: Sequence[NewFile]) -> None:
        """Record the files that a batch is going to have."""
        call = _STAGE(
            batch_id=batch_id,
            paths=[file.path for file in files],
            queues=[file.queue for file in files],
            days=[file.day for file in files],
            messages=[file.messages for file in files],
            bytes=[file.bytes for file in files],
            first_at=[file.first_at for file in files],
            last_at=[file.last_at for file in files],
        )
        self._one(call)

    def commit(self, batch_id: int, *, alone: bool = False) -> list[str]:
        """Add the batch to the archive, or make it the whole archive; returns the files that are no longer part of
        it.
        """
        return self._one(_COMMIT(batch_id=batch_id, alone=alone))

    def merge(self, batch_id: int, paths: Sequence[str]) -> None:
        """Add the batch to the archive in place of files with the same messages. Raises Conflict."""
        self._one(_MERGE(batch_id=batch_id, paths=list(paths)))

    def expire(self, before: date) -> tuple[int, int, int]:
        """Remove the files of earlier days from the archive; returns their number, messages and bytes."""
        files, messages, size = self._one(_EXPIRE(archive=self.archive, day=before))
        return files, messages, size

    def removed(self, *, seconds: float) -> list[str]:
        """The files that left the archive at least this long ago and are still on disk."""
        return [path for (path,) in self._all(_REMOVED(archive=self.archive, seconds=seconds))]

    def forget(self, paths: Sequence[str]) -> None:
        """Forget files that are no longer on disk."""
        self._one(_FORGET(archive=self.archive, paths=list(paths)))

    def settings(self) -> tuple[str, str | None, str | None, str | None] | None:
        """Format, payload schema, table name and catalog; None if no run has set them."""
        found = self._all(_SETTINGS(archive=self.archive))
        return found[0] if found else None

    def keep_settings(self, **settings: str | None) -> None:
        """Store what `settings` returns from now on."""
        self._one(_KEEP_SETTINGS(archive=self.archive, **settings))

    def table_files(self) -> list[NewFile]:
        """All files, as the table shows them."""
        return self._all(_TABLE_FILES(archive=self.archive))

    def has_others(self, prefix: str) -> bool:
        """Whether a query whose name does not begin with this prefix has written to the archive."""
        with explained():
            [[has]] = rows_of(self._connection, "archive_other_writers", self.archive, prefix)
        return bool(has)

    def left_over(self) -> list[str]:
        """The files of batches that were never committed, as far as they were written."""
        return [path for _, path in self._all(_LEFT_OVER(archive=self.archive))]

    def discard(self) -> None:
        """Forget the files of batches that were never committed."""
        self._one(_DISCARD(archive=self.archive))

    def files(
        self,
        *,
        queues: Sequence[str] | None = None,
        from_at: datetime | None = None,
        to_at: datetime | None = None,
    ) -> list[ArchiveFile]:
        """The files that may contain messages of these queues and times."""
        wanted = None if queues is None else list(queues)
        return self._all(_FILES(archive=self.archive, queues=wanted, **{"from": from_at}, to=to_at))

    def _one(self, call: Call[T]) -> T:
        [result] = self._all(call)
        return result

    def _all(self, call: Call[T]) -> list[T]:
        # Explained here, because Spark calls this in a separate thread and passes on only the text of an error.
        with explained():
            return results_of(cursor_of(self._connection), call)

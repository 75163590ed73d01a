"""A table shows exactly the files that the manifest names: publishing applies the difference.

Publishing can be repeated, and repairs what a crash has left: a batch in the manifest that the table lacks is added,
and none is added twice. A library commits only if the table is still the version that was loaded.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from typing import Protocol

from lockstep.errors import Conflict
from lockstep.spark.jobs.manifest import Manifest, NewFile

ATTEMPTS_MAX = 5


class TableVersion(Protocol):
    """A table as loaded."""

    def held(self) -> Collection[str]:
        """Its files, by their paths relative to the archive."""
        ...

    def commit(self, added: Sequence[NewFile], removed: Sequence[str]) -> bool:
        """Commit a version with these files added and those removed. False: another writer changed the table in the
        meantime.
        """
        ...


class ArchiveTable(Protocol):
    """The table of one archive."""

    def load(self) -> TableVersion:
        """Load the current version; create the table if it does not exist."""
        ...


class Publisher:
    """Keeps the table of an archive, if it has one, in line with the manifest."""

    def __init__(self, manifest: Manifest, table: ArchiveTable | None) -> None:
        self._manifest = manifest
        self._table = table
        self._lock = threading.Lock()

    def check_unused(self) -> None:
        """Raises Conflict if the table has files that the manifest does not know and publishing would therefore
        remove.
        """
        if self._table is None:
            return
        unknown = set(self._table.load().held()) - {file.path for file in self._manifest.table_files()}
        if unknown:
            raise Conflict(
                f"the table at {self._manifest.archive} has {len(unknown)} files that this database does not know, "
                f"such as {min(unknown)}: archive to another location"
            )

    def publish(self) -> None:
        """Raises Conflict if other writers keep changing the table."""
        if self._table is None:
            return
        # Each queue is archived by a thread of its own.
        with self._lock:
            if not any(self._publish(self._table) for _ in range(ATTEMPTS_MAX)):
                raise Conflict(f"the table at {self._manifest.archive} keeps being changed by other writers")

    def _publish(self, table: ArchiveTable) -> bool:
        # The table is loaded before the manifest. A writer that changes the manifest after we read it publishes later
        # than we do; if it has already published, our commit finds another version and fails.
        version = table.load()
        wanted = {file.path: file for file in self._manifest.table_files()}
        held = set(version.held())
        added = [file for path, file in wanted.items() if path not in held]
        removed = sorted(held - wanted.keys())
        return not (added or removed) or version.commit(added, removed)

"""A table shows the files that the manifest names, and no others: publishing is the difference between the two.

So it may be repeated, and whatever died in between is made up for: a batch that is in the manifest and not in the table
is added, and none is added twice. A library commits a table only as long as it is the one that was loaded.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from typing import Protocol

from lockstep.errors import Conflict
from lockstep.spark.jobs.manifest import Manifest, NewFile

ATTEMPTS_MAX = 5


class TableVersion(Protocol):
    """A table as it was when it was loaded."""

    def held(self) -> Collection[str]:
        """The files that it has, by their paths within the archive."""
        ...

    def commit(self, added: Sequence[NewFile], removed: Sequence[str]) -> bool:
        """Make it another version with these files and without those. False: somebody else changed it meanwhile."""
        ...


class ArchiveTable(Protocol):
    """The table of one archive."""

    def load(self) -> TableVersion:
        """Its current version; it is created if it is not there."""
        ...


class Publisher:
    """Keeps the table of an archive, if it has one, as the manifest says."""

    def __init__(self, manifest: Manifest, table: ArchiveTable | None) -> None:
        self._manifest = manifest
        self._table = table
        self._lock = threading.Lock()

    def check_unused(self) -> None:
        """Raises Conflict if the table has files that the manifest does not know, which publishing would take out."""
        if self._table is None:
            return
        unknown = set(self._table.load().held()) - {file.path for file in self._manifest.table_files()}
        if unknown:
            raise Conflict(
                f"the table at {self._manifest.archive} has {len(unknown)} files that this database does not know, "
                f"such as {min(unknown)}: archive to another location"
            )

    def publish(self) -> None:
        """Raises Conflict if others change the table all the time."""
        if self._table is None:
            return
        # Queues are archived by threads of their own.
        with self._lock:
            if not any(self._publish(self._table) for _ in range(ATTEMPTS_MAX)):
                raise Conflict(f"the table at {self._manifest.archive} is changed by somebody else all the time")

    def _publish(self, table: ArchiveTable) -> bool:
        # The table before the manifest. Who changes the manifest after we read it publishes later than we do; and if
        # that is done already, our commit finds another version and fails.
        version = table.load()
        wanted = {file.path: file for file in self._manifest.table_files()}
        held = set(version.held())
        added = [file for path, file in wanted.items() if path not in held]
        removed = sorted(held - wanted.keys())
        return not (added or removed) or version.commit(added, removed)

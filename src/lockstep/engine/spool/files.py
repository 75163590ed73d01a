"""The files in the directory of a spool, by name.

<id>.<place>.log records, from a place on <id>.<place>.refused a record that the database refuses, until the database is
known to have skipped it <id>.<place>.rejected a record that the database refused and has skipped <id>.<place>.damaged
bytes that are no longer a record
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal
from uuid import UUID

from lockstep.errors import SpoolUnusable

Kind = Literal["log", "refused", "rejected", "damaged"]


class SpoolFiles:
    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def path(self, identity: UUID, place: int, kind: Kind = "log") -> Path:
        return self.directory / f"{identity}.{place:020d}.{kind}"

    def logs(self) -> tuple[UUID | None, list[int]]:
        """The spool that the files belong to, and where each begins. Raises SpoolUnusable if they belong to several."""
        found = self.all("log")
        identities = {identity for identity, _ in found}
        if len(identities) > 1:
            raise SpoolUnusable(f"{self.directory} holds the files of several spools; move all but one away")
        return (identities.pop() if identities else None), [place for _, place in found]

    def all(self, kind: Kind) -> list[tuple[UUID, int]]:
        """The spool and the place of all files of a kind, by place."""
        names = [path.name.split(".") for path in self.directory.glob(f"*.{kind}")]
        return sorted([(UUID(name[0]), int(name[1])) for name in names], key=lambda found: found[1])

    def read(self, path: Path, offset: int, size: int) -> bytes:
        """Up to this many bytes of a file."""
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(size)

    def cut(self, path: Path, size: int) -> None:
        with path.open("r+b") as file:
            file.truncate(size)
            os.fsync(file.fileno())

    def keep(self, path: Path, data: bytes) -> None:
        """Write a separate file, durably."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        self.sync()

    def sync(self) -> None:
        """Make the file names durable as well."""
        descriptor = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

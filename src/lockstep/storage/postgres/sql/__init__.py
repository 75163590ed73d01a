"""The SQL of the PostgreSQL store, read from the files beside this one."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True)
class Migration:
    version: int
    name: str
    sql: str


def _read(folder: str) -> dict[str, str]:
    """The files of a folder by name, in the order of their names."""
    found = [entry for entry in (files(__package__) / folder).iterdir() if entry.name.endswith(".sql")]
    return {entry.name[:-4]: entry.read_text() for entry in sorted(found, key=lambda entry: entry.name)}


@cache
def migrations() -> tuple[Migration, ...]:
    """All migrations, numbered from 1 without a gap."""
    read = [Migration(int(name[:4]), name[5:], sql) for name, sql in _read("migrations").items()]
    assert [m.version for m in read] == list(range(1, len(read) + 1)), "migrations are numbered without a gap"
    return tuple(read)


@cache
def procedures() -> str:
    """The one living version of every function and view."""
    return "\n".join(_read("procedures").values())


def procedures_checksum() -> str:
    return hashlib.sha256(procedures().encode()).hexdigest()


@cache
def query(name: str) -> str:
    """A query from `queries/`."""
    return (files(__package__) / "queries" / f"{name}.sql").read_text()

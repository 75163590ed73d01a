"""The SQL of the PostgreSQL store, read from the files beside this one."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TypeVar

from lockstep.storage.postgres.sql.headers import Header, headers, types
from lockstep.storage.postgres.sql.statements import Procedure, union

__all__ = [
    "Migration",
    "Procedure",
    "grants",
    "hand_over",
    "migrations",
    "procedure",
    "procedures",
    "procedures_checksum",
    "query",
    "union",
]

R = TypeVar("R")


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


@cache
def grants() -> str:
    """The rights of roles on them."""
    return (files(__package__) / "grants.sql").read_text()


def hand_over() -> str:
    """The SQL that gives the role lockstep the objects that it created in a database while it was the superuser."""
    return (files(__package__) / "hand_over.sql").read_text()


def procedures_checksum() -> str:
    return hashlib.sha256((procedures() + grants()).encode()).hexdigest()


@cache
def query(name: str) -> str:
    """A query from `queries/`."""
    return (files(__package__) / "queries" / f"{name}.sql").read_text()


def procedure(
    name: str, row: type[R] | None = None, *, label: str | None = None, as_text: Sequence[str] = ()
) -> Procedure[R]:
    """A procedure of this name, as its header in `procedures/` declares it.

    A call has a record of type `row` (a NamedTuple or a Struct, or a NamedTuple of such records) for each row; without
    one, rows stay the driver's rows. `label` is the name in the statistics of queries. Arguments `as_text` are passed
    in PostgreSQL's text format.
    """
    return Procedure(_headers()[name], row=row, label=label or name, as_text=as_text)


@cache
def _headers() -> dict[str, Header]:
    found: dict[str, Header] = {}
    known_types = types("\n".join([migration.sql for migration in migrations()]))
    for header in headers(procedures(), known_types):
        known = found.setdefault(header.name, header)
        # Of an overloaded function, the one with the most parameters; the others are for use within SQL.
        if len(known.parameters) < len(header.parameters):
            found[header.name] = header
    return found

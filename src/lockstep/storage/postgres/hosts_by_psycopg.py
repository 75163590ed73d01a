"""Finds the primary among the hosts of an address with psycopg, for programs without an event loop: Spark's processes
and the doctor. See hosts.py and primaries.py."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from lockstep.storage.postgres import primaries
from lockstep.storage.postgres.failures import NotPrimary, Replaced

_OF_HOSTS = ("host", "hostaddr", "port")
_STANDBYS = ("standby", "prefer-standby", "read-only")
_FIND = """
select c.system_identifier::text || '/' || (select d.oid from pg_database d where d.datname = current_database()),
       case when not pg_is_in_recovery() then left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) end
from pg_control_system() c
"""

Connection = psycopg.Connection[Any]


@dataclass(frozen=True, slots=True)
class Found:
    """A primary."""

    host: str
    connection: Connection
    database: str
    number: int


def hosts_in(dsn: str) -> list[dict[str, str]]:
    """The connection parameters of each host of the address; empty if there is only one. Raises
    psycopg.ProgrammingError."""
    given = conninfo_to_dict(dsn)
    lists = {name: str(given[name]).split(",") for name in _OF_HOSTS if given.get(name)}
    count = max([len(one) for one in lists.values()], default=1)
    if count == 1 or given.get("target_session_attrs") in _STANDBYS:
        return []
    return [{name: one[i % len(one)] for name, one in lists.items()} for i in range(count)]


def connect_primary(dsn: str, *, search_seconds: float, **settings: Any) -> Connection:
    """A connection to the primary with the highest timeline. Raises psycopg.Error, NotPrimary, Replaced."""
    hosts = hosts_in(dsn)
    if not hosts:
        return _only(dsn, settings)
    known = primaries.known(dsn)
    best: Found | None = None
    failures: list[Exception] = []
    with _search(dsn, hosts, settings, search_seconds) as answers:
        for answer in answers:
            if isinstance(answer, Exception):
                failures.append(answer)
                continue
            if best is not None:
                min(best, answer, key=lambda one: one.number).connection.close()
            best = answer if best is None else max(best, answer, key=lambda one: one.number)
            if best.number >= known.get(best.database, best.number + 1):
                break
    if best is not None:
        return best.connection
    kinds = (Replaced, NotPrimary, Exception)
    raise next(error for kind in kinds for error in failures if isinstance(error, kind))


def primaries_at(dsn: str, *, search_seconds: float, **settings: Any) -> list[Found]:
    """All servers of the address that claim to be the primary; their connections are closed."""
    found: list[Found] = []
    with _search(dsn, hosts_in(dsn), settings, search_seconds, note=False) as answers:
        for answer in answers:
            if isinstance(answer, Found):
                answer.connection.close()
                found.append(answer)
    return sorted(found, key=lambda one: one.number)


def _only(dsn: str, settings: Mapping[str, Any]) -> Connection:
    connection = psycopg.connect(dsn, **settings)
    try:
        database, number = _place(connection)
        if number is not None:
            primaries.note(dsn, database, number)
    except BaseException:
        connection.close()
        raise
    return connection


def _place(connection: Connection) -> tuple[str, int | None]:
    row = connection.execute(_FIND.encode()).fetchone()
    assert row is not None
    # psycopg returns bytes for texts of a database without an encoding.
    database, number = [value.decode() if isinstance(value, bytes) else value for value in row]
    return str(database), None if number is None else int(number, 16)


@contextmanager
def _search(
    dsn: str, hosts: list[dict[str, str]], settings: Mapping[str, Any], search_seconds: float, *, note: bool = True
) -> Iterator[Iterator[Found | Exception]]:
    """The answers of the hosts, as they arrive, until `search_seconds` after the first primary's. Later connections are
    closed, because a connection attempt of psycopg cannot be cancelled."""
    answers: SimpleQueue[Found | Exception] = SimpleQueue()
    over = threading.Event()

    def attempt(host: dict[str, str]) -> None:
        answer: Found | Exception
        try:
            answer = _found(dsn, host, settings, note=note)
        except Exception as error:
            answer = error
        answers.put(answer)
        if over.is_set():
            _close_all(answers)

    for host in hosts:
        threading.Thread(target=attempt, args=(host,), daemon=True, name="lockstep-host").start()
    try:
        yield _within(answers, len(hosts), search_seconds)
    finally:
        over.set()
        _close_all(answers)


def _within(answers: SimpleQueue[Found | Exception], count: int, search_seconds: float) -> Iterator[Found | Exception]:
    deadline: float | None = None
    for _ in range(count):
        try:
            answer = answers.get(timeout=None if deadline is None else max(deadline - time.monotonic(), 0))
        except Empty:
            return
        if deadline is None and isinstance(answer, Found):
            deadline = time.monotonic() + search_seconds
        yield answer


def _close_all(answers: SimpleQueue[Found | Exception]) -> None:
    while True:
        try:
            answer = answers.get_nowait()
        except Empty:
            return
        if isinstance(answer, Found):
            answer.connection.close()


def _found(dsn: str, host: dict[str, str], settings: Mapping[str, Any], *, note: bool) -> Found:
    connection = psycopg.connect(dsn, **{**settings, **host, "target_session_attrs": "any"})
    try:
        database, number = _place(connection)
        if number is None:
            raise NotPrimary("the server is a standby, which takes no changes")
        if note:
            primaries.note(dsn, database, number)
    except BaseException:
        connection.close()
        raise
    return Found(host.get("host") or host.get("hostaddr") or "", connection, database, number)

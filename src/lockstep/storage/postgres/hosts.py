"""Finds the primary among several hosts of an address by trying all of them at once.

More than one host may claim to be the primary: an old primary may have been restarted after a failover.

If hosts were tried in turn, a machine that does not answer would cost every connection the whole timeout before the
next host is tried.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar
from urllib.parse import parse_qs, unquote, urlsplit

from lockstep.storage.postgres.failures import NotPrimary, Replaced

T = TypeVar("T")
Host = tuple[str, int | None]


def hosts_of(dsn: str) -> list[Host]:
    """The hosts of a URL and their ports, if it has several; otherwise none. Raises ValueError."""
    parts = urlsplit(dsn)
    query = parse_qs(parts.query)
    given = parts.netloc.rpartition("@")[2] or query.get("host", [""])[-1]
    if "," not in given:
        return []
    hosts = [_host(one) for one in given.split(",")]
    ports = [int(port) for port in query.get("port", [""])[-1].split(",") if port]
    if len(ports) not in (0, 1, len(hosts)):
        raise ValueError(f"{len(hosts)} hosts and {len(ports)} ports")
    ports = ports * len(hosts) if len(ports) == 1 else ports
    return [(host, port or (ports[i] if ports else None)) for i, (host, port) in enumerate(hosts)]


def database_of(dsn: str) -> str | None:
    """The database that a URL names as a parameter. As in libpq, it overrides the path; asyncpg ignores it after a bare
    slash, and connects to the database with the user's name."""
    return parse_qs(urlsplit(dsn).query).get("dbname", [None])[-1]


def _host(text: str) -> Host:
    text = unquote(text)
    if not text:
        raise ValueError("an empty host")
    if text.startswith("/"):
        return text, None
    if text.startswith("["):
        host, _, port = text[1:].partition("]")
        return host, int(port.removeprefix(":")) if port else None
    host, _, port = text.partition(":")
    return host, int(port) if port else None


async def find_primary(
    hosts: Sequence[Host],
    connect: Callable[[Host], Awaitable[T]],
    *,
    number: Callable[[T], int],
    is_newest: Callable[[T], bool],
    search_seconds: float,
    abandon: Callable[[T], Any],
) -> T:
    """A connection to the primary with the highest timeline (`number`); the others are abandoned. A primary that is
    known to be the newest is used at once. Otherwise the search ends when all hosts have answered, or `search_seconds`
    after the first primary. If there is no primary, raises the most informative error."""
    pending: set[asyncio.Future[T]] = {asyncio.ensure_future(connect(host)) for host in hosts}
    failures: list[BaseException] = []
    found: list[T] = []
    deadline: float | None = None
    clock = asyncio.get_running_loop().time
    chosen: T | None = None
    try:
        while pending and not any(map(is_newest, found)):
            left = None if deadline is None else deadline - clock()
            done, pending = await asyncio.wait(pending, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                break
            found += [one.result() for one in done if not one.cancelled() and one.exception() is None]
            failures += [error for one in done if not one.cancelled() and (error := one.exception()) is not None]
            if found and deadline is None:
                deadline = clock() + search_seconds
        if found:
            chosen = max(found, key=number)
            return chosen
    finally:
        for one in found:
            if one is not chosen:
                abandon(one)
        await abandon_all(pending, abandon)
    raise next(
        (error for kind in (Replaced, NotPrimary) for error in failures if isinstance(error, kind)), failures[-1]
    )


async def abandon_all(attempts: set[asyncio.Future[T]], abandon: Callable[[T], Any]) -> None:
    """Give up attempts to connect; some may have succeeded."""
    for attempt in attempts:
        attempt.cancel()
    if attempts:
        await asyncio.wait(attempts)
    for attempt in attempts:
        if not attempt.cancelled() and attempt.exception() is None:
            abandon(attempt.result())

"""The statistics of a store: connections, caches, and the database."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Literal

import msgspec

QueryHook = Callable[[str, float, BaseException | None], None]
"""Called with the name of every query, its duration in seconds, and its error if it failed."""


class QueryCounts(msgspec.Struct):
    """The queries with one name that a process has run."""

    calls: int = 0
    seconds: float = 0.0
    failures: int = 0
    slow: int = 0
    """Queries that took at least `slow_query_seconds`."""


class ServerSample(msgspec.Struct, frozen=True, kw_only=True):
    """What a server process did since its previous sample, or since it started."""

    server: str
    """The name of the process."""
    seconds: float
    """The length of that time span."""
    requests: int
    client_errors: int
    """Requests answered with a status of 4xx, other than 429."""
    server_errors: int
    """Requests answered with a status of 5xx."""
    queued: int
    """Requests that became operations because the server was busy."""
    rejected: int
    """Requests that load management refused."""
    load: float
    """The highest load that was seen; at 1 it has reached the limit that the settings define."""


class ServerSpan(msgspec.Struct, frozen=True, kw_only=True):
    """The samples of one time span, over all server processes."""

    at: datetime
    """The start of the span."""
    servers: int
    """How many processes took a sample in it."""
    seconds: float
    """The time that the samples cover: the longest such time of any process."""
    requests: int
    client_errors: int
    server_errors: int
    queued: int
    rejected: int
    load: float
    """The maximum over the processes."""

    def rate(self, count: int) -> float:
        """A number as a rate per second."""
        return count / self.seconds if self.seconds > 0 else 0.0


class StoreCounts(msgspec.Struct, frozen=True, kw_only=True):
    """What a store holds in this process; 0 for anything that it does not have."""

    connections_open: int = 0
    connections_idle: int = 0
    connections_max: int = 0
    connection_waiters: int = 0
    """Calls waiting for a connection."""
    cache_segments: int = 0
    cache_bytes: int = 0
    cache_bytes_max: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
    queries: Mapping[str, QueryCounts] = {}
    """By query name."""


class TableStats(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    bytes: int
    """Includes indexes and TOAST data."""
    rows_estimate: int
    dead_rows_estimate: int


class HorizonHolder(msgspec.Struct, frozen=True, kw_only=True):
    """Something that keeps PostgreSQL from removing dead rows or old WAL."""

    kind: Literal["transaction", "prepared_transaction", "replication_slot"]
    owner: str
    """For a transaction: its role, application, process and address; otherwise, its name."""
    state: str | None
    age_seconds: float | None
    kept_bytes: int | None
    """WAL kept by a replication slot."""


class DatabaseActivity(msgspec.Struct, frozen=True, kw_only=True):
    """Current activity of the store's database; empty without one."""

    wal_bytes: int | None = None
    """The WAL position: all bytes ever written to it. None on a standby."""
    horizon: list[HorizonHolder] = []
    """Oldest first."""


class DatabaseStats(msgspec.Struct, frozen=True, kw_only=True):
    """The store's database; empty without one."""

    version: str | None = None
    bytes: int = 0
    connections: int = 0
    """Connections to this database from any client."""
    connections_max: int = 0
    cache_hit_rate: float | None = None
    """Share of block reads served without disk access; None before the first read."""
    commits: int = 0
    rollbacks: int = 0
    deadlocks: int = 0
    tables: list[TableStats] = []
    """The tables of the schema, largest first."""

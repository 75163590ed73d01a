"""The statistics of a store: its connections and caches, and the database beneath."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import msgspec

QueryHook = Callable[[str, float, BaseException | None], None]
"""Sees the name of every query, how many seconds it took, and the error if it failed."""


class QueryCounts(msgspec.Struct):
    """What a process has asked of the database with the queries of one name."""

    calls: int = 0
    seconds: float = 0.0
    failures: int = 0
    slow: int = 0
    """Those that took at least `slow_query_seconds`."""


class StoreCounts(msgspec.Struct, frozen=True, kw_only=True):
    """What a store holds in this process; all 0 where it has no such thing."""

    connections_open: int = 0
    connections_idle: int = 0
    connections_max: int = 0
    connection_waiters: int = 0
    """Calls that wait for a connection."""
    cache_segments: int = 0
    cache_bytes: int = 0
    cache_bytes_max: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
    queries: Mapping[str, QueryCounts] = {}
    """By the name of the query."""


class TableStats(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    bytes: int
    """With its indexes and all that it keeps elsewhere."""
    rows_estimate: int
    dead_rows_estimate: int


class HorizonHolder(msgspec.Struct, frozen=True, kw_only=True):
    """Something that keeps PostgreSQL from removing dead rows, or its log."""

    kind: Literal["transaction", "prepared_transaction", "replication_slot"]
    owner: str
    """The role, application, process and address of a transaction; the name of the others."""
    state: str | None
    age_seconds: float | None
    kept_bytes: int | None
    """Of the log, by a slot."""


class DatabaseActivity(msgspec.Struct, frozen=True, kw_only=True):
    """What goes on in the database beneath a store; empty where there is none."""

    wal_bytes: int | None = None
    """The position in the log: what was ever written to it. None on a standby."""
    horizon: list[HorizonHolder] = []
    """The oldest first."""


class DatabaseStats(msgspec.Struct, frozen=True, kw_only=True):
    """The database beneath a store; empty where there is none."""

    version: str | None = None
    bytes: int = 0
    connections: int = 0
    """To this database, of whomever."""
    connections_max: int = 0
    cache_hit_rate: float | None = None
    """The share of block reads that needed no disk; None before the first."""
    commits: int = 0
    rollbacks: int = 0
    deadlocks: int = 0
    tables: list[TableStats] = []
    """Those of the schema, the largest first."""

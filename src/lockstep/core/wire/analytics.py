"""Rates, lag and removals over time on the wire."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

from msgspec import Struct

from lockstep.core.buckets import SampleSpan
from lockstep.core.maintenance import DutyInfo, Removal, RemovalKind
from lockstep.core.records import Utilisation
from lockstep.core.statistics import DatabaseActivity, DatabaseStats, ServerSpan
from lockstep.core.wire.times import timestamp, timestamp_or_none

Interval = Literal["minute", "hour", "day"]
INTERVAL_SECONDS: Mapping[str, int] = {"minute": 60, "hour": 3600, "day": 86_400}


class TimeRange(Struct, rename={"from_": "from"}):
    from_: str
    to: str


class Point(Struct, rename="camel", kw_only=True):
    """What happened in one time span, and the state at its end."""

    timestamp: str
    """The start of the span."""
    ingested: int
    processed: int
    """Summed over all groups."""
    dead_lettered: int
    ingested_per_second: float
    processed_per_second: float
    pending: int
    lag_seconds: float


class AnalyticsAnswer(Struct, rename="camel"):
    interval: Interval
    time_range: TimeRange
    data_points: list[Point]


class RequestPoint(Struct, rename="camel", kw_only=True):
    """What the servers did in one time span."""

    timestamp: str
    """The start of the span."""
    servers: int
    """How many processes took a sample in it."""
    requests: int
    client_errors: int
    """Answers with a status of 4xx, other than 429."""
    server_errors: int
    """Answers with a status of 5xx."""
    queued: int
    """Requests that became operations because a server was busy."""
    rejected: int
    """Requests that load management refused."""
    requests_per_second: float
    load: float
    """The highest load of any process; at 1 it has reached the limit that the settings define."""


class RequestsAnswer(Struct, rename="camel"):
    interval: Interval
    time_range: TimeRange
    data_points: list[RequestPoint]


class QueuePoints(Struct):
    queue: str
    points: list[Point]


class QueueOpsAnswer(Struct, rename="camel"):
    interval: Interval
    time_range: TimeRange
    queues: list[QueuePoints]


class LagPoint(Struct, rename="camel"):
    timestamp: str
    pending: int
    lag_seconds: float


class QueueLagPoints(Struct):
    queue: str
    points: list[LagPoint]


class QueueLagAnswer(Struct, rename="camel"):
    interval: Interval
    time_range: TimeRange
    queues: list[QueueLagPoints]


class RemovalRow(Struct):
    timestamp: str
    """The minute."""
    queue: str
    kind: RemovalKind
    messages: int
    partitions: int


class DutyRow(Struct, rename="camel", kw_only=True):
    """A maintenance duty, which one server performs at a time."""

    name: str
    interval_seconds: float
    next_run_at: str
    last_started_at: str
    last_finished_at: str | None
    last_error: str | None
    last_effect: dict[str, Any] | None
    runs: int
    failures: int


class RetentionAnswer(Struct, rename="camel"):
    time_range: TimeRange
    totals: dict[str, int]
    """Messages by kind."""
    removals: list[RemovalRow]
    duties: list[DutyRow]


class CpuUse(Struct, rename="camel"):
    user_seconds: float
    system_seconds: float


class MemoryUse(Struct, rename="camel"):
    rss_bytes_max: int


class PoolUse(Struct):
    """Connections to the database."""

    open: int
    idle: int
    max: int
    waiters: int


class CacheUse(Struct, rename="camel"):
    segments: int
    bytes: int
    bytes_max: int
    hits: int
    misses: int


class SystemMetricsAnswer(Struct, rename="camel", kw_only=True):
    """The process that answered; there may be others."""

    worker_id: str
    timestamp: str
    uptime_seconds: float
    cpu: CpuUse
    memory: MemoryUse
    pool: PoolUse
    cache: CacheUse


class WorkerRow(Struct, rename="camel", kw_only=True):
    worker_id: str
    started_at: str
    uptime_seconds: float
    requests: int
    requests_in_flight: int
    messages_pushed: int
    messages_duplicate: int
    messages_popped: int
    messages_acked: int
    polls_waiting: int
    client_errors: int
    server_errors: int


class WorkerMetricsAnswer(Struct):
    """The process that answered, and the other processes behind the same port; other machines report their own."""

    workers: list[WorkerRow]


class TableRow(Struct, rename="camel"):
    name: str
    bytes: int
    rows_estimate: int
    dead_rows_estimate: int


class HorizonRow(Struct, rename="camel"):
    """Something that keeps PostgreSQL from removing dead rows or old WAL."""

    kind: Literal["transaction", "prepared_transaction", "replication_slot"]
    owner: str
    state: str | None
    age_seconds: float | None
    kept_bytes: int | None
    """WAL kept by a replication slot."""


class DatabaseActivityAnswer(Struct, rename="camel"):
    wal_bytes: int | None
    """All bytes ever written to the WAL; null on a standby."""
    horizon: list[HorizonRow]
    """Oldest first."""


class DatabaseStatsAnswer(Struct, rename="camel", kw_only=True):
    version: str | None
    """Null if the store has no database."""
    database_bytes: int
    connections: int
    connections_max: int
    cache_hit_rate: float | None
    commits: int
    rollbacks: int
    deadlocks: int
    tables: list[TableRow]


class UtilisationRow(Struct, rename="camel", kw_only=True):
    """One group of one queue. Null is unknown: the queue is large and was not counted yet."""

    queue: str
    consumer_group: str
    partitions: int | None
    partitions_leased: int | None
    partitions_ready: int | None
    """Due and not leased: work that no consumer has taken."""
    partitions_waiting: int | None
    """Due later: delayed, backing off, or held by a window."""
    partitions_stopped: int | None


class UtilisationAnswer(Struct):
    utilisation: list[UtilisationRow]


def utilisation_answer(found: Sequence[Utilisation]) -> UtilisationAnswer:
    return UtilisationAnswer(
        [
            UtilisationRow(
                queue=use.queue,
                consumer_group=use.group,
                partitions=use.partitions,
                partitions_leased=use.partitions_leased,
                partitions_ready=use.partitions_ready,
                partitions_waiting=use.partitions_waiting,
                partitions_stopped=use.partitions_stopped,
            )
            for use in found
        ]
    )


def time_range(from_at: datetime, to_at: datetime) -> TimeRange:
    return TimeRange(timestamp(from_at), timestamp(to_at))


def request_points(spans: Sequence[ServerSpan]) -> list[RequestPoint]:
    return [
        RequestPoint(
            timestamp=timestamp(span.at),
            servers=span.servers,
            requests=span.requests,
            client_errors=span.client_errors,
            server_errors=span.server_errors,
            queued=span.queued,
            rejected=span.rejected,
            requests_per_second=span.rate(span.requests),
            load=span.load,
        )
        for span in spans
    ]


def points(spans: Sequence[SampleSpan]) -> list[Point]:
    return [_point(span) for span in spans]


def _point(span: SampleSpan) -> Point:
    return Point(
        timestamp=timestamp(span.at),
        ingested=span.pushed,
        processed=span.completed,
        dead_lettered=span.dead,
        ingested_per_second=span.rate(span.pushed),
        processed_per_second=span.rate(span.completed),
        pending=span.pending,
        lag_seconds=span.lag_seconds,
    )


def lag_points(spans: Sequence[SampleSpan]) -> list[LagPoint]:
    return [LagPoint(timestamp(span.at), span.pending, span.lag_seconds) for span in spans]


def retention_answer(span: TimeRange, removals: Sequence[Removal], duties: Sequence[DutyInfo]) -> RetentionAnswer:
    totals: dict[str, int] = {}
    for removal in removals:
        totals[removal.kind] = totals.get(removal.kind, 0) + removal.messages
    return RetentionAnswer(
        span, totals, [_removal_row(removal) for removal in removals], [_duty_row(duty) for duty in duties]
    )


def _removal_row(removal: Removal) -> RemovalRow:
    return RemovalRow(timestamp(removal.at), removal.queue, removal.kind, removal.messages, removal.partitions)


def _duty_row(duty: DutyInfo) -> DutyRow:
    return DutyRow(
        name=duty.name,
        interval_seconds=duty.interval_seconds,
        next_run_at=timestamp(duty.next_run_at),
        last_started_at=timestamp(duty.last_started_at),
        last_finished_at=timestamp_or_none(duty.last_finished_at),
        last_error=duty.last_error,
        last_effect=duty.last_effect,
        runs=duty.runs,
        failures=duty.failures,
    )


def database_activity_answer(activity: DatabaseActivity) -> DatabaseActivityAnswer:
    return DatabaseActivityAnswer(
        activity.wal_bytes,
        [HorizonRow(one.kind, one.owner, one.state, one.age_seconds, one.kept_bytes) for one in activity.horizon],
    )


def database_stats_answer(stats: DatabaseStats) -> DatabaseStatsAnswer:
    return DatabaseStatsAnswer(
        version=stats.version,
        database_bytes=stats.bytes,
        connections=stats.connections,
        connections_max=stats.connections_max,
        cache_hit_rate=stats.cache_hit_rate,
        commits=stats.commits,
        rollbacks=stats.rollbacks,
        deadlocks=stats.deadlocks,
        tables=[
            TableRow(table.name, table.bytes, table.rows_estimate, table.dead_rows_estimate) for table in stats.tables
        ],
    )

"""The counters of one server process on the wire."""

from __future__ import annotations

from msgspec import Struct

from lockstep.core.wire.analytics import CacheUse, CpuUse, MemoryUse, PoolUse
from lockstep.core.wire.status import BufferRow


class RequestRow(Struct):
    method: str
    route: str
    status: int
    count: int


class RouteSeconds(Struct):
    method: str
    route: str
    seconds: float
    """Time spent answering, including waiting polls."""


class DurationRow(Struct, rename="camel"):
    """Duration of the requests of one verb, and what they carried."""

    verb: str
    seconds: float
    """Total of all requests."""
    buckets: dict[str, int]
    """Number of requests that took at most each number of seconds; `+Inf` counts all."""
    bytes_in: int
    """Bytes of request bodies."""
    bytes_out: int
    """Bytes of answer bodies."""


class RequestSums(Struct, rename="camel"):
    total: int
    in_flight: int
    by_route: list[RequestRow]
    seconds: list[RouteSeconds]
    durations: list[DurationRow]


class MessageSums(Struct):
    pushed: int
    duplicate: int
    popped: int
    acked: int
    redelivered: int
    """Messages popped for at least the second time."""


class Polls(Struct, rename="camel"):
    waiting: int
    woken: int
    abandoned: int
    precheck_hits: int
    precheck_misses: int


class Buffer(Struct, rename="camel"):
    """Pushes that wait on disk for the database, of all processes on the machine; zero if buffering is off."""

    messages: int = 0
    bytes: int = 0
    bytes_max: int = 0
    messages_buffered: int = 0
    messages_drained: int = 0
    messages_rejected: int = 0
    bytes_damaged: int = 0
    bytes_lost: int = 0
    breaker_open: bool = False
    """Whether this process considers the database unavailable."""


class LoadFigures(Struct):
    """How busy the process is with one kind of request."""

    kind: str
    answer: str
    load: float
    depth: int
    """Waiting operations of this kind, over all servers, as far as this process knows."""
    queued: int
    rejected: int
    changes: int


class OperationsRow(Struct):
    """Operations that this process has applied."""

    applied: int
    failed: int


class QueryRow(Struct):
    """Queries of one name that this process has run."""

    query: str
    calls: int
    seconds: float
    failures: int
    slow: int
    """Queries that took at least `slow_query_seconds`."""


class MetricsAnswer(Struct, rename="camel", kw_only=True):
    """The process that answered; there may be others."""

    worker_id: str
    version: str
    uptime_seconds: float
    requests: RequestSums
    messages: MessageSums
    polls: Polls
    batching: list[BufferRow]
    pool: PoolUse
    cache: CacheUse
    buffer: Buffer
    load: list[LoadFigures]
    operations: OperationsRow
    queries: list[QueryRow]
    cpu: CpuUse
    memory: MemoryUse

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
    """Spent answering, waiting polls included."""


class Requests(Struct, rename="camel"):
    total: int
    in_flight: int
    by_route: list[RequestRow]
    seconds: list[RouteSeconds]


class Messages(Struct):
    pushed: int
    duplicate: int
    popped: int
    acked: int


class Polls(Struct, rename="camel"):
    waiting: int
    woken: int
    abandoned: int
    precheck_hits: int
    precheck_misses: int


class MetricsAnswer(Struct, rename="camel", kw_only=True):
    """The process that answered; there may be others."""

    worker_id: str
    version: str
    uptime_seconds: float
    requests: Requests
    messages: Messages
    polls: Polls
    batching: list[BufferRow]
    pool: PoolUse
    cache: CacheUse
    cpu: CpuUse
    memory: MemoryUse

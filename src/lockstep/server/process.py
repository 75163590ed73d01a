"""The figures of a server process."""

from __future__ import annotations

import resource
import sys
from datetime import UTC, datetime

from lockstep.core.statistics import StoreCounts
from lockstep.core.wire import analytics as wire
from lockstep.core.wire.status import BufferRow
from lockstep.core.wire.times import seconds_since, timestamp
from lockstep.server.node import Node


def worker_row(node: Node) -> wire.WorkerRow:
    counters = node.counters
    return wire.WorkerRow(
        worker_id=node.name,
        started_at=timestamp(node.started_at),
        uptime_seconds=uptime_seconds(node),
        requests=sum(counters.requests.values()),
        requests_in_flight=counters.in_flight,
        messages_pushed=counters.messages_pushed,
        messages_duplicate=counters.messages_duplicate,
        messages_popped=counters.messages_popped,
        messages_acked=counters.messages_acked,
        polls_waiting=node.engine.counts.waiting.polls,
        client_errors=counters.answered(400, 500),
        server_errors=counters.answered(500, 600),
    )


def uptime_seconds(node: Node) -> float:
    return seconds_since(node.started_at, datetime.now(UTC))


def system_metrics(node: Node) -> wire.SystemMetricsAnswer:
    use, store = resource.getrusage(resource.RUSAGE_SELF), node.engine.counts.store
    return wire.SystemMetricsAnswer(
        worker_id=node.name,
        timestamp=timestamp(datetime.now(UTC)),
        uptime_seconds=uptime_seconds(node),
        cpu=wire.CpuUse(use.ru_utime, use.ru_stime),
        memory=wire.MemoryUse(rss_bytes_max(use.ru_maxrss)),
        pool=pool_use(store),
        cache=cache_use(store),
    )


def rss_bytes_max(reported: int) -> int:
    """macOS reports bytes, other systems KiB."""
    return reported if sys.platform == "darwin" else reported * 1024


def pool_use(store: StoreCounts) -> wire.PoolUse:
    return wire.PoolUse(store.connections_open, store.connections_idle, store.connections_max, store.connection_waiters)


def cache_use(store: StoreCounts) -> wire.CacheUse:
    return wire.CacheUse(
        store.cache_segments, store.cache_bytes, store.cache_bytes_max, store.cache_hits, store.cache_misses
    )


def buffer_rows(node: Node) -> list[BufferRow]:
    return [
        BufferRow(
            verb=verb,
            requests=counts.requests,
            calls=counts.calls,
            items=counts.items,
            round_trips_saved=counts.round_trips_saved,
            requests_max=counts.requests_max,
            retried_alone=counts.retried_alone,
        )
        for verb, counts in node.engine.counts.calls.items()
    ]

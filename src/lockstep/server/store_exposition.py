"""The metrics of the store, in Prometheus' text format: queues, groups, duties, the database, Spark.

They belong to the database, so every process reports the same. Each part is fetched separately, within a time limit, so
that an unavailable or slow database costs a scrape only that part.

The number of series is bounded: in each part, the first `metrics_items_max` items in a stable order have series of
their own. All others are combined into one item whose labels are `other`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from lockstep.core.schedules import ScheduleFilter
from lockstep.core.statistics import DatabaseActivity, DatabaseStats
from lockstep.errors import LockstepError
from lockstep.server.counters import OTHER
from lockstep.server.listing import every_queue
from lockstep.server.node import Node

Join = Callable[[Iterable[float]], float]
QUEUE, GROUP = "messaging_destination_name", "messaging_consumer_group_name"
"""Labels with the names of OpenTelemetry's attributes."""


@dataclass(frozen=True)
class Figure:
    """One metric for each item of a part: a counter if its name ends in `_total`, otherwise a gauge."""

    name: str
    text: str
    value: Callable[[Any], float | None]
    """None while it is unknown; then there is no sample."""
    join: Join = sum
    """How to combine the figures of items without series of their own."""


@dataclass(frozen=True)
class StorePart:
    labels: tuple[str, ...]
    fetch: Callable[[Node], Awaitable[Sequence[Any]]]
    key: Callable[[Any], tuple[str, ...]]
    """The values of the labels."""
    figures: tuple[Figure, ...]

    def families(self, items: Sequence[Any], items_max: int) -> Iterator[Metric]:
        kept, rest = self._divided(items, items_max)
        for figure in self.figures:
            kind = CounterMetricFamily if figure.name.endswith("_total") else GaugeMetricFamily
            family = kind(f"lockstep_{figure.name}", figure.text, labels=self.labels)
            for labels, item in kept:
                value = figure.value(item)
                if value is not None:
                    family.add_metric(labels, value)
            known = [value for item in rest if (value := figure.value(item)) is not None]
            if known:
                family.add_metric([OTHER] * len(self.labels), figure.join(known))
            yield family

    def _divided(self, items: Sequence[Any], items_max: int) -> tuple[list[tuple[tuple[str, ...], Any]], list[Any]]:
        """The items with series of their own, by their labels; and the others, with items that have equal labels."""
        kept, rest = [], list(items[items_max:])
        for item in items[:items_max]:
            labels = self.key(item)
            if labels and set(labels) == {OTHER}:
                rest.append(item)
            else:
                kept.append((labels, item))
        return kept, rest


@dataclass(frozen=True)
class StoreMetrics(Collector):
    """The parts that could be fetched."""

    parts: Mapping[str, Sequence[Any] | None]
    items_max: int

    def collect(self) -> Iterator[Metric]:
        for name, items in self.parts.items():
            yield from PARTS[name].families(items or (), self.items_max)
        fetched = GaugeMetricFamily(*FETCHED, labels=["part"])
        for name, items in self.parts.items():
            fetched.add_metric([name], items is not None)
        yield fetched


async def store_exposition(node: Node) -> bytes:
    """What the caller may see. A part that does not answer in time has no samples."""
    fetched = await asyncio.gather(*[_fetched(part, node) for part in PARTS.values()])
    return generate_latest(StoreMetrics(dict(zip(PARTS, fetched, strict=True)), node.config.metrics_items_max))


async def _fetched(part: StorePart, node: Node) -> Sequence[Any] | None:
    try:
        async with asyncio.timeout(node.config.metrics_timeout_seconds):
            return await part.fetch(node)
    except (LockstepError, TimeoutError):
        return None


# --- What is fetched ----------------------------------------------------------------------------------------


async def _queues(node: Node) -> Sequence[Any]:
    return sorted(await every_queue(node), key=lambda queue: queue.id)


async def _groups(node: Node) -> Sequence[Any]:
    return sorted(await node.engine.groups(), key=lambda group: (group.created_at, group.queue, group.name))


async def _waiting(node: Node) -> Sequence[Any]:
    return (await node.engine.operation_stats()).pending


async def _failed(node: Node) -> Sequence[Any]:
    return [await node.engine.operation_stats()]


async def _schedule(node: Node) -> Sequence[Any]:
    return (await node.engine.schedules(ScheduleFilter(), limit=1)).items


async def _modes(node: Node) -> Sequence[Any]:
    mode = await node.engine.maintenance_mode()
    return [("push", mode.push), ("pop", mode.pop)]


async def _duties(node: Node) -> Sequence[Any]:
    return await node.engine.duties()


async def _database(node: Node) -> Sequence[Any]:
    stats = await node.engine.database_stats()
    return [] if stats.version is None else [stats]


async def _tables(node: Node) -> Sequence[Any]:
    return sorted((await node.engine.database_stats()).tables, key=lambda table: table.name)


async def _activity(node: Node) -> Sequence[Any]:
    activity = await node.engine.database_activity()
    return [] if activity.wal_bytes is None and not activity.horizon else [activity]


async def _steps(node: Node) -> Sequence[Any]:
    return await node.engine.pipeline_steps()


async def _streams(node: Node) -> Sequence[Any]:
    return sorted(await node.engine.spark_streams(), key=lambda stream: (stream.created_at, stream.id))


# --- What is said of it -------------------------------------------------------------------------------------


def _unix(at: datetime | None) -> float | None:
    return None if at is None else at.timestamp()


def _oldest(kind: str) -> Callable[[DatabaseActivity], float | None]:
    """0 if there is none: the age of what holds back vacuum."""
    return lambda activity: max([one.age_seconds or 0.0 for one in activity.horizon if one.kind == kind], default=0.0)


def _waiting_messages(stats: DatabaseStats) -> float | None:
    return next((float(table.rows_estimate) for table in stats.tables if table.name == "scheduled"), None)


PARTS: Mapping[str, StorePart] = {
    "queues": StorePart(
        (QUEUE,),
        _queues,
        lambda queue: (queue.name,),
        (
            Figure(
                "queue_depth_messages",
                "Messages that the group which is furthest behind has not completed; all stored ones without a group.",
                lambda queue: queue.pending,
            ),
            Figure("queue_stored_messages", "Stored messages.", lambda queue: queue.messages),
            Figure(
                "queue_in_flight_messages",
                "Messages under a live lease, over all groups.",
                lambda queue: queue.processing,
            ),
            Figure("queue_dead_letters", "Dead letters that are kept.", lambda queue: queue.dead_letters),
            Figure("queue_partitions", "Partitions.", lambda queue: queue.partitions),
            Figure(
                "queue_oldest_unread_timestamp_seconds",
                "When the oldest message of that depth was created.",
                lambda queue: _unix(queue.oldest_at),
                min,
            ),
        ),
    ),
    "groups": StorePart(
        (QUEUE, GROUP),
        _groups,
        lambda group: (group.queue, group.name),
        (
            Figure("group_lag_messages", "Messages that a group has not completed.", lambda group: group.lag),
            Figure("group_unread_messages", "Those of them that are not in flight.", lambda group: group.unread),
            Figure("group_in_flight_messages", "Those of them under a live lease.", lambda group: group.in_flight),
            Figure("group_leases", "Live leases.", lambda group: group.leases),
            Figure(
                "group_oldest_unread_timestamp_seconds",
                "When the oldest message of the lag was created.",
                lambda group: _unix(group.oldest_at),
                min,
            ),
        ),
    ),
    "operation_kinds": StorePart(
        ("kind",),
        _waiting,
        lambda depth: (depth.kind,),
        (
            Figure("operations_waiting", "Queued operations that wait to be applied.", lambda depth: depth.operations),
            Figure("operations_waiting_messages", "Messages in them.", lambda depth: depth.messages),
            Figure(
                "operations_oldest_timestamp_seconds",
                "When the oldest of them was accepted.",
                lambda depth: _unix(depth.oldest_at),
                min,
            ),
        ),
    ),
    "operations": StorePart(
        (),
        _failed,
        lambda _: (),
        (Figure("operations_failed", "Failed operations that are kept.", lambda stats: stats.failed),),
    ),
    "schedules": StorePart(
        (),
        _schedule,
        lambda _: (),
        (
            Figure(
                "scheduled_next_timestamp_seconds",
                "When the next scheduled message is due.",
                lambda scheduled: _unix(scheduled.due_at),
            ),
        ),
    ),
    "maintenance": StorePart(
        ("kind",),
        _modes,
        lambda mode: (mode[0],),
        (Figure("maintenance_mode", "1 while the maintenance mode is on.", lambda mode: mode[1]),),
    ),
    "duties": StorePart(
        ("duty",),
        _duties,
        lambda duty: (duty.name,),
        (
            Figure("duty_interval_seconds", "How often a duty runs.", lambda duty: duty.interval_seconds, max),
            Figure(
                "duty_finished_timestamp_seconds",
                "When a duty last finished.",
                lambda duty: _unix(duty.last_finished_at),
                min,
            ),
            Figure("duty_failed", "1 if the last run of a duty failed.", lambda duty: duty.last_error is not None),
            Figure("duty_runs_total", "Runs of a duty.", lambda duty: duty.runs),
            Figure("duty_failures_total", "Runs of a duty that failed.", lambda duty: duty.failures),
        ),
    ),
    "database": StorePart(
        (),
        _database,
        lambda _: (),
        (
            Figure("database_bytes", "Size of the database.", lambda stats: stats.bytes),
            Figure(
                "database_connections", "Connections to the database, of everybody.", lambda stats: stats.connections
            ),
            Figure(
                "database_connections_max",
                "Maximum number of connections of the PostgreSQL server.",
                lambda stats: stats.connections_max,
            ),
            Figure(
                "database_cache_hit_ratio",
                "Share of block reads that needed no disk.",
                lambda stats: stats.cache_hit_rate,
            ),
            Figure("database_commits_total", "Committed transactions.", lambda stats: stats.commits),
            Figure("database_rollbacks_total", "Transactions that were rolled back.", lambda stats: stats.rollbacks),
            Figure("database_deadlocks_total", "Deadlocks.", lambda stats: stats.deadlocks),
            Figure(
                "scheduled_messages",
                "Scheduled messages that wait for their time, as PostgreSQL estimates the rows of the table.",
                _waiting_messages,
            ),
        ),
    ),
    "tables": StorePart(
        ("table",),
        _tables,
        lambda table: (table.name,),
        (
            Figure("table_bytes", "Size of a table with its indexes.", lambda table: table.bytes),
            Figure("table_rows", "Rows, as PostgreSQL estimates them.", lambda table: table.rows_estimate),
            Figure("table_dead_rows", "Dead rows, likewise.", lambda table: table.dead_rows_estimate),
        ),
    ),
    "activity": StorePart(
        (),
        _activity,
        lambda _: (),
        (
            Figure("database_wal_bytes_total", "Bytes ever written to the log.", lambda activity: activity.wal_bytes),
            Figure(
                "database_oldest_transaction_seconds",
                "Age of the oldest transaction, which keeps dead rows from being removed; 0 without one.",
                _oldest("transaction"),
            ),
            Figure(
                "database_oldest_prepared_transaction_seconds",
                "The same for prepared transactions.",
                _oldest("prepared_transaction"),
            ),
            Figure(
                "database_slot_kept_bytes",
                "Most bytes of the log that a replication slot keeps.",
                lambda activity: max([one.kept_bytes or 0 for one in activity.horizon], default=0),
            ),
        ),
    ),
    "steps": StorePart(
        ("pipeline", "step"),
        _steps,
        lambda step: (step.pipeline, step.step),
        (
            Figure(
                "pipeline_step_running",
                "Whether a step of a pipeline is running.",
                lambda step: step.state == "running",
            ),
            Figure(
                "pipeline_step_failed",
                "Whether a step of a pipeline has failed, or is gone.",
                lambda step: step.state in ("failed", "gone"),
            ),
            Figure("pipeline_step_pushed_total", "Messages that a step has pushed.", lambda step: step.pushed),
            Figure(
                "pipeline_step_duplicates_total",
                "Rows that a step has left out as duplicates.",
                lambda step: step.duplicates,
            ),
            Figure("pipeline_step_rejected_total", "Messages that a step has rejected.", lambda step: step.rejected),
            Figure(
                "pipeline_step_restarts",
                "How often a step was started again since it began to run.",
                lambda step: step.restarts,
            ),
            Figure("pipeline_step_lag", "Messages that a step has still to read.", lambda step: step.lag),
            Figure(
                "pipeline_step_oldest_timestamp_seconds",
                "When the first of the messages was created that a step has still to read.",
                lambda step: _unix(step.oldest_at),
                min,
            ),
            Figure(
                "pipeline_step_rows_per_second",
                "Rows that a step reads per second, in its last batch.",
                lambda step: step.rows_per_second,
            ),
            Figure(
                "pipeline_step_committed_timestamp_seconds",
                "When a step committed its last batch.",
                lambda step: _unix(step.committed_at),
                min,
            ),
        ),
    ),
    "streams": StorePart(
        ("stream", "id", "queue"),
        _streams,
        lambda stream: (stream.name, stream.id, stream.queue),
        (
            Figure(
                "spark_stream_lag",
                "Messages of a queue that a Spark stream has still to read.",
                lambda stream: stream.lag,
            ),
            Figure(
                "spark_stream_updated_timestamp_seconds",
                "When a Spark stream last reported its position.",
                lambda stream: _unix(stream.updated_at),
                min,
            ),
        ),
    ),
}

FETCHED = ("lockstep_part_fetched", "1 if a part of the store's figures was fetched in time.")

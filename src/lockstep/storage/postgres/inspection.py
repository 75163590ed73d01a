"""Figures about the store and its database: leases, sums over queues, and history. Read-only."""

from __future__ import annotations

from datetime import datetime, timedelta

from lockstep.core.buckets import SampleSpan
from lockstep.core.maintenance import Removal, Sample
from lockstep.core.overview import LabelInfo, LabelKind, Overview, Spread
from lockstep.core.pipelines import GONE_SECONDS, JobRun, PipelineStep
from lockstep.core.records import LeaseInfo, Utilisation
from lockstep.core.statistics import DatabaseActivity, DatabaseStats, HorizonHolder, ServerSpan, StoreCounts, TableStats
from lockstep.storage.postgres.context import Context
from lockstep.storage.postgres.lookups import Lookups


class PostgresInspection:
    """Figures about the store."""

    def __init__(self, context: Context, lookups: Lookups) -> None:
        self._context = context
        self._lookups = lookups

    async def leases(
        self, *, queue: str | None = None, expiring_within: timedelta | None = None, limit: int = 1000
    ) -> list[LeaseInfo]:
        queue_id = None if queue is None else await self._lookups.queue_id(queue)
        rows = await self._context.query("lease_list", queue_id, expiring_within, limit, self._context.now())
        return [LeaseInfo(**row) for row in rows]

    async def utilisation(self, *, queue: str | None = None, exact: bool = False) -> list[Utilisation]:
        queue_id = None if queue is None else await self._lookups.queue_id(queue)
        rows = await self._context.query(
            "group_utilisation", queue_id, self._context.now(), exact, self._context.limits.figures_units_max
        )
        return [Utilisation(**row) for row in rows]

    async def namespaces(self, *, after: str | None = None, limit: int = 1000, exact: bool = False) -> list[LabelInfo]:
        return await self._labels("namespace", after, limit, exact)

    async def tasks(self, *, after: str | None = None, limit: int = 1000, exact: bool = False) -> list[LabelInfo]:
        return await self._labels("task", after, limit, exact)

    async def _labels(self, kind: LabelKind, after: str | None, limit: int, exact: bool) -> list[LabelInfo]:
        rows = await self._context.query(
            "queue_labels", kind, after, limit, self._context.now(), exact, self._context.limits.figures_units_max
        )
        return [LabelInfo(**row) for row in rows]

    async def overview(self, *, exact: bool = False) -> Overview:
        row = dict(
            (await self._context.query("overview", self._context.now(), exact, self._context.limits.figures_units_max))[
                0
            ]
        )
        for name in ("lag_seconds", "lag_messages"):
            row[name] = None if row["cursors_with_lag"] is None else _spread(row[name])
        return Overview(**row)

    async def samples(
        self,
        *,
        queue: str | None = None,
        from_at: datetime | None = None,
        to_at: datetime | None = None,
        after: Sample | None = None,
        limit: int = 1000,
    ) -> list[Sample]:
        place = (None, None) if after is None else (after.at, after.queue)
        rows = await self._context.query("sample_list", queue, from_at, to_at, *place, limit)
        return [Sample(**row) for row in rows]

    async def sample_spans(
        self,
        *,
        seconds: int,
        from_at: datetime,
        to_at: datetime,
        queue: str | None = None,
        namespace: str | None = None,
        task: str | None = None,
    ) -> list[SampleSpan]:
        rows = await self._context.query("sample_spans", queue, from_at, to_at, seconds, namespace, task)
        return [SampleSpan(**row) for row in rows]

    async def server_spans(self, *, seconds: int, from_at: datetime, to_at: datetime) -> list[ServerSpan]:
        return [ServerSpan(**row) for row in await self._context.query("server_sample_spans", from_at, to_at, seconds)]

    async def removals(
        self,
        *,
        queue: str | None = None,
        from_at: datetime | None = None,
        to_at: datetime | None = None,
        after: Removal | None = None,
        limit: int = 1000,
    ) -> list[Removal]:
        place = (None, None, None) if after is None else (after.at, after.queue, after.kind)
        rows = await self._context.query("removal_list", queue, from_at, to_at, *place, limit)
        return [Removal(**row) for row in rows]

    def counts(self) -> StoreCounts:
        pool, cache = self._context.database.counts, self._context.segments
        return StoreCounts(
            connections_open=pool.open,
            connections_idle=pool.idle,
            connections_max=pool.connections_max,
            connection_waiters=pool.waiters,
            cache_segments=len(cache),
            cache_bytes=cache.bytes,
            cache_bytes_max=cache.bytes_max,
            cache_hits=cache.hits,
            cache_misses=cache.misses,
            queries=self._context.queries.counts,
        )

    async def database_activity(self) -> DatabaseActivity:
        rows = await self._context.query("database_horizon")
        written = (await self._context.query("database_written"))[0]["wal_bytes"]
        return DatabaseActivity(wal_bytes=written, horizon=[HorizonHolder(**row) for row in rows])

    async def pipeline_steps(self, *, pipeline: str | None = None) -> list[PipelineStep]:
        rows = await self._context.query("pipeline_step_list", pipeline, GONE_SECONDS)
        return [PipelineStep(**row) for row in rows]

    async def job_runs(self, *, limit: int = 100) -> list[JobRun]:
        return [JobRun(**row) for row in await self._context.query("job_run_list", limit)]

    async def database_stats(self) -> DatabaseStats:
        row = (await self._context.query("database_stats"))[0]
        return DatabaseStats(**row, tables=[TableStats(**table) for table in await self._context.query("table_stats")])


def _spread(numbers: list[float | None]) -> Spread:
    return Spread(**{name: number or 0.0 for name, number in zip(Spread.__struct_fields__, numbers, strict=True)})

"""What the store tells about itself and its database. Read-only."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from lockstep.core.buckets import SampleSpan
from lockstep.core.statistics import DatabaseStats, StoreCounts, TableStats
from lockstep.storage.postgres.shared import Shared


class Statistics(Shared):
    def counts(self) -> StoreCounts:
        pool, cache = self.database.counts, self.segments
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
            queries=self.queries.counts,
        )

    async def database_stats(self) -> DatabaseStats:
        row = (await self._query("database_stats"))[0]
        numbers = dict(zip(DatabaseStats.__struct_fields__, row, strict=False))
        return DatabaseStats(**numbers, tables=[_table(row) for row in await self._query("table_stats")])

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
        rows = await self._query("sample_spans", queue, from_at, to_at, seconds, namespace, task)
        return [SampleSpan(**dict(zip(SampleSpan.__struct_fields__, row, strict=True))) for row in rows]


def _table(row: Any) -> TableStats:
    return TableStats(**dict(zip(TableStats.__struct_fields__, row, strict=True)))

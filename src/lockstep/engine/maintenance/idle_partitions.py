"""Removes partitions that have been empty for longer than a setting allows."""

from __future__ import annotations

from lockstep.config import Config
from lockstep.engine.maintenance.duty import DutyReport, Walk
from lockstep.storage.base import Store


class IdlePartitions:
    name = "idle_partitions"

    def __init__(self, store: Store, config: Config) -> None:
        self.interval_seconds = config.idle_partitions_interval_seconds
        self._store = store
        self._idle_seconds = config.idle_partition_seconds
        self._batch_max = config.idle_partitions_batch_max
        self._walk = Walk(config.duty_pass_seconds_max)

    async def run_once(self) -> DutyReport:
        if self._idle_seconds == 0:
            return DutyReport({"partitions": 0})
        batches = await self._walk.go(
            lambda place: self._store.prune_partitions(self._idle_seconds, after=place, limit=self._batch_max)
        )
        return DutyReport({"partitions": sum(batch.partitions for batch in batches)}, more=not self._walk.ended)

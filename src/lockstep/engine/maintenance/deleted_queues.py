"""Removes what is left of deleted queues if the process that deleted them died before it was done."""

from __future__ import annotations

from lockstep.config import Config
from lockstep.engine.maintenance.duty import DutyReport, Walk
from lockstep.storage.base import Store


class DeletedQueues:
    name = "deleted_queues"

    def __init__(self, store: Store, config: Config) -> None:
        self.interval_seconds = config.deleted_queues_interval_seconds
        self._store = store
        self._walk = Walk(config.duty_pass_seconds_max)

    async def run_once(self) -> DutyReport:
        batches = await self._walk.go(lambda place: self._store.prune_queues(after=place))
        effect = {
            "partitions": sum(batch.partitions for batch in batches),
            "messages": sum(batch.messages for batch in batches),
        }
        return DutyReport(effect, more=not self._walk.ended)

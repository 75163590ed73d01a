"""Removes ended operations: those that were applied soon, those that failed after a longer time."""

from __future__ import annotations

from lockstep.config import Config
from lockstep.engine.maintenance.duty import DutyReport
from lockstep.storage.base import Store

_BATCH_BUNDLES = 1_000


class EndedOperations:
    name = "operations"

    def __init__(self, store: Store, config: Config) -> None:
        self.interval_seconds = config.operation_clean_interval_seconds
        self._store = store
        self._keep_seconds = config.operation_keep_seconds
        self._failed_keep_seconds = config.operation_failed_keep_seconds

    async def run_once(self) -> DutyReport:
        removed = await self._store.prune_operations(
            self._keep_seconds, failed_seconds=self._failed_keep_seconds, limit=_BATCH_BUNDLES
        )
        return DutyReport({"bundles": removed}, more=removed >= _BATCH_BUNDLES)

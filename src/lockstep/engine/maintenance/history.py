"""Removes samples and records of removals that are older than the retention period."""

from __future__ import annotations

from lockstep.config import Config
from lockstep.engine.maintenance.duty import DutyReport
from lockstep.storage.base import Store

_BATCH_ROWS = 10_000


class History:
    name = "history"

    def __init__(self, store: Store, config: Config) -> None:
        self.interval_seconds = config.history_interval_seconds
        self._store = store
        self._seconds_max = config.history_seconds_max

    async def run_once(self) -> DutyReport:
        removed = await self._store.prune_history(self._seconds_max, limit=_BATCH_ROWS)
        return DutyReport({"rows": removed}, more=removed >= _BATCH_ROWS)

"""Detects that the database's clock was set back, and moves due times of the old clock."""

from __future__ import annotations

import logging

from lockstep.config import Config
from lockstep.engine.maintenance.duty import DutyReport, Walk
from lockstep.storage.base import Store

logger = logging.getLogger("lockstep.engine.maintenance")


class Clock:
    name = "clock"

    def __init__(self, store: Store, config: Config) -> None:
        self.interval_seconds = config.clock_interval_seconds
        self._store = store
        self._walk = Walk(config.duty_pass_seconds_max)

    async def run_once(self) -> DutyReport:
        batches = await self._walk.go(lambda place: self._store.follow_clock(after=place))
        moved = sum(batch.waiting for batch in batches)
        if moved:
            logger.warning("clock_was_set_back", extra={"action": "clock_was_set_back", "moved": moved})
        return DutyReport({"moved": moved}, more=not self._walk.ended)

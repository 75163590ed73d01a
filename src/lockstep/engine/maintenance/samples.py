"""Takes a sample of every queue: how many messages were pushed and completed, and how many are pending."""

from __future__ import annotations

from lockstep.config import Config
from lockstep.engine.maintenance.duty import DutyReport
from lockstep.storage.base import Store


class Samples:
    name = "samples"

    def __init__(self, store: Store, config: Config) -> None:
        self.interval_seconds = config.samples_interval_seconds
        self._seconds_max = config.samples_seconds_max
        self._store = store

    async def run_once(self) -> DutyReport:
        return DutyReport({"queues": await self._store.sample(seconds_max=self._seconds_max)})

"""Removes messages that have waited longer than their queue allows, and skips expired ones. A pop skips them anyway;
this keeps queues from filling up that nobody pops from."""

from __future__ import annotations

from lockstep.config import Config
from lockstep.engine.maintenance.duty import DutyReport, Walk, problems_of
from lockstep.storage.base import Store


class Eviction:
    name = "eviction"

    def __init__(self, store: Store, config: Config) -> None:
        self.interval_seconds = config.eviction_interval_seconds
        self._store = store
        self._batch_messages_max = config.retention_batch_messages_max
        self._walk = Walk(config.duty_pass_seconds_max)
        self._expiry_walk = Walk(config.duty_pass_seconds_max)

    async def run_once(self) -> DutyReport:
        batches = await self._walk.go(
            lambda place: self._store.prune("eviction", after=place, limit=self._batch_messages_max)
        )
        expired = await self._expiry_walk.go(
            lambda place: self._store.prune("expiry", after=place, limit=self._batch_messages_max)
        )
        effect = {
            "eviction": sum(batch.messages for batch in batches),
            "expiry": sum(batch.messages for batch in expired),
        }
        more = not (self._walk.ended and self._expiry_walk.ended)
        return DutyReport(effect, more=more, problems=problems_of(batches + expired))

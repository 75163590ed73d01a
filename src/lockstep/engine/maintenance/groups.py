"""Makes the cursors that new and moved groups still lack, and removes those of deleted groups."""

from __future__ import annotations

from lockstep.config import Config
from lockstep.engine.maintenance.duty import DutyReport, Walk
from lockstep.storage.base import Store


class Groups:
    name = "groups"

    def __init__(self, store: Store, config: Config) -> None:
        self.interval_seconds = config.groups_interval_seconds
        self._store = store
        self._walk = Walk(config.duty_pass_seconds_max)

    async def run_once(self) -> DutyReport:
        batches = await self._walk.go(lambda place: self._store.prune_groups(after=place))
        return DutyReport({"cursors": sum(batch.partitions for batch in batches)}, more=not self._walk.ended)

"""Makes the cursors that new and moved groups still lack, and removes those of deleted groups."""

from __future__ import annotations

import asyncio

from lockstep.config import Config
from lockstep.core.maintenance import Place, Pruned
from lockstep.engine.maintenance.duty import DutyReport, Walk
from lockstep.storage.base import Store

_REST = 3.0
"""How long the duty rests after a slice, as a multiple of the slice, so that pushes and pops keep most of their
throughput."""
_REST_SECONDS_MAX = 1.0


class GroupCursors:
    name = "groups"

    def __init__(self, store: Store, config: Config) -> None:
        self.interval_seconds = config.groups_interval_seconds
        self._store = store
        self._walk = Walk(config.duty_pass_seconds_max)

    async def run_once(self) -> DutyReport:
        batches = await self._walk.go(self._slice)
        return DutyReport({"cursors": sum(batch.partitions for batch in batches)}, more=not self._walk.ended)

    async def _slice(self, place: Place | None) -> Pruned:
        time = asyncio.get_running_loop().time
        began = time()
        done = await self._store.prune_groups(after=place)
        if done.next is not None:
            await asyncio.sleep(min(_REST * (time() - began), _REST_SECONDS_MAX))
        return done

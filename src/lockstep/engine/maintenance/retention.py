"""Removes messages that are older than their queue keeps them: those that every group is done with, and any."""

from __future__ import annotations

from itertools import chain
from typing import Any

from lockstep.config import Config
from lockstep.core.maintenance import Pruned, PruneKind
from lockstep.engine.maintenance.duty import DutyReport, Walk, problems_of
from lockstep.storage.base import Store

_KINDS: tuple[PruneKind, ...] = ("completed_retention", "retention")


class Retention:
    name = "retention"

    def __init__(self, store: Store, config: Config) -> None:
        self.interval_seconds = config.retention_interval_seconds
        self._store = store
        self._batch_messages_max = config.retention_batch_messages_max
        self._walks = {kind: Walk(config.duty_pass_seconds_max) for kind in _KINDS}

    async def run_once(self) -> DutyReport:
        batches = {kind: await self._prune(kind) for kind in _KINDS}
        effect: dict[str, Any] = {kind: sum(batch.messages for batch in found) for kind, found in batches.items()}
        more = not all(walk.ended for walk in self._walks.values())
        return DutyReport(effect, more=more, problems=problems_of(chain.from_iterable(batches.values())))

    async def _prune(self, kind: PruneKind) -> list[Pruned]:
        return await self._walks[kind].go(
            lambda place: self._store.prune(kind, after=place, limit=self._batch_messages_max)
        )

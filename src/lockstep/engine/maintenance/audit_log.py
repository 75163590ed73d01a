"""Removes entries of the audit log that are older than the retention period."""

from __future__ import annotations

from lockstep.config import Config
from lockstep.engine.maintenance.duty import DutyReport
from lockstep.storage.base import Store

_BATCH_ROWS = 10_000


class AuditLog:
    name = "audit"

    def __init__(self, store: Store, config: Config) -> None:
        self.interval_seconds = config.audit_interval_seconds
        self._store = store
        self._seconds_max = config.audit_seconds_max

    async def run_once(self) -> DutyReport:
        removed = await self._store.prune_audit(self._seconds_max, limit=_BATCH_ROWS)
        return DutyReport({"entries": removed}, more=removed >= _BATCH_ROWS)

"""Makes messages deliverable whose time has come.

Unlike the duties of the schedule this is urgent, so it has a task of its own and needs no claim: the store lets one
process at a time promote a queue, and whoever comes second finds nothing left. When nothing is due a pass is a probe of
an index. The task sleeps until the next due time that is known here, at most for its interval, in which it finds what
other processes have scheduled.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime

from lockstep.config import Config
from lockstep.core.schedules import Promoted
from lockstep.engine.maintenance.duty import DutyReport
from lockstep.errors import Unavailable
from lockstep.storage.base import Store

logger = logging.getLogger("lockstep.engine.maintenance")

_RETRY_SECONDS_MAX = 5.0


class Promotion:
    name = "promotion"

    def __init__(self, store: Store, config: Config, *, tell: Callable[[Mapping[str, set[str]]], None]) -> None:
        self.interval_seconds = config.promotion_interval_seconds
        self._store = store
        self._messages_max = config.promotion_messages_max
        self._stop_seconds_max = config.duty_stop_seconds_max
        self._tell = tell
        """Is told the partitions, by queue, that have something new."""
        self._last = Promoted()
        self._failures = 0
        self._stirred = asyncio.Event()
        self._stopping = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin; what was begun goes on."""
        if self._task is None and not self._stopping:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="lockstep-promotion")

    async def stop(self) -> None:
        """End; a pass that is being done may end itself within a limit. Safe to call twice."""
        self._stopping = True
        task, self._task = self._task, None
        if task is None:
            return
        self._stirred.set()
        _, late = await asyncio.wait([task], timeout=self._stop_seconds_max)
        for one in late:
            one.cancel()
            await asyncio.wait([one])

    def note(self, due_at: datetime | None) -> None:
        """Something was scheduled here for this time."""
        next_at = self._last.next_at
        if due_at is not None and (next_at is None or due_at < next_at):
            self._stirred.set()

    async def run_once(self) -> DutyReport:
        promoted = await self._store.promote(limit=self._messages_max)
        if promoted.partitions_by_queue:
            self._tell(promoted.partitions_by_queue)
        for where, why in promoted.postponed.items():
            if where not in self._last.postponed:  # once, and not with every pass
                fields = {"action": "promotion_postponed", "where": where, "error": why}
                logger.warning("promotion_postponed", extra=fields)
        self._last = promoted
        return DutyReport({"messages": promoted.messages, "postponed": promoted.postponed}, more=promoted.more)

    async def _run(self) -> None:
        while not self._stopping:
            self._stirred.clear()
            seconds = await self._pass()
            with suppress(TimeoutError):
                # A store that never waits would not let anybody else run, so it is waited for even when more is due.
                await asyncio.wait_for(self._stirred.wait(), max(seconds, 0.001))

    async def _pass(self) -> float:
        """One pass; returns in how many seconds the next one is. Never raises: a database that is away for a while
        does not end it."""
        try:
            report = await self.run_once()
        except Exception as error:
            self._failures += 1
            if self._failures == 1:
                fields = {"action": "promotion_failed", "error": str(error)}
                logger.error(
                    "promotion_failed", extra=fields, exc_info=None if isinstance(error, Unavailable) else error
                )
            return min(self.interval_seconds * (1 << min(self._failures, 10)), _RETRY_SECONDS_MAX)
        self._failures = 0
        if report.more:
            return 0.0
        wait = self._last.wait_seconds
        return self.interval_seconds if wait is None else min(wait, self.interval_seconds)

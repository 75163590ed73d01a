"""Makes scheduled messages deliverable when they are due.

Unlike the duties of the schedule this is urgent, so it has a task of its own and needs no claim: the store lets one
process at a time promote a queue, and a second process finds nothing left. If nothing is due, a pass is a single index
probe. The task sleeps until the next due time that this process knows, at most for its interval; then it finds what
other processes have scheduled.

The duties list it all the same. It makes too many passes to record each, so from time to time one process reports what
its passes did since its last report.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from datetime import datetime
from typing import TYPE_CHECKING

from lockstep.config import Config
from lockstep.core.schedules import Promoted
from lockstep.engine.background import Background
from lockstep.engine.maintenance.duty import DutyReport, duty_error
from lockstep.storage.base import Store

if TYPE_CHECKING:
    from lockstep.engine.arrivals import Arrivals

logger = logging.getLogger("lockstep.engine.maintenance")

_TOLD_SECONDS = 5.0
"""How often one of all processes records the results."""


class Promotion:
    name = "promotion"

    def __init__(self, store: Store, config: Config, arrivals: Arrivals) -> None:
        self.interval_seconds = config.promotion_interval_seconds
        self._store = store
        self._messages_max = config.promotion_messages_max
        self._hold_seconds = config.duty_hold_seconds
        self._arrivals = arrivals
        self._last = Promoted()
        self._by = f"{socket.gethostname()}:{os.getpid()}"
        self._untold_messages = 0
        self._ask_at = 0.0
        self._passes = Background(
            self.name,
            self._pass,
            interval_seconds=self.interval_seconds,
            stop_seconds_max=config.duty_stop_seconds_max,
            logger=logger,
        )

    def start(self) -> None:
        """Start; has no effect if it is running."""
        self._passes.start()

    async def stop(self) -> None:
        """Stop; a pass in progress has limited time to finish. Safe to call twice."""
        await self._passes.stop()

    def note(self, due_at: datetime | None) -> None:
        """A message was scheduled here for this time."""
        next_at = self._last.next_at
        if due_at is not None and (next_at is None or due_at < next_at):
            self._passes.stir()

    def stir(self) -> None:
        """A process that does not promote messages has scheduled a message."""
        self._passes.stir()

    async def run_once(self) -> DutyReport:
        promoted = await self._store.promote(limit=self._messages_max)
        if promoted.partitions_by_queue:
            self._arrivals.pushed_to(promoted.partitions_by_queue, promoted.messages_by_queue)
        for where, why in promoted.postponed.items():
            if where not in self._last.postponed:  # once, not with every pass
                fields = {"action": "promotion_postponed", "where": where, "error": why}
                logger.warning("promotion_postponed", extra=fields)
        self._last = promoted
        return DutyReport({"messages": promoted.messages, "postponed": promoted.postponed}, more=promoted.more)

    async def _pass(self) -> float:
        try:
            report = await self.run_once()
        except Exception as error:
            await self._write_down(error)
            raise
        self._untold_messages += self._last.messages
        await self._write_down(None)
        if report.more:
            return 0.0
        wait = self._last.wait_seconds
        return self.interval_seconds if wait is None else min(wait, self.interval_seconds)

    async def _write_down(self, error: Exception | None) -> None:
        """Record the results of the passes since the last record, unless another process has just recorded its own."""
        now = asyncio.get_running_loop().time()
        if now < self._ask_at:
            return
        self._ask_at = now + _TOLD_SECONDS
        try:
            claim = await self._store.claim_duty(
                self.name, interval_seconds=_TOLD_SECONDS, hold_seconds=self._hold_seconds, by=self._by
            )
            if not claim.granted:
                return
            effect = {"messages": self._untold_messages, "postponed": self._last.postponed}
            failure = None if error is None else duty_error(error)
            await self._store.finish_duty(self.name, by=self._by, effect=effect, error=failure)
            self._untold_messages = 0
        except Exception as unwritten:
            logger.info("promotion_unwritten", extra={"action": "promotion_unwritten", "error": str(unwritten)})

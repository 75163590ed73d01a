"""Runs the duties in the background of a server.

Every server has a schedule, and the store grants a duty to one server at a time. So each duty runs once per interval,
however many servers there are, and the others take over when one fails. One task runs the duties one after the other,
because none is urgent and all of them load the same database.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
from collections.abc import Sequence
from uuid import uuid4

from lockstep.config import Config
from lockstep.engine.maintenance.audit_log import AuditLog
from lockstep.engine.maintenance.clock import Clock
from lockstep.engine.maintenance.deleted_queues import DeletedQueues
from lockstep.engine.maintenance.duty import ERROR_LENGTH_MAX, Duty, DutyReport, duty_error
from lockstep.engine.maintenance.ended_operations import EndedOperations
from lockstep.engine.maintenance.eviction import Eviction
from lockstep.engine.maintenance.group_cursors import GroupCursors
from lockstep.engine.maintenance.history import History
from lockstep.engine.maintenance.idle_partitions import IdlePartitions
from lockstep.engine.maintenance.promotion import Promotion
from lockstep.engine.maintenance.retention import Retention
from lockstep.engine.maintenance.samples import Samples
from lockstep.engine.maintenance.verification import Verification
from lockstep.errors import Unavailable
from lockstep.storage.base import Store

logger = logging.getLogger("lockstep.engine.maintenance")

_JITTER = 0.1
"""Maximum delay of a server's claim, as a fraction of the interval, so that servers do not all claim at once."""
_JITTER_SECONDS_MAX = 1.0
_RETRY_SECONDS_MAX = 30.0


def all_duties(store: Store, config: Config) -> list[Duty]:
    return [
        Samples(store, config),
        Eviction(store, config),
        Retention(store, config),
        IdlePartitions(store, config),
        DeletedQueues(store, config),
        GroupCursors(store, config),
        Clock(store, config),
        EndedOperations(store, config),
        History(store, config),
        AuditLog(store, config),
        Verification(store, config),
    ]


class Duties:
    """The duties of one server."""

    def __init__(
        self,
        store: Store,
        config: Config,
        *,
        duties: Sequence[Duty] | None = None,
        promotion: Promotion | None = None,
    ) -> None:
        self.name = f"{socket.gethostname()}:{os.getpid()}:{uuid4().hex[:8]}"
        """Identifies the claim to the store, and the server to people."""
        self._store = store
        self._config = config
        self._duties = all_duties(store, config) if duties is None else list(duties)
        self._promotion = promotion
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start; has no effect if it is running."""
        if self._promotion is not None:
            self._promotion.start()
        if self._task is None:
            self._stopping.clear()
            self._task = asyncio.get_running_loop().create_task(self._run(), name="lockstep-maintenance")

    async def stop(self) -> None:
        """Stop; a duty in progress has limited time to finish. Safe to call twice."""
        if self._promotion is not None:
            await self._promotion.stop()
        task, self._task = self._task, None
        if task is None:
            return
        self._stopping.set()
        _, late = await asyncio.wait([task], timeout=self._config.duty_stop_seconds_max)
        for one in late:
            logger.warning("duty_cancelled", extra={"action": "duty_cancelled"})
            one.cancel()
            await asyncio.wait([one])

    async def _run(self) -> None:
        time = asyncio.get_running_loop().time
        ask_at = {duty.name: time() for duty in self._duties}
        while not self._stopping.is_set():
            duty = min(self._duties, key=lambda one: ask_at[one.name])
            if await self._stopped_within(ask_at[duty.name] - time()):
                return
            ask_at[duty.name] = time() + await self.run_due(duty)

    async def _stopped_within(self, seconds: float) -> bool:
        if seconds <= 0:
            await asyncio.sleep(0)  # with a store that never waits, no other task would run
            return self._stopping.is_set()
        try:
            await asyncio.wait_for(self._stopping.wait(), seconds)
        except TimeoutError:
            return False
        return True

    async def run_due(self, duty: Duty) -> float:
        """Perform a duty if it is due and unclaimed; returns the seconds until the next check. Never raises, so
        that one duty, or an outage of the database, does not end the others."""
        began = asyncio.get_running_loop().time()
        try:
            claim = await self._store.claim_duty(
                duty.name,
                interval_seconds=duty.interval_seconds,
                hold_seconds=self._config.duty_hold_seconds,
                by=self.name,
            )
            if not claim.granted:
                # The current owner may be done long before its claim ends.
                return min(claim.wait_seconds, duty.interval_seconds) + _jitter(duty.interval_seconds)
            report = await self._done(duty)
        except Exception as error:
            _log_failure(duty, error)
            return min(duty.interval_seconds, _RETRY_SECONDS_MAX)
        if report is not None and report.more:
            return 0.0
        return duty.interval_seconds - (asyncio.get_running_loop().time() - began)

    async def _done(self, duty: Duty) -> DutyReport | None:
        """Perform a claimed duty and record its result; None if it failed."""
        try:
            report = await duty.run_once()
        except Exception as error:
            _log_failure(duty, error)
            await self._store.finish_duty(duty.name, by=self.name, error=duty_error(error))
            return None
        problem = None
        if report.problems:
            problem = "; ".join(report.problems)[:ERROR_LENGTH_MAX]
            logger.error("duty_failed", extra={"action": "duty_failed", "duty": duty.name, "error": problem})
        await self._store.finish_duty(duty.name, by=self.name, effect=report.effect, error=problem, more=report.more)
        logger.debug("duty_done", extra={"action": "duty_done", "duty": duty.name, "effect": report.effect})
        return report


def _jitter(interval_seconds: float) -> float:
    return random.uniform(0, min(interval_seconds * _JITTER, _JITTER_SECONDS_MAX))


def _log_failure(duty: Duty, error: Exception) -> None:
    fields = {"action": "duty_failed", "duty": duty.name, "error": str(error)}
    if isinstance(error, Unavailable) and error.details.get("unreachable"):
        # The code that notices the outage logs it, once.
        logger.debug("duty_failed", extra=fields)
        return
    logger.error("duty_failed", extra=fields, exc_info=error)

"""Runs the duties in the background of a server.

Every server has a schedule, and the store lets one of them at a time have a duty: so each is done once per interval
however many servers there are, and the others go on when one is gone. One task does one duty after the other, because
none is urgent and all of them load the same database.
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
from lockstep.engine.maintenance.consistency import Consistency
from lockstep.engine.maintenance.deleted_queues import DeletedQueues
from lockstep.engine.maintenance.duty import ERROR_LENGTH_MAX, Duty, DutyReport, duty_error
from lockstep.engine.maintenance.ended_operations import EndedOperations
from lockstep.engine.maintenance.eviction import Eviction
from lockstep.engine.maintenance.groups import Groups
from lockstep.engine.maintenance.history import History
from lockstep.engine.maintenance.idle_partitions import IdlePartitions
from lockstep.engine.maintenance.promotion import Promotion
from lockstep.engine.maintenance.retention import Retention
from lockstep.engine.maintenance.samples import Samples
from lockstep.errors import Unavailable
from lockstep.storage.base import Store

logger = logging.getLogger("lockstep.engine.maintenance")

_JITTER = 0.1
"""Part of an interval, at most, by which a server asks later than it could, so that not all ask at once."""
_JITTER_SECONDS_MAX = 1.0
_RETRY_SECONDS_MAX = 30.0


def all_duties(store: Store, config: Config) -> list[Duty]:
    return [
        Samples(store, config),
        Eviction(store, config),
        Retention(store, config),
        IdlePartitions(store, config),
        DeletedQueues(store, config),
        Groups(store, config),
        EndedOperations(store, config),
        History(store, config),
        Consistency(store, config),
    ]


class Maintenance:
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
        """By which the store knows whose claim it is, and people whose server."""
        self._store = store
        self._config = config
        self._duties = all_duties(store, config) if duties is None else list(duties)
        self._promotion = promotion
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin; a schedule that was begun goes on."""
        if self._promotion is not None:
            self._promotion.start()
        if self._task is None:
            self._stopping.clear()
            self._task = asyncio.get_running_loop().create_task(self._run(), name="lockstep-maintenance")

    async def stop(self) -> None:
        """End; a duty that is being done may end itself within a limit. Safe to call twice."""
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
            await asyncio.sleep(0)  # a store that never waits would not let anybody else run
            return self._stopping.is_set()
        try:
            await asyncio.wait_for(self._stopping.wait(), seconds)
        except TimeoutError:
            return False
        return True

    async def run_due(self, duty: Duty) -> float:
        """Do a duty, if it is due and nobody else does it; returns in how many seconds to ask again. Never raises, so
        that one duty, or a database that is away for a while, does not end the others."""
        began = asyncio.get_running_loop().time()
        try:
            claim = await self._store.claim_duty(
                duty.name,
                interval_seconds=duty.interval_seconds,
                hold_seconds=self._config.duty_hold_seconds,
                by=self.name,
            )
            if not claim.granted:
                # Who is at it now may be done long before its claim would end.
                return min(claim.wait_seconds, duty.interval_seconds) + _jitter(duty.interval_seconds)
            report = await self._done(duty)
        except Exception as error:
            _log_failure(duty, error)
            return min(duty.interval_seconds, _RETRY_SECONDS_MAX)
        if report is not None and report.more:
            return 0.0
        return duty.interval_seconds - (asyncio.get_running_loop().time() - began)

    async def _done(self, duty: Duty) -> DutyReport | None:
        """Do a claimed duty, and write down what came of it; None if it failed."""
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
        # Who finds out that the database is away says so, once.
        logger.debug("duty_failed", extra=fields)
        return
    logger.error("duty_failed", extra=fields, exc_info=error)

"""Verifies the stored data, a few partitions at a time, and reports violations. It repairs nothing; that is up to an
operator."""

from __future__ import annotations

import logging
from typing import Any

import msgspec

from lockstep.config import Config
from lockstep.core.maintenance import Place, Verified
from lockstep.core.records import Problem
from lockstep.engine.maintenance.duty import DutyReport, Walk
from lockstep.storage.base import Store

logger = logging.getLogger("lockstep.engine.maintenance")

_SHOWN_MAX = 20


class Verification:
    name = "verify"

    def __init__(self, store: Store, config: Config) -> None:
        self.interval_seconds = config.verify_interval_seconds
        self._store = store
        self._partitions_max = config.verify_partitions_max
        self._walk = Walk(config.duty_pass_seconds_max)
        self._partitions = 0
        self._problems: list[Problem] = []

    async def run_once(self) -> DutyReport:
        if self._walk.ended:
            self._partitions, self._problems = 0, []
        await self._walk.go(self._verify)
        return DutyReport(self._effect(), more=not self._walk.ended)

    async def _verify(self, place: Place | None) -> Verified:
        verified = await self._store.verify_slice(after=place, partitions=self._partitions_max)
        self._partitions += verified.partitions
        for problem in verified.problems:
            fields = {"action": "problem_found", "kind": problem.kind, "queue": problem.queue, "text": problem.text}
            logger.error("problem_found", extra=fields)
            self._problems.append(problem)
        return verified

    def _effect(self) -> dict[str, Any]:
        """Of the whole walk so far, which may have taken several passes."""
        return {
            "complete": self._walk.ended,
            "partitions": self._partitions,
            "problems": len(self._problems),
            "shown": [msgspec.to_builtins(problem) for problem in self._problems[:_SHOWN_MAX]],
        }

"""Samples of this process for the history: its requests, its errors and its load, once in an interval."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from lockstep.core.statistics import ServerSample
from lockstep.engine.background import Background

if TYPE_CHECKING:
    from lockstep.server.node import Node

LOAD_SECONDS = 1.0
"""How often the load is looked at. A sample has the highest value."""

_logger = logging.getLogger(__name__)


class Sampling:
    """Takes the samples of one process."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._interval_seconds = node.config.samples_interval_seconds
        self._sums = self._now()
        self._taken_at = time.monotonic()
        self._load = 0.0
        self._background = Background(
            "server_sample",
            self.run_once,
            interval_seconds=LOAD_SECONDS,
            stop_seconds_max=node.config.duty_stop_seconds_max,
            logger=_logger,
        )

    def start(self) -> None:
        self._background.start()

    async def stop(self) -> None:
        await self._background.stop()

    async def run_once(self) -> float:
        """Look at the load, and store a sample if it is time. A sample that cannot be stored is not lost: its counts go
        into the next one."""
        self._load = max([self._load, *[state.load for state in self._node.engine.counts.load.values()]])
        if time.monotonic() - self._taken_at >= self._interval_seconds:
            await self.take()
        return min(LOAD_SECONDS, self._interval_seconds)

    async def take(self) -> None:
        sums, now = self._now(), time.monotonic()
        grown = {name: sums[name] - self._sums[name] for name in sums}
        sample = ServerSample(server=self._node.name, seconds=now - self._taken_at, load=self._load, **grown)
        await self._node.engine.record_server(sample)
        self._sums, self._taken_at, self._load = sums, now, 0.0

    def _now(self) -> dict[str, int]:
        """Sums since the process started."""
        counters, states = self._node.counters, self._node.engine.counts.load.values()
        return {
            "requests": sum(counters.requests.values()),
            "client_errors": counters.answered(400, 500) - counters.answered(429, 430),
            "server_errors": counters.answered(500, 600),
            "queued": sum(state.queued for state in states),
            "rejected": sum(state.rejected for state in states),
        }

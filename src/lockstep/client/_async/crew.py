"""Runs workers until they are stopped, and drains them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import nullcontext

from lockstep.client._async.concurrency import Event, Task, current, monotonic, stopping_on_signals
from lockstep.client._async.worker import AsyncWorker

logger = logging.getLogger("lockstep.client")


class AsyncCrew:
    """The lanes of some workers, all running."""

    def __init__(self, workers: Sequence[AsyncWorker], stop: Event) -> None:
        self._workers = workers
        self._stop = stop
        self._lanes: list[Task] = []
        self._drained = Event()
        self._members: set[object] = set()
        """Who runs them, and the lanes. Each enters itself: a lane may be at work before it is among the lanes."""

    async def run(self, *, stop_on_signals: bool, drain_timeout_seconds: float) -> None:
        """Until stopped, or until a lane fails for good; then drain, and raise what it failed with."""
        self._members.add(current())
        try:
            with stopping_on_signals(self._stop.set) if stop_on_signals else nullcontext():
                for worker in self._workers:
                    for number in range(worker.concurrency):
                        self._lanes.append(Task(self._lane, worker, name=f"lockstep-worker-{number}"))
                await self._stop.wait()
        finally:
            self._stop.set()
            try:
                await self._drain(drain_timeout_seconds)
            finally:
                self._drained.set()
        for lane in self._lanes:
            lane.result()

    async def wait(self) -> None:
        """Until they are drained. Not for those whom they wait for: a handler, or a signal handler of who runs them."""
        if current() not in self._members:
            await self._drained.wait()

    async def _lane(self, worker: AsyncWorker) -> None:
        self._members.add(current())
        try:
            await worker.run_lane(self._stop)
        finally:
            # A lane ends by itself only when it fails, and then the others are not left to work on alone.
            self._stop.set()

    async def _drain(self, timeout_seconds: float) -> None:
        """Wait for what is running; after the timeout, or if nobody wants to wait, give it back."""
        deadline = monotonic() + timeout_seconds
        try:
            for lane in self._lanes:
                await lane.join(max(deadline - monotonic(), 0.0))
        finally:
            late = [lane for lane in self._lanes if not await lane.join(0.0)]
            if late:
                await self._give_back(late)

    async def _give_back(self, late: Sequence[Task]) -> None:
        """So that another consumer gets at once what these lanes have in hand."""
        logger.warning("drain_timeout", extra={"action": "drain_timeout", "lanes": len(late)})
        for worker in self._workers:
            await worker.release()
        for lane in late:
            await lane.cancel()

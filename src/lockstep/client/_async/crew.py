"""Runs workers until they are stopped, and drains them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import nullcontext

from lockstep.client._async.concurrency import Event, Task, current, monotonic, stopping_on_signals
from lockstep.client._async.worker import AsyncWorker

logger = logging.getLogger("lockstep.client")


class AsyncCrew:
    """The loops of some workers, all running."""

    def __init__(self, workers: Sequence[AsyncWorker], stop: Event) -> None:
        self._workers = workers
        self._stop = stop
        self._loops: list[Task] = []
        self._drained = Event()
        self._members: set[object] = set()
        """The caller of `run`, and the loops. Each registers itself, because a loop may start working before it is
        listed.
        """

    async def run(self, *, stop_on_signals: bool, drain_timeout_seconds: float) -> None:
        """Run until stopped, or until a loop fails permanently; then drain, and raise that loop's error."""
        self._members.add(current())
        try:
            with stopping_on_signals(self._stop.set) if stop_on_signals else nullcontext():
                for worker in self._workers:
                    for number in range(worker.concurrency):
                        self._loops.append(Task(self._loop, worker, name=f"lockstep-worker-{number}"))
                await self._stop.wait()
        finally:
            self._stop.set()
            try:
                await self._drain(drain_timeout_seconds)
            finally:
                self._drained.set()
        for loop in self._loops:
            loop.result()

    async def wait(self) -> None:
        """Wait until the loops are drained. A handler must not wait: the loops wait for it."""
        if current() not in self._members:
            await self._drained.wait()

    async def _loop(self, worker: AsyncWorker) -> None:
        self._members.add(current())
        try:
            await worker.run_loop(self._stop)
        finally:
            # A loop ends by itself only when it fails; the others must not continue alone.
            self._stop.set()

    async def _drain(self, timeout_seconds: float) -> None:
        """Wait for running handlers; after the timeout, or without a wait, release their messages."""
        deadline = monotonic() + timeout_seconds
        try:
            for loop in self._loops:
                await loop.join(max(deadline - monotonic(), 0.0))
        finally:
            late = [loop for loop in self._loops if not await loop.join(0.0)]
            if late:
                await self._give_back(late)

    async def _give_back(self, late: Sequence[Task]) -> None:
        """Release what these loops hold, so that another consumer gets it at once."""
        logger.warning("drain_timeout", extra={"action": "drain_timeout", "loops": len(late)})
        for worker in self._workers:
            await worker.release()
        for loop in late:
            await loop.cancel()

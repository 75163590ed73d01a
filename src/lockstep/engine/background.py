"""Recurring work in a task of its own: pass after pass, through failures, to a clean end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from contextvars import Context
from logging import Logger
from typing import Any

from lockstep.errors import Unavailable

_RETRY_SECONDS_MAX = 5.0


class Background:
    """One piece of work. Each pass returns the seconds until the next one; `stir` begins it earlier."""

    def __init__(
        self,
        name: str,
        work: Callable[[], Awaitable[float]],
        *,
        interval_seconds: float,
        stop_seconds_max: float,
        logger: Logger,
    ) -> None:
        self._name = name
        self._work = work
        self._interval_seconds = interval_seconds
        self._stop_seconds_max = stop_seconds_max
        self._logger = logger
        self._failures = 0
        self._stirred = asyncio.Event()
        self._stopping = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start, unless it has started or was stopped."""
        if self._task is None and not self._stopping:
            self._task = asyncio.get_running_loop().create_task(
                self._run(),
                name=f"lockstep-{self._name}",
                context=Context(),  # not that of a request
            )

    def stir(self) -> None:
        """There may be something to do now."""
        self._stirred.set()

    async def stop(self) -> None:
        """Stop; a pass in progress has limited time to finish. Safe to call twice."""
        self._stopping = True
        self._stirred.set()
        task, self._task = self._task, None
        if task is not None:
            await ended([task], self._stop_seconds_max)

    async def _run(self) -> None:
        while not self._stopping:
            self._stirred.clear()
            seconds = await self._pass()
            with suppress(TimeoutError):
                # Wait even when more is due: with a store that never waits, nothing else would run.
                await asyncio.wait_for(self._stirred.wait(), max(seconds, 0.001))

    async def _pass(self) -> float:
        """One pass; returns the seconds until the next one. Never raises: the work outlives an outage of the
        database."""
        try:
            seconds = await self._work()
        except Exception as error:
            self._failures += 1
            if self._failures == 1:
                event = f"{self._name}_failed"
                told = None if isinstance(error, Unavailable) else error
                self._logger.error(event, extra={"action": event, "error": str(error)}, exc_info=told)
            return min(self._interval_seconds * (1 << min(self._failures, 10)), _RETRY_SECONDS_MAX)
        self._failures = 0
        return seconds


async def ended(tasks: Iterable[asyncio.Task[Any]], seconds_max: float) -> None:
    """Wait for tasks that were asked to end; cancel those that do not end in time."""
    waiting = list(tasks)
    if waiting:
        _, late = await asyncio.wait(waiting, timeout=seconds_max)
        for task in late:
            task.cancel()
            await asyncio.wait([task])

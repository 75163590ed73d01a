"""Work in the background: through failures, woken when there is something to do, and to a clean end."""

from __future__ import annotations

import asyncio
import logging

import pytest

from lockstep.engine.background import Background

WAIT_SECONDS_MAX = 10
logger = logging.getLogger("lockstep.engine")


class Counting:
    """Passes that are counted; the first few fail."""

    def __init__(self, *, failing: int = 0, next_seconds: float = 3600) -> None:
        self.passes = 0
        self.changed = asyncio.Event()
        self._failing = failing
        self._next_seconds = next_seconds

    async def __call__(self) -> float:
        self.passes += 1
        self.changed.set()
        if self.passes <= self._failing:
            raise OSError("away")
        return self._next_seconds

    async def until(self, passes: int) -> None:
        async with asyncio.timeout(WAIT_SECONDS_MAX):
            while self.passes < passes:
                self.changed.clear()
                await self.changed.wait()


def background(work: Counting, *, stop_seconds_max: float = 10.0) -> Background:
    return Background("work", work, interval_seconds=0.001, stop_seconds_max=stop_seconds_max, logger=logger)


async def test_who_stirs_it_does_not_wait_for_the_next_pass() -> None:
    work = Counting()
    passes = background(work)
    passes.start()
    passes.start()
    await work.until(1)
    passes.stir()
    await work.until(2)
    await passes.stop()
    assert work.passes == 2


async def test_failures_do_not_end_it_and_are_said_once_in_a_row(caplog: pytest.LogCaptureFixture) -> None:
    work = Counting(failing=3, next_seconds=0)
    passes = background(work)
    passes.start()
    await work.until(5)
    await passes.stop()
    assert [record.getMessage() for record in caplog.records] == ["work_failed"]


async def test_stopped_for_good_and_without_a_start() -> None:
    work = Counting()
    passes = background(work)
    await passes.stop()
    await passes.stop()
    passes.start()
    await asyncio.sleep(0)
    assert work.passes == 0


async def test_a_pass_that_does_not_end_is_cut_off() -> None:
    class Endless(Counting):
        async def __call__(self) -> float:
            await super().__call__()
            await asyncio.Event().wait()
            raise AssertionError

    work = Endless()
    passes = background(work, stop_seconds_max=0.001)
    passes.start()
    await work.until(1)
    await passes.stop()
    assert [task for task in asyncio.all_tasks() if task.get_name() == "lockstep-work"] == []

"""A hundred thousand messages for the same second."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

from lockstep.core.messages import NewSchedule
from lockstep.core.schedules import ScheduleFilter
from lockstep.storage.postgres.store import PostgresStore
from scale.conftest import Scale
from support.builders import batch, pop_all
from support.clock import SetClock

Split = Callable[[int], list[int]]


async def schedule(store: PostgresStore, queue: str, sizes: list[int], clock: SetClock) -> None:
    at = NewSchedule(deliver_at=clock.now + timedelta(seconds=60))
    for number, size in enumerate(sizes):
        await store.push([replace(batch(queue, size, partition=f"p{number % 7}"), schedule=at)])


async def test_listed_cancelled_cleared_and_promoted(
    store: PostgresStore, clock: SetClock, scale: Scale, batches: Split
) -> None:
    count = scale(100_000)
    await schedule(store, "q", batches(count), clock)
    await schedule(store, "cleared", batches(count), clock)
    page = await store.schedules(ScheduleFilter(queue="q"), limit=10)
    assert len(page.items) == 10
    assert await store.clear("cleared", scope="scheduled") == count
    clock.advance(60)
    promoted = 0
    while True:
        step = await store.promote(limit=min(count, 1_000))
        promoted += step.messages
        if not step.more:
            break
    assert promoted == count
    assert len(await pop_all(store, "q")) == count
    assert (await store.schedules(ScheduleFilter())).items == []

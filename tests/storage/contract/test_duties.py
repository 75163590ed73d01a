"""Duties: one server at a time, once per interval, and no claim for ever."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lockstep.core.maintenance import DutyClaim
from lockstep.storage.base import Store
from support.clock import SetClock

GRANTED = DutyClaim(granted=True)
INTERVAL, HOLD = 60, 300


async def claim(store: Store, by: str = "a", *, name: str = "d", interval: float = INTERVAL) -> DutyClaim:
    return await store.claim_duty(name, interval_seconds=interval, hold_seconds=HOLD, by=by)


async def test_first_claim_is_granted_and_shown(store: Store, clock: SetClock) -> None:
    assert await store.duties() == []
    assert await claim(store) == GRANTED
    [duty] = await store.duties()
    assert (duty.name, duty.interval_seconds, duty.claimed_by) == ("d", INTERVAL, "a")
    assert (duty.last_started_at, duty.next_run_at) == (clock.now, clock.ahead(INTERVAL))
    assert duty.claimed_until == clock.ahead(HOLD)
    assert (duty.last_finished_at, duty.last_effect, duty.last_error, duty.runs) == (None, None, None, 0)


async def test_duty_is_done_once_per_interval(store: Store, clock: SetClock) -> None:
    assert await claim(store, "a") == GRANTED
    assert await claim(store, "b") == DutyClaim(granted=False, wait_seconds=HOLD)
    clock.advance(5)
    assert await store.finish_duty("d", by="a", effect={"n": 1})
    assert await claim(store, "b") == DutyClaim(granted=False, wait_seconds=INTERVAL - 5)
    clock.advance(INTERVAL - 5)
    assert await claim(store, "b") == GRANTED


async def test_of_many_who_ask_at_once_one_gets_it(store: Store) -> None:
    claims = await asyncio.gather(*(claim(store, str(number)) for number in range(8)))
    assert sum(one.granted for one in claims) == 1


async def test_claim_of_a_server_that_is_gone_ends_by_itself(store: Store, clock: SetClock) -> None:
    await claim(store, "gone")
    clock.advance(HOLD - 1)
    assert await claim(store, "b") == DutyClaim(granted=False, wait_seconds=1)
    clock.advance(1)
    assert await claim(store, "b") == GRANTED
    [duty] = await store.duties()
    assert (duty.claimed_by, duty.runs) == ("b", 0)


async def test_one_who_lost_its_claim_cannot_end_that_of_another(store: Store, clock: SetClock) -> None:
    await claim(store, "late")
    clock.advance(HOLD)
    await claim(store, "b")
    assert not await store.finish_duty("d", by="late", effect={"n": 1})
    [duty] = await store.duties()
    assert (duty.claimed_until, duty.last_effect) == (clock.ahead(HOLD), None)
    assert await store.finish_duty("d", by="b", effect={"n": 2})
    assert not await store.finish_duty("d", by="b", effect={"n": 3}), "a claim ends once"
    assert not await store.finish_duty("unknown", by="b")
    assert (await store.duties())[0].last_effect == {"n": 2}


async def test_effect_and_failure_are_kept(store: Store, clock: SetClock) -> None:
    effect: dict[str, Any] = {"queues": 3, "shown": [{"kind": "seq_gap", "text": "ä 'q'"}], "complete": True}
    await claim(store)
    await store.finish_duty("d", by="a", effect=effect)
    clock.advance(INTERVAL)
    await claim(store)
    clock.advance(1)
    await store.finish_duty("d", by="a", error="Unavailable: no")
    [duty] = await store.duties()
    assert (duty.runs, duty.failures, duty.last_error) == (2, 1, "Unavailable: no")
    assert (duty.last_effect, duty.last_finished_at, duty.claimed_until) == (effect, clock.now, None)
    assert not (await claim(store)).granted, "a failure is tried again after the interval"
    clock.advance(INTERVAL)
    await claim(store)
    await store.finish_duty("d", by="a", effect={})
    [duty] = await store.duties()
    assert (duty.runs, duty.failures, duty.last_error, duty.last_effect) == (3, 1, None, {})


async def test_duty_with_more_to_do_is_due_at_once(store: Store) -> None:
    await claim(store, "a")
    await store.finish_duty("d", by="a", effect={}, more=True)
    assert await claim(store, "b") == GRANTED


@pytest.mark.parametrize(("interval", "wait"), [(10, 4), (600, 54)])
async def test_shorter_interval_rules_at_once_and_a_longer_one_from_the_next_run(
    store: Store, clock: SetClock, interval: float, wait: float
) -> None:
    await claim(store)
    await store.finish_duty("d", by="a", effect={})
    clock.advance(6)
    assert await claim(store, interval=interval) == DutyClaim(granted=False, wait_seconds=wait)
    clock.advance(wait)
    assert await claim(store, interval=interval) == GRANTED
    assert (await store.duties())[0].next_run_at == clock.ahead(interval)


async def test_duties_are_apart_and_listed_by_name(store: Store) -> None:
    for name in ("b", "a", "c"):
        assert await claim(store, name=name) == GRANTED
    assert [duty.name for duty in await store.duties()] == ["a", "b", "c"]


async def test_duty_is_due_when_the_clock_was_set_back(store: Store, clock: SetClock) -> None:
    """It would rest until the clock is where it was, however far ahead that had been by mistake."""
    right = clock.now
    clock.advance(86_400)
    await claim(store, "a")
    await store.finish_duty("d", by="a", effect={})
    await claim(store, "left", name="claimed")
    clock.now = right
    assert (await claim(store, "b")).granted
    assert (await claim(store, "b", name="claimed")).granted
    assert not (await claim(store, "c")).granted

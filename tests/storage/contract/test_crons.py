"""Recurring messages: when they are pushed, once, and what becomes of times that were missed."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from lockstep.core.crons import Cron, NewCron
from lockstep.errors import CronNotFound
from lockstep.storage.base import Store
from support.builders import configure, pop_all, push_n
from support.clock import SetClock


async def set_cron(store: Store, expression: str = "*/5 * * * *", *, name: str = "c", **fields: Any) -> Cron:
    return await store.set_cron(NewCron(name=name, queue="q", expression=expression, payload=b"{}", **fields))


async def times(store: Store) -> list[str]:
    """For which times something was pushed, as their transaction ids say."""
    return [message.transaction_id.removeprefix("cron:c:") for message in await pop_all(store, "q")]


async def test_cron_is_pushed_at_its_times(store: Store, clock: SetClock) -> None:
    made = await set_cron(store, kind="tick", headers={"a": "b"}, partition="p")
    assert (made.next_at, made.last_at) == (clock.ahead(300), None)
    assert (await store.promote(limit=10)).next_at == clock.ahead(300)
    clock.advance(300)
    assert (await store.promote(limit=10)).partitions_by_queue == {"q": {"p"}}
    assert (await store.promote(limit=10)).messages == 0
    [message] = await pop_all(store, "q")
    assert (message.kind, message.headers, message.partition, message.payload) == ("tick", {"a": "b"}, "p", b"{}")
    assert message.transaction_id == "cron:c:2026-05-01T10:05:00+00:00"
    known = await store.cron("c")
    assert (known.last_at, known.next_at) == (clock.now, clock.ahead(300))


@pytest.mark.parametrize(
    ("catch_up", "expected"),
    [
        ("skip", []),
        ("one", ["2026-05-01T10:20:00+00:00"]),
        ("all", [f"2026-05-01T10:{minute:02}:00+00:00" for minute in (5, 10, 15, 20)]),
    ],
)
async def test_missed_times_follow_the_policy(
    store: Store, clock: SetClock, catch_up: Any, expected: list[str]
) -> None:
    await set_cron(store, catch_up=catch_up)
    clock.advance(1200 + 120)
    await store.promote(limit=10)
    assert await times(store) == expected
    assert (await store.cron("c")).next_at == datetime(2026, 5, 1, 10, 25, tzinfo=UTC)


async def test_a_little_late_is_not_missed(store: Store, clock: SetClock) -> None:
    await set_cron(store)
    clock.advance(1200 + 30)
    await store.promote(limit=10)
    assert await times(store) == ["2026-05-01T10:20:00+00:00"]


async def test_catching_up_on_all_goes_in_batches(store: Store, clock: SetClock) -> None:
    await set_cron(store, catch_up="all")
    clock.advance(1500)
    promoted = await store.promote(limit=2)
    assert (promoted.messages, promoted.more) == (2, True)
    while (await store.promote(limit=2)).messages:
        pass
    assert len(await times(store)) == 5


async def test_cron_that_is_not_enabled_rests(store: Store, clock: SetClock) -> None:
    await set_cron(store)
    assert (await set_cron(store, enabled=False)).next_at is None
    clock.advance(3600)
    assert (await store.promote(limit=10)).messages == 0
    assert (await set_cron(store, catch_up="all")).next_at == clock.ahead(300)


async def test_replacing_a_cron_keeps_its_next_time_if_its_times_are_the_same(store: Store, clock: SetClock) -> None:
    await set_cron(store)
    clock.advance(600)
    assert (await set_cron(store, catch_up="one")).next_at == clock.ago(300)
    assert (await set_cron(store, "0 * * * *")).next_at == clock.ahead(3000)
    assert (await set_cron(store, "0 * * * *", timezone="Asia/Kolkata")).next_at == clock.ahead(1200)


async def test_full_queue_postpones_a_cron(store: Store, clock: SetClock) -> None:
    await configure(store, "q", max_size=1)
    await push_n(store, "q", 1)
    await set_cron(store)
    clock.advance(300)
    assert "QueueFull" in (await store.promote(limit=10)).postponed["cron c"]
    await pop_all(store, "q")
    assert (await store.promote(limit=10)).messages == 1


async def test_crons_are_listed_by_name_and_removed(store: Store) -> None:
    for name in ("b", "a", "c"):
        await set_cron(store, name=name)
    assert [one.name for one in await store.crons()] == ["a", "b", "c"]
    assert [one.name for one in await store.crons(after="a", limit=1)] == ["b"]
    assert await store.remove_cron("b")
    assert not await store.remove_cron("b")
    with pytest.raises(CronNotFound):
        await store.cron("b")


async def test_time_zone_rules_over_a_change_of_the_clocks(store: Store, clock: SetClock) -> None:
    clock.now = datetime(2026, 10, 24, 12, tzinfo=UTC)
    made = await set_cron(store, "30 2 * * *", timezone="Europe/Berlin", catch_up="all")
    assert made.next_at == datetime(2026, 10, 25, 0, 30, tzinfo=UTC)
    clock.now = datetime(2026, 10, 26, 12, tzinfo=UTC)
    await store.promote(limit=10)
    assert await times(store) == ["2026-10-25T00:30:00+00:00", "2026-10-26T01:30:00+00:00"]


async def test_enable_goes_on_with_the_next_time(store: Store, clock: SetClock) -> None:
    await set_cron(store, catch_up="all")
    assert (await store.enable_cron("c", True)).next_at == clock.ahead(300)
    assert (await store.enable_cron("c", False)).next_at is None
    clock.advance(3000)
    rested = await store.enable_cron("c", True)
    assert (rested.enabled, rested.next_at) == (True, clock.ahead(300))
    assert (await store.promote(limit=10)).messages == 0
    with pytest.raises(CronNotFound):
        await store.enable_cron("nobody", True)

"""Consumers that continue their leases, while others push, seek, delete, clear, and take over what expired."""

from __future__ import annotations

from typing import Any

import pytest

from lockstep.core.names import QUEUE_MODE
from lockstep.core.records import Position
from lockstep.errors import LockTimeout
from support.builders import ack, attempts_of, batch, numbers, partitions_of, pop, push_n
from support.builders import next_of as continued_of
from support.clock import SetClock
from support.sessions import Actor, Stage

pytestmark = pytest.mark.set_clock


async def push_to(actor: Actor, *partitions: str, start: int = 1) -> None:
    await actor.store.push([batch("q", partition=name, start=start) for name in partitions])


async def leases(actor: Actor) -> list[tuple[str, int, int]]:
    return [(lease.partition, lease.first_seq, lease.last_seq) for lease in await actor.store.leases()]


# --- Push


async def test_next_that_drains_waits_for_push_in_flight(stage: Stage) -> None:
    """B pushes and holds on; A continues the last message it knows, and waits; B commits: A gets B's message."""
    a, b = await stage.actors(2)
    await push_n(a.store, "q")
    popped = await pop(a.store, "q")
    await b.begin()
    await push_n(b.store, "q", start=2)
    waiting = await stage.blocked(continued_of(a.store, popped, "q"), a, by=b)
    await b.commit()
    continued = await waiting
    assert (continued.acked.success, numbers(continued.popped)) == (True, [2])


async def test_push_waits_for_next_that_drains_its_partition(stage: Stage) -> None:
    """A continues, which drains the partition, and holds on; B pushes and waits; A commits: B's message is found."""
    a, b = await stage.actors(2)
    await push_n(a.store, "q")
    popped = await pop(a.store, "q")
    await a.begin()
    assert not (await continued_of(a.store, popped, "q")).popped
    waiting = await stage.blocked(push_n(b.store, "q", start=2), b, by=a)
    await a.commit()
    await waiting
    assert numbers(await pop(b.store, "q")) == [2]


async def test_next_that_goes_on_does_not_wait_for_push(stage: Stage) -> None:
    """B pushes and holds on; A continues with what was there, and is done before B commits."""
    a, b = await stage.actors(2)
    await push_n(a.store, "q", 2)
    popped = await pop(a.store, "q")
    await b.begin()
    await push_n(b.store, "q", start=3)
    continued = await continued_of(a.store, popped, "q", batch=9)
    assert numbers(continued.popped) == [2]
    await b.commit()
    assert numbers((await continued_of(a.store, continued.popped, "q", batch=9)).popped) == [3]


async def test_next_waits_for_a_lock_no_longer_than_it_may(stage: Stage) -> None:
    a, b = await stage.actors(2)
    await push_n(a.store, "q")
    popped = await pop(a.store, "q")
    await b.begin()
    await push_n(b.store, "q", start=2)
    from lockstep.core.records import NextRequest, PopRequest

    request = NextRequest(lease_id=popped.lease_id or "", pop=PopRequest(queue="q"))
    with pytest.raises(LockTimeout):
        await a.store.next([request], hold_seconds=60, lock_seconds=0.05)
    await b.commit()
    assert (await ack(a.store, lease_id=popped.lease_id)).success


async def test_what_is_cleared_while_next_waits_is_not_leased(stage: Stage) -> None:
    """A continues p1 and p2, which has more, and waits at p1, held by B. Meanwhile p2 is cleared of what is not
    leased, and D pushes to it. B commits: D's message is not lost, and nothing stays leased in vain."""
    a, b, c, d = await stage.actors(4)
    await push_to(a, "p1", "p2")
    held = await pop(a.store, "q", partitions=2, batch=2)
    assert partitions_of(held) == ["p1", "p2"]
    await push_n(a.store, "q", partition="p2", start=2)
    await b.begin()
    await push_n(b.store, "q", partition="p1", start=2)
    waiting = await stage.blocked(continued_of(a.store, held, "q", partitions=2, batch=9), a, by=b)
    assert await c.store.clear("q", partition="p2", scope="unleased") == 1
    await push_n(d.store, "q", partition="p2", start=3)
    await b.commit()
    continued = await waiting
    assert continued.acked.success
    found = numbers(continued.popped) + numbers(await pop(c.store, "q", partition="p2", batch=9))
    assert sorted(set(found) - {2}) == [3]


# --- Others who decide about the same cursor


async def seek(actor: Actor) -> Any:
    return await actor.store.seek("q", QUEUE_MODE, Position("start"))


async def clear(actor: Actor) -> Any:
    return await actor.store.clear("q")


async def delete_queue(actor: Actor) -> Any:
    return await actor.store.delete_queue("q")


async def delete_group(actor: Actor) -> Any:
    return await actor.store.delete_group(QUEUE_MODE, queue="q")


DECREES = [seek, clear, delete_queue, delete_group]
by_decree = pytest.mark.parametrize("decree", DECREES, ids=[decree.__name__ for decree in DECREES])


@by_decree
async def test_decree_that_comes_first_ends_the_lease(stage: Stage, decree: Any) -> None:
    """B decides and holds on; A continues and waits, or is refused; B commits: A has nothing."""
    a, b = await stage.actors(2)
    await push_n(a.store, "q", 5)
    popped = await pop(a.store, "q")
    await b.begin()
    await decree(b)
    waiting = stage.start(continued_of(a.store, popped, "q"))
    await stage.until_done_or_blocked(waiting, a)
    await b.commit()
    continued = await waiting
    assert (continued.acked.error, continued.popped.runs) == ("lease_lost", [])
    assert await leases(b) == []


@by_decree
async def test_decree_that_comes_second_ends_what_was_continued(stage: Stage, decree: Any) -> None:
    """A continues and holds on; B decides and waits; A commits: B has its way, and A's new lease is gone."""
    a, b = await stage.actors(2)
    await push_n(a.store, "q", 5)
    popped = await pop(a.store, "q")
    await a.begin()
    continued = await continued_of(a.store, popped, "q")
    assert numbers(continued.popped) == [2]
    waiting = stage.start(decree(b))
    await stage.until_done_or_blocked(waiting, b)
    await a.commit()
    await waiting
    assert (await continued_of(a.store, continued.popped, "q")).acked.error == "lease_lost"
    assert await leases(b) == []


async def test_lease_is_continued_once_by_two_at_the_same_time(stage: Stage) -> None:
    """A continues and holds on; B continues the same lease and waits; A commits: B is refused and skips nothing."""
    a, b = await stage.actors(2)
    await push_n(a.store, "q", 5)
    popped = await pop(a.store, "q")
    await a.begin()
    first = await continued_of(a.store, popped, "q")
    waiting = await stage.blocked(continued_of(b.store, popped, "q"), b, by=a)
    await a.commit()
    second = await waiting
    assert (numbers(first.popped), second.acked.error, second.popped.runs) == ([2], "lease_lost", [])
    assert await leases(a) == [("Default", 2, 2)]


async def test_one_partition_that_is_taken_away_gives_back_the_others(stage: Stage) -> None:
    """A continues p1 and p2 and waits at p2, which B seeks; B commits: A is refused, and p1 is free."""
    a, b, c = await stage.actors(3)
    await push_to(a, "p1", "p2")
    held = await pop(a.store, "q", partitions=2, batch=2)
    await push_to(a, "p1", "p2", start=2)
    await b.begin()
    await b.store.seek("q", QUEUE_MODE, Position("start"), partition="p2")
    waiting = await stage.blocked(continued_of(a.store, held, "q", partitions=2, batch=2), a, by=b)
    await b.commit()
    continued = await waiting
    assert (continued.acked.error, continued.popped.runs) == ("lease_lost", [])
    assert await leases(c) == []
    assert numbers(await pop(c.store, "q", partition="p1")) == [2]


async def test_next_that_waits_for_pop_of_its_expired_lease_is_refused(stage: Stage, clock: SetClock) -> None:
    """To A, whose clock is behind, its lease is live; B pops it as expired and holds on; A continues and waits."""
    a = await stage.actor(clock=SetClock())
    b = await stage.actor()
    await push_n(a.store, "q", 3)
    old = await pop(a.store, "q", lease_seconds=10)
    clock.advance(10)
    await b.begin()
    new = await pop(b.store, "q")
    assert attempts_of(new) == [2]
    waiting = await stage.blocked(continued_of(a.store, old, "q"), a, by=b)
    await b.commit()
    assert (await waiting).acked.error == "lease_lost"
    assert (await ack(b.store, lease_id=new.lease_id)).success


async def test_pop_does_not_take_what_is_being_continued(stage: Stage, clock: SetClock) -> None:
    """A continues in the last moment and holds on; the time passes; B pops nothing, before and after A commits."""
    a, b = await stage.actors(2)
    await push_n(a.store, "q", 3)
    old = await pop(a.store, "q", lease_seconds=10)
    assert not await pop(b.store, "q")
    await a.begin()
    assert numbers((await continued_of(a.store, old, "q", lease_seconds=60)).popped) == [2]
    clock.advance(10)
    assert not await pop(b.store, "q")
    await a.commit()
    assert not await pop(b.store, "q")


async def test_next_that_rolls_back_leaves_the_lease_as_it_was(stage: Stage) -> None:
    a, b = await stage.actors(2)
    await push_n(a.store, "q", 3)
    popped = await pop(a.store, "q")
    await a.begin()
    await continued_of(a.store, popped, "q")
    await a.rollback()
    assert await leases(b) == [("Default", 1, 1)]
    assert numbers((await continued_of(b.store, popped, "q")).popped) == [2]

"""Consumers that meet producers and each other: lost wake-ups, expiry, leases, skipped locks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from lockstep.core.names import QUEUE_MODE
from lockstep.core.records import Ack, AckOutcome, PendingRequest, Popped, Renewal, Subscription
from lockstep.storage.postgres.store import PostgresStore
from support.builders import (
    ack,
    ack_of,
    attempts_of,
    batch,
    configure,
    lag_of,
    next_of,
    numbers,
    partitions_of,
    pop,
    push_n,
)
from support.clock import SetClock
from support.sessions import Actor, Stage

pytestmark = pytest.mark.set_clock

AckAll = Callable[[Actor, Popped], Awaitable[list[AckOutcome]]]


async def ack_lease(actor: Actor, popped: Popped) -> list[AckOutcome]:
    return await actor.store.ack([Ack(lease_id=popped.lease_id)])


async def ack_messages(actor: Actor, popped: Popped) -> list[AckOutcome]:
    return await actor.store.ack([ack_of(m, lease_id=popped.lease_id) for m in popped.messages()])


async def ack_without_lease(actor: Actor, popped: Popped) -> list[AckOutcome]:
    return await actor.store.ack([ack_of(message) for message in popped.messages()])


async def ack_in_transaction(actor: Actor, popped: Popped) -> list[AckOutcome]:
    return (await actor.store.transaction([Ack(lease_id=popped.lease_id)], [])).acks


async def ack_by_next(actor: Actor, popped: Popped) -> list[AckOutcome]:
    """And nothing is leased."""
    return [(await next_of(actor.store, popped, "nowhere")).acked]


WAYS = [
    pytest.param(ack_lease, id="lease"),
    pytest.param(ack_by_next, id="next"),
    pytest.param(ack_messages, id="messages"),
    pytest.param(ack_without_lease, id="without-lease"),
    pytest.param(ack_in_transaction, id="transaction"),
]
FENCED_WAYS = [way for way in WAYS if way.id != "without-lease"]


async def pending(actor: Actor) -> bool:
    [answer] = await actor.store.has_pending([PendingRequest(queue="q")])
    return answer


async def with_group(actor: Actor, **options: Any) -> None:
    """Make the queue and its group, so that a pop creates nothing."""
    await configure(actor.store, "q", **options)
    await actor.store.subscribe("q", QUEUE_MODE, Subscription())


async def popped_one(actor: Actor) -> Popped:
    """A partition with one message, leased: its ack will leave the cursor drained."""
    await push_n(actor.store, "q")
    popped = await pop(actor.store, "q", batch=10, lease_seconds=10)
    assert numbers(popped) == [1]
    return popped


# --- Ack against push -------------------------------------------------------------------------------------


@pytest.mark.parametrize("ack_all", WAYS)
async def test_push_waits_for_ack_that_drains_its_partition(stage: Stage, ack_all: AckAll) -> None:
    """A acks the last message and holds on; B pushes and waits; A commits: a pop finds B's message."""
    a, b = await stage.actors(2)
    popped = await popped_one(a)
    await a.begin()
    assert [outcome.success for outcome in await ack_all(a, popped)] == [True]
    waiting = await stage.blocked(push_n(b.store, "q", start=2), b, by=a)
    await a.commit()
    await waiting
    assert await pending(b)
    assert numbers(await pop(b.store, "q")) == [2]


@pytest.mark.parametrize("ack_all", WAYS)
async def test_ack_that_drains_waits_for_push_in_flight(stage: Stage, ack_all: AckAll) -> None:
    """B pushes and holds on; A acks the last message it knows and waits; B commits: a pop finds B's message."""
    a, b = await stage.actors(2)
    popped = await popped_one(a)
    await b.begin()
    await push_n(b.store, "q", start=2)
    waiting = await stage.blocked(ack_all(a, popped), a, by=b)
    await b.commit()
    assert [outcome.success for outcome in await waiting] == [True]
    assert await pending(a)
    assert numbers(await pop(a.store, "q")) == [2]


@pytest.mark.parametrize("ack_all", WAYS)
async def test_ack_that_waited_for_push_that_rolls_back_leaves_partition_drained(stage: Stage, ack_all: AckAll) -> None:
    """B pushes; A acks and waits; B rolls back: nothing is pending, and the next push wakes the partition."""
    a, b = await stage.actors(2)
    popped = await popped_one(a)
    await b.begin()
    await push_n(b.store, "q", start=2)
    waiting = await stage.blocked(ack_all(a, popped), a, by=b)
    await b.rollback()
    await waiting
    assert not await pending(a)
    await push_n(a.store, "q", start=3)
    assert numbers(await pop(a.store, "q")) == [3]


@pytest.mark.parametrize("ack_all", WAYS)
async def test_push_that_waited_for_ack_that_rolls_back(stage: Stage, ack_all: AckAll) -> None:
    """A acks and holds on; B pushes and waits; A rolls back: the lease is as it was, and all is delivered."""
    a, b = await stage.actors(2)
    popped = await popped_one(a)
    await a.begin()
    await ack_all(a, popped)
    waiting = await stage.blocked(push_n(b.store, "q", start=2), b, by=a)
    await a.rollback()
    await waiting
    assert not await pending(b)
    assert [outcome.success for outcome in await ack_all(a, popped)] == [True]
    assert numbers(await pop(b.store, "q")) == [2]


async def test_ack_that_leaves_messages_does_not_wait_for_push(stage: Stage) -> None:
    """B pushes and holds on; A acks the first of two messages and is done before B commits."""
    a, b = await stage.actors(2)
    await push_n(a.store, "q", 2)
    popped = await pop(a.store, "q", batch=1)
    await b.begin()
    await push_n(b.store, "q", start=3)
    assert (await ack(a.store, lease_id=popped.lease_id)).success
    assert numbers(await pop(a.store, "q", batch=9)) == [2]
    await b.commit()


async def test_failed_ack_does_not_lose_message_of_push_in_flight(stage: Stage, clock: SetClock) -> None:
    """B pushes and holds on; A fails its message and waits or not; B commits: both messages are delivered."""
    a, b = await stage.actors(2)
    popped = await popped_one(a)
    await b.begin()
    await push_n(b.store, "q", start=2)
    failing = stage.start(ack(a.store, lease_id=popped.lease_id, status="failed"))
    await stage.until_blocked(a.pid)
    await b.commit()
    await failing
    clock.advance(1)
    assert numbers(await pop(a.store, "q", batch=9)) == [1, 2]


async def test_ack_of_two_partitions_while_one_is_cleared_and_pushed_to(stage: Stage) -> None:
    """A acks a lease over p1 and p2 (which has more) and waits at p1, held by B. Meanwhile p2's further messages
    are cleared and D pushes to p2. B commits, A's ack ends, D commits: D's message is not lost."""
    a, b, c, d = await stage.actors(4)
    for actor in (a, b, d):
        await actor.store.push([batch("q", partition="p1"), batch("q", partition="p2")])
    await c.store.clear("q")
    await a.store.push([batch("q", partition="p1"), batch("q", partition="p2")])
    held = await pop(a.store, "q", partitions=2, batch=2)
    assert sorted(partitions_of(held)) == ["p1", "p2"]
    await push_n(a.store, "q", partition="p2", start=2)
    await b.begin()
    await push_n(b.store, "q", partition="p1", start=2)
    acking = await stage.blocked(ack_lease(a, held), a, by=b)
    assert await c.store.clear("q", partition="p2", scope="unleased") == 1
    await d.begin()
    await push_n(d.store, "q", partition="p2", start=3)
    await b.commit()
    await stage.until_done_or_blocked(acking, a)
    await d.commit()
    assert [outcome.success for outcome in await acking] == [True]
    assert numbers(await pop(c.store, "q", partition="p2", batch=9)) == [3]


# --- Auto-ack against push --------------------------------------------------------------------------------


async def test_auto_ack_pop_does_not_wait_for_push_in_flight_and_loses_nothing(stage: Stage, clock: SetClock) -> None:
    """B pushes and holds on; A pops with auto_ack what there is; B commits: soon a pop finds B's message."""
    a, b = await stage.actors(2)
    await with_group(a)
    await push_n(a.store, "q")
    await b.begin()
    await push_n(b.store, "q", start=2)
    assert numbers(await pop(a.store, "q", batch=9, auto_ack=True)) == [1]
    await b.commit()
    clock.advance(0.1)
    assert await pending(a)
    assert numbers(await pop(a.store, "q", batch=9, auto_ack=True)) == [2]


async def test_auto_ack_pop_beside_push_that_rolls_back_leaves_partition_drained(stage: Stage, clock: SetClock) -> None:
    """B pushes and holds on; A pops with auto_ack; B rolls back: the next pop notes that nothing is there."""
    a, b = await stage.actors(2)
    await with_group(a)
    await push_n(a.store, "q")
    await b.begin()
    await push_n(b.store, "q", start=2)
    assert numbers(await pop(a.store, "q", batch=9, auto_ack=True)) == [1]
    await b.rollback()
    clock.advance(0.1)
    assert not await pop(a.store, "q", batch=9, auto_ack=True)
    assert not await pending(a)
    await push_n(b.store, "q", start=3)
    assert numbers(await pop(a.store, "q", batch=9, auto_ack=True)) == [3]


async def test_push_waits_for_auto_ack_pop_that_drains_its_partition(stage: Stage) -> None:
    """A pops with auto_ack and holds on; B pushes and waits; A commits: a pop finds B's message."""
    a, b = await stage.actors(2)
    await with_group(a)
    await push_n(a.store, "q")
    await a.begin()
    assert numbers(await pop(a.store, "q", batch=9, auto_ack=True)) == [1]
    waiting = await stage.blocked(push_n(b.store, "q", start=2), b, by=a)
    await a.commit()
    await waiting
    assert numbers(await pop(b.store, "q", batch=9)) == [2]


async def test_auto_ack_pop_that_rolls_back_took_nothing(stage: Stage) -> None:
    """A pops with auto_ack and rolls back: B pops the same message."""
    a, b = await stage.actors(2)
    await with_group(a)
    await push_n(a.store, "q")
    await a.begin()
    assert numbers(await pop(a.store, "q", auto_ack=True)) == [1]
    await a.rollback()
    assert numbers(await pop(b.store, "q")) == [1]


@pytest.mark.parametrize(
    "request_",
    [
        pytest.param({"auto_ack": True}, id="auto-ack"),
        pytest.param({"partition": "Default"}, id="named"),
        pytest.param({}, id="any"),
    ],
)
async def test_pop_that_meets_a_message_younger_than_its_own_time(stage: Stage, request_: dict[str, Any]) -> None:
    """A's pop takes its time; then B, one second ahead, pushes and commits; then A's pop looks: it delivers the
    message now or later, and leases nothing that it does not deliver."""
    behind, ahead = SetClock(), SetClock()
    ahead.advance(1)
    a, b = await stage.actor(clock=behind), await stage.actor(clock=ahead)
    await with_group(a)
    await push_n(a.store, "q")
    # B's push in flight leaves the partition due to A, though all that A can see is done.
    await b.begin()
    await push_n(b.store, "q", start=2)
    assert numbers(await pop(a.store, "q", batch=9, auto_ack=True)) == [1]
    await b.commit()
    behind.advance(0.1)
    first = await pop(a.store, "q", batch=9, **request_)
    assert await a.store.verify() == []
    assert len(first) == 1 or not await a.store.leases()
    behind.advance(2)
    assert numbers(first) + numbers(await pop(a.store, "q", batch=9, **request_)) == [2]


# --- Expiry -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ack_all", FENCED_WAYS[:3])
async def test_ack_after_another_pop_took_the_expired_lease_changes_nothing(
    stage: Stage, clock: SetClock, ack_all: AckAll
) -> None:
    """A's lease runs out; B pops the message; A's ack comes: lease_lost, and B's lease stands."""
    a, b = await stage.actors(2)
    old = await popped_one(a)
    clock.advance(10)
    new = await pop(b.store, "q", batch=10)
    assert attempts_of(new) == [2]
    before = await lag_of(a.store, "q")
    assert [outcome.error for outcome in await ack_all(a, old)] == ["lease_lost"]
    assert await lag_of(a.store, "q") == before
    assert [outcome.success for outcome in await ack_all(b, new)] == [True]


@pytest.mark.parametrize("ack_all", FENCED_WAYS[:3])
async def test_ack_that_waits_for_pop_of_its_expired_lease_is_refused(
    stage: Stage, clock: SetClock, ack_all: AckAll
) -> None:
    """To A, whose clock is behind, its lease is live; B pops it as expired and holds on; A's ack waits for B."""
    a = await stage.actor(clock=SetClock())
    b = await stage.actor()
    old = await popped_one(a)
    clock.advance(10)
    await b.begin()
    new = await pop(b.store, "q", batch=10)
    assert attempts_of(new) == [2]
    waiting = await stage.blocked(ack_all(a, old), a, by=b)
    await b.commit()
    assert [outcome.error for outcome in await waiting] == ["lease_lost"]
    assert [outcome.success for outcome in await ack_all(b, new)] == [True]


@pytest.mark.parametrize("ack_all", FENCED_WAYS)
async def test_pop_does_not_take_a_lease_that_is_being_acked(stage: Stage, clock: SetClock, ack_all: AckAll) -> None:
    """A acks in the last moment and holds on; the time passes; B pops, without waiting, and gets nothing."""
    a, b = await stage.actors(2)
    old = await popped_one(a)
    assert not await pop(b.store, "q")
    await a.begin()
    assert [outcome.success for outcome in await ack_all(a, old)] == [True]
    clock.advance(10)
    assert not await pop(b.store, "q")
    await a.commit()
    assert not await pop(b.store, "q")
    await push_n(a.store, "q", start=2)
    [message] = (await pop(b.store, "q")).messages()
    assert (message.seq, message.attempt) == (2, 1)


async def test_renewal_that_waits_for_pop_of_its_expired_lease_renews_nothing(stage: Stage, clock: SetClock) -> None:
    """To A, whose clock is behind, its lease is live; B pops it as expired and holds on; A's renewal waits."""
    a = await stage.actor(clock=SetClock())
    b = await stage.actor()
    old = await popped_one(a)
    clock.advance(10)
    await b.begin()
    new = await pop(b.store, "q", lease_seconds=5)
    waiting = await stage.blocked(a.store.renew([Renewal(lease_id=old.lease_id or "", seconds=90)]), a, by=b)
    await b.commit()
    assert [renewed.partitions for renewed in await waiting] == [0]
    [lease] = await b.store.leases()
    assert (lease.lease_id, lease.expires_at) == (new.lease_id, clock.ahead(5))


async def test_pop_does_not_take_a_lease_that_is_being_renewed(stage: Stage, clock: SetClock) -> None:
    """A renews in the last moment and holds on; the time passes; B pops nothing, before and after A commits."""
    a, b = await stage.actors(2)
    old = await popped_one(a)
    assert not await pop(b.store, "q")
    await a.begin()
    [renewed] = await a.store.renew([Renewal(lease_id=old.lease_id or "", seconds=60)])
    assert renewed.partitions == 1
    clock.advance(10)
    assert not await pop(b.store, "q")
    await a.commit()
    assert not await pop(b.store, "q")
    assert (await ack(a.store, lease_id=old.lease_id)).success


@pytest.mark.parametrize("ack_all", FENCED_WAYS[:3])
async def test_lease_is_acked_once_by_two_at_the_same_time(stage: Stage, ack_all: AckAll) -> None:
    """A acks and holds on; B acks the same lease and waits; A commits: B's lease is lost."""
    a, b = await stage.actors(2)
    popped = await popped_one(a)
    await a.begin()
    assert [outcome.success for outcome in await ack_all(a, popped)] == [True]
    waiting = await stage.blocked(ack_all(b, popped), b, by=a)
    await a.commit()
    assert [outcome.error for outcome in await waiting] == ["lease_lost"]
    assert (await lag_of(a.store, "q")).acked == 1


async def test_failed_and_completed_at_the_same_time_charge_one_attempt(stage: Stage, clock: SetClock) -> None:
    """A fails the lease and holds on; B completes it and waits; A commits: B is refused, the message comes again."""
    a, b = await stage.actors(2)
    popped = await popped_one(a)
    await a.begin()
    assert (await ack(a.store, lease_id=popped.lease_id, status="failed")).released
    waiting = await stage.blocked(ack_lease(b, popped), b, by=a)
    await a.commit()
    assert [outcome.error for outcome in await waiting] == ["lease_lost"]
    clock.advance(1)
    assert attempts_of(await pop(b.store, "q")) == [2]


# --- Pop against pop --------------------------------------------------------------------------------------


async def test_two_pops_at_once_take_different_partitions(stage: Stage) -> None:
    """A pops p1 and holds on; B pops and gets p2 without waiting; C gets nothing; A and B commit."""
    a, b, c = await stage.actors(3)
    await with_group(a)
    await a.store.push([batch("q", partition="p1"), batch("q", partition="p2")])
    await a.begin()
    first = await pop(a.store, "q")
    await b.begin()
    second = await pop(b.store, "q")
    assert not await pop(c.store, "q")
    await a.commit()
    await b.commit()
    assert sorted(partitions_of(first) + partitions_of(second)) == ["p1", "p2"]
    assert not await pop(c.store, "q")


async def test_two_pops_of_one_named_partition_give_it_to_one(stage: Stage) -> None:
    """A pops p and holds on; B pops p by name and gets nothing, without waiting, before and after A commits."""
    a, b = await stage.actors(2)
    await with_group(a)
    await push_n(a.store, "q", 2, partition="p")
    await a.begin()
    assert numbers(await pop(a.store, "q", partition="p")) == [1]
    assert not await pop(b.store, "q", partition="p")
    await a.commit()
    assert not await pop(b.store, "q", partition="p")


async def test_pop_that_rolls_back_leaves_its_partition_to_others(stage: Stage) -> None:
    """A pops and rolls back: B pops the same message, and no attempt was counted."""
    a, b = await stage.actors(2)
    await with_group(a)
    await push_n(a.store, "q")
    await a.begin()
    assert numbers(await pop(a.store, "q")) == [1]
    await a.rollback()
    assert attempts_of(await pop(b.store, "q")) == [1]


async def test_many_pops_over_many_partitions_claim_each_once(dsn: str) -> None:
    """Eight stores pop 60 partitions at once, some by name, until nothing is left."""
    stores = [PostgresStore(dsn) for _ in range(8)]
    names = [f"p{number}" for number in range(60)]
    await stores[0].push([batch("q", partition=name) for name in names])

    async def claim(store: PostgresStore, index: int) -> list[str]:
        claimed = []
        for name in names[index::8]:
            claimed += partitions_of(await pop(store, "q", partition=name))
            while popped := await pop(store, "q", partitions=1 + index % 3, batch=10):
                claimed += partitions_of(popped)
        return claimed

    answers = await asyncio.gather(*(claim(store, index) for index, store in enumerate(stores)))
    assert sorted(name for answer in answers for name in answer) == sorted(names)
    await asyncio.gather(*(store.close() for store in stores))


async def test_one_expired_lease_is_taken_by_one_of_many(dsn: str) -> None:
    """Eight stores pop a partition whose lease expired: one gets it, as its second attempt."""
    clock = SetClock()
    stores = [PostgresStore(dsn, clock=clock) for _ in range(8)]
    await push_n(stores[0], "q")
    await pop(stores[0], "q", lease_seconds=1)
    clock.advance(2)
    answers = await asyncio.gather(*(pop(store, "q") for store in stores))
    assert [attempts_of(answer) for answer in answers if answer] == [[2]]
    await asyncio.gather(*(store.close() for store in stores))


# --- Pop that puts a cursor right against push --------------------------------------------------------------

# What a pop asks about the head of a partition waits here until the test lets it go on. It widens the moment
# between two looks at the same partition, if there are two, to as long as the test likes.
PAUSED_LOOK = """
create or replace function lockstep.next_seq(_partition_id bigint, _acked bigint) returns bigint language plpgsql as $$
declare
    _found bigint;
begin
    select greatest(r.first_seq, _acked + 1) into _found from lockstep.next_run(_partition_id, _acked) r;
    if current_setting('application_name') = 'paused' then
        perform pg_advisory_xact_lock(42);
    end if;
    return _found;
end $$
"""


async def test_pop_of_a_due_partition_without_messages_does_not_pass_one_that_comes(
    database_dsn: str, clock: SetClock
) -> None:
    """The cursor is due and has nothing ahead. A's pop looks for a head and finds none; B pushes and commits; A
    looks on: what B pushed is delivered, now or later."""
    async with Stage(database_dsn, clock=clock) as stage:
        a, b, c = await stage.actors(3)
        await with_group(a, delay_seconds=1)
        await push_n(b.store, "q")
        clock.advance(2)
        # A push in flight keeps the pop from writing down that the partition is drained, and then comes to nothing.
        await b.begin()
        await push_n(b.store, "q", start=2)
        assert numbers(await pop(a.store, "q", batch=9, auto_ack=True)) == [1]
        await b.rollback()
        clock.advance(1)
        await c.sql(PAUSED_LOOK)
        await a.sql("set application_name = 'paused'")
        await c.begin()
        await c.sql("select pg_advisory_xact_lock(42)")
        popping = stage.start(pop(a.store, "q", batch=9, auto_ack=True))
        await stage.until_done_or_blocked(popping, a)
        await push_n(b.store, "q", start=3)
        await c.commit()
        found = numbers(await popping)
        clock.advance(100)
        assert found + numbers(await pop(b.store, "q", batch=9)) == [3]

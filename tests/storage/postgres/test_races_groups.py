"""Groups that lack cursors: what others see of them, and who meets whom while the cursors are made in slices."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
import pytest_asyncio

from lockstep.config import Config
from lockstep.core.maintenance import Pruned
from lockstep.core.names import QUEUE_MODE
from lockstep.core.records import Ack, MessageFilter, PendingRequest, Position, Renewal, Subscription, SubscriptionMode
from lockstep.errors import QueueFull
from lockstep.storage.memory import MemoryStore
from lockstep.storage.postgres.store import PostgresStore
from support.builders import (
    ack,
    ack_of,
    batch,
    configure,
    finish_groups,
    lag_of,
    numbers,
    pop,
    pop_all,
    push_n,
)
from support.clock import START, SetClock
from support.sessions import Actor, Stage

NO_TIME = Config(slice_partitions_max=2, slices_seconds_max=0)
"""A call makes one slice of two partitions, so that groups stay unfinished."""
PARTITIONS = 9
MODES: list[SubscriptionMode] = ["all", "new", "from"]
POSITIONS = [
    Position("start"),
    Position("end"),
    Position("time", at=START + timedelta(seconds=10)),
    Position("time", at=START + timedelta(days=1)),
    Position("seq", seq=3),
    Position("seq", seq=99),
]
_UNFINISHED = "select count(*) from lockstep.consumer_group where placed_upto is not null"
_LEFT = "select (select count(*) from lockstep.deleted_group) + (select count(*) from lockstep.missing_cursor)"


@pytest_asyncio.fixture
async def stage(dsn: str, clock: SetClock) -> AsyncIterator[Stage]:
    async with Stage(dsn, clock=clock) as stage:
        yield stage
        store = (await stage.actor()).store
        assert await store.verify() == []
        await finish_groups(store)
        assert await store.verify() == []


@pytest_asyncio.fixture
async def store(dsn: str, clock: SetClock) -> AsyncIterator[PostgresStore]:
    made = PostgresStore(dsn, config=NO_TIME, clock=clock)
    yield made
    await made.close()


async def slow(stage: Stage) -> Actor:
    """One whose calls make one slice of two partitions."""
    actor = await stage.actor()
    actor.store.context.limits.slice_partitions_max = NO_TIME.slice_partitions_max
    actor.store.context.limits.slices_seconds_max = NO_TIME.slices_seconds_max
    return actor


async def fill(store: Any, clock: SetClock) -> None:
    """A message in each partition at START, 10 s later and 20 s later; then another 10 s pass. The first is removed in
    one."""
    for number in range(3):
        await store.push([batch("q", partition=f"p{n}", start=10 * n + number) for n in range(PARTITIONS)])
        clock.advance(10)
    first = (await store.messages(MessageFilter(queue="q", partition="p4"))).items[0].message
    await store.remove_message(first.partition_id, first.id)


async def begin(store: Any, mode: SubscriptionMode, *, group: str = "g") -> None:
    from_at = START + timedelta(seconds=10) if mode == "from" else None
    await store.subscribe("q", group, Subscription(mode, from_at))


async def seen(store: Any) -> dict[str, Any]:
    """All that tells of groups and places, without ids that differ from store to store."""
    statuses = [
        (view.message.partition, view.message.seq, view.status, [(one.group, one.consumed) for one in view.groups])
        for view in (await store.messages(MessageFilter(queue="q"), limit=1000)).items
    ]
    lags = [
        (
            lag.partition,
            lag.group,
            lag.acked,
            lag.last_seq,
            lag.lag,
            lag.oldest_at,
            lag.due_at,
            lag.attempts,
            lag.consumed_at,
        )
        for lag in await store.lag("q")
    ]
    partitions = [(one.name, one.messages, one.pending, one.processing) for one in await store.partitions("q")]
    queue = await store.queue("q")
    overview = await store.overview()
    return {
        "statuses": sorted(statuses, key=str),
        "lags": sorted(lags, key=str),
        "partitions": partitions,
        "groups": await store.groups(queue="q"),
        "depth": await store.depth("q", "g"),
        "queue": (queue.messages, queue.pending, queue.processing),
        "overview": (overview.messages, overview.pending, overview.lag_messages),
        "utilisation": await store.utilisation(queue="q"),
    }


# --- The first pop ---------------------------------------------------------------------------------------


async def test_first_pop_finds_what_maintenance_is_about_to_make_visible(stage: Stage) -> None:
    """Between the commit of a new group and the first slice of its cursors a duty may begin that slice."""
    producer, duty, consumer = await stage.actors(3)
    consumer.store.context.limits.call_lock_seconds = 10
    await push_n(producer.store, "q", 3)
    await create_group(producer)
    await duty.begin()
    assert (await duty.store.prune_groups()).partitions == 1
    popping = await stage.blocked(pop(consumer.store, "q", group="g", batch=10), consumer, by=duty)
    await duty.commit()
    assert numbers(await popping) == [1, 2, 3]


async def test_first_pop_does_not_wait_for_long(stage: Stage) -> None:
    producer, duty, consumer = await stage.actors(3)
    consumer.store.context.limits.call_lock_seconds = 0.01
    await push_n(producer.store, "q", 3)
    await create_group(producer)
    await duty.begin()
    await duty.store.prune_groups()
    assert numbers(await pop(consumer.store, "q", group="g", batch=10)) == []
    await duty.rollback()
    assert numbers(await pop(consumer.store, "q", group="g", batch=10)) == [1, 2, 3]


async def create_group(actor: Actor) -> None:
    """Without cursors."""
    query = "select lockstep.subscribe(q.id, 'g', 'all', null, null, $1) from lockstep.queue q where q.name = 'q'"
    await actor.sql(query, actor.store.context.now())


# --- What others see of an unfinished group ---------------------------------------------------------------


@pytest.mark.parametrize("limited", [False, True])
@pytest.mark.parametrize("mode", MODES)
async def test_new_group_looks_like_one_that_has_all_cursors(
    store: PostgresStore, clock: SetClock, mode: SubscriptionMode, limited: bool
) -> None:
    memory = MemoryStore(clock=clock)
    began = clock.now
    for one in (store, memory):
        clock.now = began
        await configure(one, "q", max_size=100 if limited else 0)
        await fill(one, clock)
        await begin(one, mode)
    rows = await store.database.fetch("unfinished", _UNFINISHED)
    assert rows[0][0] == 1, "it has cursors in two of nine partitions"
    assert await seen(store) == await seen(memory)
    assert await store.verify() == []
    await finish_groups(store)
    assert await seen(store) == await seen(memory)
    assert await store.verify() == []


@pytest.mark.parametrize("limited", [False, True])
@pytest.mark.parametrize("position", POSITIONS, ids=str)
async def test_moved_group_looks_like_one_that_has_all_cursors(
    store: PostgresStore, clock: SetClock, position: Position, limited: bool
) -> None:
    memory = MemoryStore(clock=clock)
    began = clock.now
    for one in (store, memory):
        clock.now = began
        await configure(one, "q", max_size=100 if limited else 0)
        await fill(one, clock)
        await begin(one, "all")
        if one is store:
            await finish_groups(store)
        await pop(one, "q", group="g", partition="p1", batch=1, auto_ack=True)
        await pop(one, "q", group="g", partition="p2", batch=1)
        clock.advance(1)
        assert await one.seek("q", "g", position) == PARTITIONS + 1
    assert await seen(store) == await seen(memory)
    assert await store.leases() == await memory.leases() == []
    assert await store.verify() == []
    await finish_groups(store)
    assert await seen(store) == await seen(memory)
    assert await store.verify() == []


@pytest.mark.parametrize("mode", MODES)
async def test_unfinished_group_is_delivered_what_is_pushed(
    store: PostgresStore, clock: SetClock, mode: SubscriptionMode
) -> None:
    """To partitions that have a cursor and those that lack it; in both, everything comes once and in order."""
    await fill(store, clock)
    await begin(store, mode)
    await store.push([batch("q", 2, partition=f"p{n}", start=10 * n + 5) for n in range(1, PARTITIONS, 2)])
    await push_n(store, "q", partition="late", start=500)
    found: list[Any] = []
    while await store.has_pending([PendingRequest(queue="q", group="g")]) == [True]:
        popped = await pop(store, "q", group="g", batch=1000, partitions=100, auto_ack=True)
        found += popped.messages()
    old = {"all": [0, 1, 2], "new": [], "from": [1, 2]}[mode]
    for n in range(PARTITIONS):
        expected = [10 * n + one for one in old + ([5, 6] if n % 2 else [])]
        if n == 4 and mode == "all":
            expected.pop(0)  # it was removed
        assert numbers([message for message in found if message.partition == f"p{n}"]) == expected
    assert numbers([message for message in found if message.partition == "late"]) == [500]
    assert await store.verify() == []


async def test_first_pop_finds_the_only_partition_that_has_something(store: PostgresStore, clock: SetClock) -> None:
    await store.push([batch("q", partition=f"p{n}") for n in range(PARTITIONS)])
    await store.clear("q")
    clock.advance(10)
    await push_n(store, "q", partition="p7", start=77)
    assert numbers(await pop(store, "q", group="g")) == [77]
    clock.advance(10)
    await store.subscribe("q", "h", Subscription("from", clock.now - timedelta(seconds=15)))
    assert numbers(await pop(store, "q", group="h")) == [77]


async def test_pop_of_a_named_partition_gets_its_cursor_at_once(store: PostgresStore, clock: SetClock) -> None:
    await fill(store, clock)
    await begin(store, "all")
    asked = [PendingRequest(queue="q", group="g", partition="p8")]
    assert await store.has_pending(asked) == [True]
    assert numbers(await pop(store, "q", group="g", partition="p8", batch=9)) == [80, 81, 82]
    assert await store.has_pending(asked) == [False]
    assert (await store.database.fetch("unfinished", _UNFINISHED))[0][0] == 1


@pytest.mark.parametrize("mode", ["ordered", "shared"])
async def test_ack_of_a_message_where_the_group_has_no_cursor(store: PostgresStore, clock: SetClock, mode: Any) -> None:
    await fill(store, clock)
    memory = MemoryStore(clock=clock)
    clock.now = START
    await fill(memory, clock)
    outcomes = []
    for one in (store, memory):
        await one.subscribe("q", "g", Subscription(), mode=mode)
        items = (await one.messages(MessageFilter(queue="q", partition="p8"))).items
        outcomes.append(await one.ack([ack_of(items[1].message, group="g")]))
    assert [outcome.error for outcome in outcomes[0]] == [outcome.error for outcome in outcomes[1]]
    assert (await lag_of(store, "q", group="g", partition="p8")).acked == (
        await lag_of(memory, "q", group="g", partition="p8")
    ).acked


async def test_dead_letter_and_removal_where_the_group_has_no_cursor(store: PostgresStore, clock: SetClock) -> None:
    await configure(store, "q", max_size=100)
    await fill(store, clock)
    await begin(store, "all")
    message = (await store.messages(MessageFilter(queue="q", partition="p8"))).items[0].message
    await store.bury_message(message.partition_id, message.id, group="g")
    message = (await store.messages(MessageFilter(queue="q", partition="p7"))).items[0].message
    await store.remove_message(message.partition_id, message.id)
    assert await store.verify() == []
    assert (await store.depth("q", "g")).pending == 3 * PARTITIONS - 3
    await finish_groups(store)
    assert await store.verify() == []


@pytest.mark.parametrize("mode", MODES)
async def test_clear_of_a_queue_with_an_unfinished_group(
    store: PostgresStore, clock: SetClock, mode: SubscriptionMode
) -> None:
    await configure(store, "q", max_size=100)
    await fill(store, clock)
    await begin(store, mode)
    assert await store.clear("q") == 3 * PARTITIONS - 1
    assert (await store.depth("q", "g")).pending == 0
    assert await store.verify() == []
    await push_n(store, "q", partition="p8", start=88)
    assert numbers(await pop_all(store, "q", group="g")) == [88]
    await finish_groups(store)
    assert await store.verify() == []


async def test_limit_holds_while_groups_are_unfinished(store: PostgresStore, clock: SetClock) -> None:
    """The queue is as full as its furthest group, and never fuller than its limit."""
    await configure(store, "q", max_size=3 * PARTITIONS + 1)
    await fill(store, clock)
    await begin(store, "new", group="new")
    await begin(store, "from", group="from")
    await push_n(store, "q", 2, partition="p8", start=88)
    assert await store.verify() == []
    await finish_groups(store)
    assert await store.verify() == []
    assert (await store.depth("q", "from")).pending == 2 * PARTITIONS + 2
    await begin(store, "all", group="all")
    assert (await store.depth("q", "all")).pending == 3 * PARTITIONS + 1
    with pytest.raises(QueueFull):
        await push_n(store, "q")


# --- A push against a group that lacks the partition's cursor ----------------------------------------------


@pytest.mark.parametrize("mode", MODES)
async def test_push_in_flight_that_does_not_see_the_group(
    stage: Stage, clock: SetClock, mode: SubscriptionMode
) -> None:
    """A has pushed when the group is committed, and holds on; the slices pass its partition by, go to the end, and come
    back when A has committed: `new` takes A's message for old, and A's next one is new."""
    a, b = await stage.actor(), await slow(stage)
    await fill(a.store, clock)
    await a.begin()
    await push_n(a.store, "q", partition="p8", start=88)
    await begin(b.store, mode)
    for _ in range(2 * PARTITIONS):
        await b.store.prune_groups()
    assert await b.sql("select count(*) from lockstep.missing_cursor") == 1
    assert (await b.store.prune_groups()) == Pruned(next=(await b.store.prune_groups()).next)
    found = numbers(await pop_all(b.store, "q", group="g"))
    assert len(found) == {"all": 3 * PARTITIONS - 4, "new": 0, "from": 2 * PARTITIONS - 2}[mode]
    await a.commit()
    await push_n(a.store, "q", partition="p8", start=89)
    assert (
        numbers(await pop_all(b.store, "q", group="g"))
        == {
            "all": [80, 81, 82, 88, 89],
            "new": [89],
            "from": [81, 82, 88, 89],
        }[mode]
    )
    await finish_groups(b.store)
    assert await b.sql(_UNFINISHED) == 0


@pytest.mark.parametrize("mode", MODES)
async def test_push_that_sees_the_group_before_any_slice_does(
    stage: Stage, clock: SetClock, mode: SubscriptionMode
) -> None:
    """The group is committed without a slice, as after kill -9; A pushes to a partition and commits: the cursor is
    there, before A's message."""
    a, b = await stage.actor(), await slow(stage)
    await fill(a.store, clock)
    queue_id = await a.sql("select id from lockstep.queue")
    from_at = START + timedelta(seconds=10) if mode == "from" else None
    await b.sql(
        "select lockstep.subscribe($1, 'g', $2, $3::timestamptz, null, $4::timestamptz)",
        queue_id,
        mode,
        from_at,
        clock.now,
    )
    assert await b.sql("select count(*) from lockstep.cursor") == 0
    await a.store.push([batch("q", 2, partition="p3", start=38), batch("q", partition="p5", start=58)])
    assert await b.sql("select count(*) from lockstep.cursor") == 2
    old = {"all": [0, 1, 2], "new": [], "from": [1, 2]}[mode]
    assert numbers(await pop_all(b.store, "q", group="g", partition="p3")) == [30 + one for one in [*old, 8, 9]]
    assert numbers(await pop_all(b.store, "q", group="g", partition="p5")) == [50 + one for one in [*old, 8]]


async def test_push_that_waits_for_a_slice_wakes_the_group(stage: Stage) -> None:
    """B makes cursors and holds on; A pushes and waits; B commits: the group is delivered A's message."""
    a, b = await stage.actor(), await slow(stage)
    await push_n(a.store, "q", partition="p")
    await a.store.clear("q")
    await b.begin()
    await begin(b.store, "all")
    waiting = await stage.blocked(push_n(a.store, "q", partition="p", start=2), a, by=b)
    await b.commit()
    await waiting
    assert numbers(await pop_all(b.store, "q", group="g")) == [2]


@pytest.mark.parametrize("mode", MODES)
async def test_partition_that_is_created_while_the_group_begins(
    stage: Stage, clock: SetClock, mode: SubscriptionMode
) -> None:
    """A creates a partition and holds on; the group begins without waiting, gets the cursors of all partitions, and is
    not finished; A commits: the group gets the cursor there, too."""
    a, b = await stage.actor(), await slow(stage)
    await fill(a.store, clock)
    await a.begin()
    await push_n(a.store, "q", partition="young", start=500)
    await begin(b.store, mode)
    for _ in range(3 * PARTITIONS):
        await b.store.prune_groups()
    assert await b.sql("select count(*) from lockstep.cursor where group_id > 0") == PARTITIONS
    assert await b.sql(_UNFINISHED) == 1
    await a.commit()
    await finish_groups(b.store)
    assert numbers(await pop_all(b.store, "q", group="g", partition="young")) == ([] if mode == "new" else [500])
    await push_n(a.store, "q", partition="young", start=501)
    assert numbers(await pop_all(b.store, "q", group="g", partition="young")) == [501]


async def test_two_make_the_cursors_of_a_group_at_once(dsn: str) -> None:
    """Four stores pop, push and do the duty at once, each slice two partitions: every message comes once, in order."""
    stores = [PostgresStore(dsn, config=NO_TIME) for _ in range(4)]
    partitions = [f"p{n}" for n in range(40)]
    for name in partitions:
        await push_n(stores[0], "q", 2, partition=name)
    found: list[Any] = []

    async def consume(store: PostgresStore) -> None:
        while await store.has_pending([PendingRequest(queue="q", group="g")]) == [True]:
            popped = await pop(store, "q", group="g", batch=7, partitions=3)
            found.extend(popped.messages())
            if popped:
                await ack(store, lease_id=popped.lease_id)
            await store.prune_groups()

    async def produce() -> None:
        for number in range(3, 6):
            for name in partitions:
                await push_n(stores[3], "q", partition=name, start=number)

    await asyncio.gather(produce(), *(consume(store) for store in stores[:3]))
    await consume(stores[0])
    for name in partitions:
        assert numbers([message for message in found if message.partition == name]) == [1, 2, 3, 4, 5]
    assert await stores[0].verify() == []
    await asyncio.gather(*(store.close() for store in stores))


# --- Moving and deleting ----------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["ordered", "shared"])
async def test_pop_after_a_seek_gets_nothing_from_the_old_place(stage: Stage, clock: SetClock, mode: Any) -> None:
    """A has leased and another process knows the group; B moves it to the end: A's lease is lost everywhere, and
    whoever pops gets nothing, whether the old cursors are still there or not."""
    a, b = await stage.actor(), await slow(stage)
    await fill(a.store, clock)
    await a.store.subscribe("q", "g", Subscription(), mode=mode)
    held = await pop(a.store, "q", group="g", partitions=4, batch=4)
    assert await b.store.seek("q", "g", Position("end")) == PARTITIONS
    assert not await pop_all(a.store, "q", group="g")
    assert (await ack(a.store, lease_id=held.lease_id)).error == "lease_lost"
    assert (await ack(a.store, lease_id=held.lease_id, status="failed")).error == "lease_lost"
    first = next(iter(held.messages()))
    assert (await a.store.ack([ack_of(first, group="g", lease_id=held.lease_id)]))[0].error == "lease_lost"
    await push_n(a.store, "q", partition="p1", start=18)
    assert numbers(await pop_all(a.store, "q", group="g")) == [18]


async def test_seek_does_not_wait_for_a_lease_that_is_being_acked(stage: Stage, clock: SetClock) -> None:
    """A acks and holds on; B moves the group to the start; A commits: the group is at the start."""
    a, b = await stage.actor(), await slow(stage)
    await fill(a.store, clock)
    held = await pop(a.store, "q", group="g", partition="p1", batch=3)
    await a.begin()
    assert (await ack(a.store, lease_id=held.lease_id)).success
    await b.store.seek("q", "g", Position("start"))
    await a.commit()
    assert numbers(await pop(b.store, "q", group="g", partition="p1", batch=3)) == [10, 11, 12]


async def test_seek_of_an_unfinished_group_keeps_when_it_completed_something(
    store: PostgresStore, clock: SetClock
) -> None:
    await fill(store, clock)
    await begin(store, "all")
    await pop(store, "q", group="g", partition="p8", auto_ack=True)
    consumed_at = (await lag_of(store, "q", group="g", partition="p8")).consumed_at
    for position in ("end", "start", "end"):
        await store.seek("q", "g", Position(position))  # type: ignore[arg-type]
        assert (await lag_of(store, "q", group="g", partition="p8")).consumed_at == consumed_at
    await finish_groups(store)
    assert (await lag_of(store, "q", group="g", partition="p8")).consumed_at == consumed_at
    assert (await store.database.fetch("left", _LEFT))[0][0] == 0
    assert (await store.database.fetch("cursors", "select count(*) from lockstep.cursor"))[0][0] == PARTITIONS


async def test_deleted_group_starts_afresh_before_its_cursors_are_gone(store: PostgresStore, clock: SetClock) -> None:
    """As after kill -9 of the process that deletes it, right after the first transaction."""
    await fill(store, clock)
    for group, mode in (("g", "ordered"), ("s", "shared")):
        await store.subscribe("q", group, Subscription(), mode=mode)  # type: ignore[arg-type]
        await finish_groups(store)
        held = await pop(store, "q", group=group, partition="p1")
        queue_id = (await store.queue("q")).id
        await store.database.fetch("delete", "select lockstep.delete_group($1, $2, true, null)", queue_id, group)
        assert await store.leases() == await store.groups() == []
        assert (await store.renew([Renewal(lease_id=str(held.lease_id))]))[0].partitions == 0
        for status in ("completed", "failed"):
            assert (await ack(store, lease_id=held.lease_id, status=status)).error == "lease_lost"
        assert (await store.queue("q")).pending == 3 * PARTITIONS - 1
        assert await store.verify() == []
        assert numbers(await pop(store, "q", group=group, partition="p1", batch=9)) == [10, 11, 12]
        await store.delete_group(group)
    await finish_groups(store)
    assert (await store.database.fetch("cursors", "select count(*) from lockstep.cursor"))[0][0] == 0
    assert (await store.database.fetch("left", _LEFT))[0][0] == 0


async def test_cursor_that_is_made_while_its_group_is_deleted_goes_too(stage: Stage, clock: SetClock) -> None:
    """A pushes, which makes a cursor of an unfinished group, and holds on; B deletes the group, and goes over all
    partitions; A commits: its cursor goes with a later round."""
    a, b = await stage.actor(), await slow(stage)
    await fill(a.store, clock)
    await begin(b.store, "new")
    await a.begin()
    await push_n(a.store, "q", partition="p8", start=88)
    assert await b.store.delete_group("g") == PARTITIONS
    for _ in range(2 * PARTITIONS):
        await b.store.prune_groups()
    assert await b.sql("select count(*) from lockstep.deleted_group") == 1
    await a.commit()
    assert await b.sql("select count(*) from lockstep.cursor") == 1
    await finish_groups(b.store)
    assert await b.sql("select count(*) from lockstep.cursor") == 0


async def test_what_a_deleted_group_has_left_holds_nothing_back(store: PostgresStore, clock: SetClock) -> None:
    """Completed retention asks the groups that exist; eviction takes only what one of those still waits for."""
    await configure(store, "q", retention_enabled=True, completed_retention_seconds=60, max_wait_seconds=0)
    await fill(store, clock)
    await begin(store, "all", group="idle")
    await begin(store, "all")
    await finish_groups(store)
    await pop_all(store, "q", group="g")
    queue_id = (await store.queue("q")).id
    await store.database.fetch("delete", "select lockstep.delete_group($1, 'idle', true, null)", queue_id)
    clock.advance(3600)
    await configure(store, "q", max_wait_seconds=60)
    assert await store.prune("eviction", limit=1000) == Pruned()
    await configure(store, "q", retention_enabled=True, completed_retention_seconds=60)
    assert (await store.prune("completed_retention", limit=1000)).messages == 3 * PARTITIONS - 1


# --- What is removed while a group is unfinished -----------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
async def test_completed_retention_leaves_what_an_unfinished_group_is_to_see(
    store: PostgresStore, clock: SetClock, mode: SubscriptionMode
) -> None:
    await configure(store, "q", retention_enabled=True, completed_retention_seconds=1)
    await fill(store, clock)
    await pop_all(store, "q", group="done")
    await finish_groups(store)
    await pop_all(store, "q", group="done")
    await begin(store, mode)
    removed = (await store.prune("completed_retention", limit=1000)).messages
    assert removed == {"all": 0, "new": 3 * PARTITIONS - 1, "from": PARTITIONS - 1}[mode]
    await finish_groups(store)
    assert len(await pop_all(store, "q", group="g")) == 3 * PARTITIONS - 1 - removed
    assert await store.verify() == []


async def test_group_waits_for_completed_retention_in_flight(stage: Stage, clock: SetClock) -> None:
    """A removes what all groups have completed, and holds on; B subscribes and waits; A commits: the group begins with
    what is left, and nothing that it was shown goes."""
    a, b = await stage.actors(2)
    await configure(a.store, "q", retention_enabled=True, completed_retention_seconds=60)
    await push_n(a.store, "q", 2)
    await pop_all(a.store, "q")
    clock.advance(100)
    await push_n(a.store, "q", start=3)
    await a.begin()
    assert (await a.store.prune("completed_retention", limit=10)).messages == 2
    waiting = await stage.blocked(begin(b.store, "all"), b, by=a)
    await a.commit()
    await waiting
    assert (await lag_of(b.store, "q", group="g")).lag == 1


async def test_completed_retention_that_waits_for_a_seek_removes_nothing(stage: Stage, clock: SetClock) -> None:
    """B moves the group to the start and holds on; A removes what is completed, and waits; B commits: it stays."""
    a, b = await stage.actors(2)
    await configure(a.store, "q", retention_enabled=True, completed_retention_seconds=60)
    await push_n(a.store, "q", 2)
    await pop_all(a.store, "q", group="g")
    clock.advance(100)
    await b.begin()
    await b.store.seek("q", "g", Position("start"))
    waiting = await stage.blocked(a.store.prune("completed_retention", limit=10), a, by=b)
    await b.commit()
    assert (await waiting).messages == 0
    assert numbers(await pop_all(b.store, "q", group="g")) == [1, 2]


async def test_idle_partition_goes_while_a_group_is_unfinished(store: PostgresStore, clock: SetClock) -> None:
    await fill(store, clock)
    await store.clear("q", partition="p8")
    await begin(store, "all")
    await store.sample()
    await store.prune_partitions(60, limit=100)
    clock.advance(100)
    assert (await store.prune_partitions(60, limit=100)).partitions == 1
    await finish_groups(store)
    assert [one.partition for one in await store.lag("q", group="g")].count("p8") == 0
    await push_n(store, "q", partition="p8", start=88)
    assert numbers(await pop_all(store, "q", group="g", partition="p8")) == [88]
    assert await store.verify() == []


async def test_samples_count_nothing_twice_while_a_group_is_unfinished(store: PostgresStore, clock: SetClock) -> None:
    memory = MemoryStore(clock=clock)
    began = clock.now
    taken = []
    for one in (store, memory):
        clock.now = began
        await configure(one, "q")
        await fill(one, clock)
        await begin(one, "new", group="new")
        await begin(one, "all")
        await one.sample()
        clock.advance(60)
        await pop(one, "q", group="g", partition="p1", batch=2, auto_ack=True)
        await one.sample()
        clock.advance(60)
        await one.seek("q", "g", Position("start"))
        await one.sample()
        if one is store:
            await finish_groups(store)
        clock.advance(60)
        await one.sample()
        taken.append([(s.at, s.pushed, s.completed, s.pending) for s in await one.samples(queue="q")])
    assert taken[0] == taken[1]


async def test_verify_and_repair_leave_an_unfinished_group_where_it_began(
    store: PostgresStore, clock: SetClock
) -> None:
    await fill(store, clock)
    await begin(store, "new")
    assert await store.repair() == []
    await store.database.fetch(
        "break", "delete from lockstep.cursor where partition_id = (select min(partition_id) from lockstep.cursor)"
    )
    await finish_groups(store)
    assert not await pop_all(store, "q", group="g")


async def test_first_pop_asks_for_nothing_else(store: PostgresStore, clock: SetClock) -> None:
    """Queue mode begins like any group."""
    await fill(store, clock)
    held = await pop(store, "q", batch=2, partitions=2)
    assert len(held) == 2
    assert await store.ack([Ack(lease_id=held.lease_id)]) != []
    assert (await store.depth("q", QUEUE_MODE)).pending == 3 * PARTITIONS - 3

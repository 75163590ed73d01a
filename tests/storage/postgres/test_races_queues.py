"""Queues and groups that appear and vanish while others push, pop and ack; and names that a store remembers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from lockstep.core.applying import ApplyLimits
from lockstep.core.names import QUEUE_MODE
from lockstep.core.operations import NewOperation
from lockstep.core.records import Ack, PendingRequest, Position, Subscription, SubscriptionMode
from lockstep.errors import GroupNotFound
from lockstep.storage.postgres.store import PostgresStore
from support.builders import (
    ack,
    batch,
    configure,
    finish_groups,
    lag_of,
    numbers,
    partitions_of,
    pop,
    pop_all,
    push_n,
    push_tagged,
    seqs,
)
from support.sessions import Actor, Stage

MODES: list[SubscriptionMode] = ["all", "new"]


@pytest_asyncio.fixture
async def stores(dsn: str) -> AsyncIterator[tuple[PostgresStore, PostgresStore]]:
    """Two servers: each remembers names on its own."""
    stores = PostgresStore(dsn), PostgresStore(dsn)
    yield stores
    assert await stores[0].verify() == []
    await asyncio.gather(*(store.close() for store in stores))


async def subscribe(actor: Actor, group: str = "g", mode: SubscriptionMode = "all") -> None:
    await actor.store.subscribe("q", group, Subscription(mode))


async def cursors(actor: Actor, group: str = "g") -> list[str]:
    return [lag.partition for lag in await actor.store.lag("q", group=group)]


# --- A new group against a new partition ------------------------------------------------------------------


async def test_group_does_not_wait_for_a_new_partition_and_gets_a_cursor_there(stage: Stage) -> None:
    """A creates a partition and holds on; B creates a group, and is delivered what is committed; A commits: the group
    has a cursor there."""
    a, b = await stage.actors(2)
    await push_n(a.store, "q", partition="old")
    await a.begin()
    await push_n(a.store, "q", partition="new", start=2)
    await subscribe(b)
    assert numbers(await pop(b.store, "q", group="g")) == [1]
    await b.store.seek("q", "g", Position("start"))
    await a.commit()
    assert await cursors(b) == ["old", "new"]
    assert sorted(numbers(await pop_all(b.store, "q", group="g"))) == [1, 2]


async def test_new_partition_that_waits_for_a_group_has_its_cursor(stage: Stage) -> None:
    """B creates a group and holds on; A pushes to a new partition and waits; B commits: it has a cursor."""
    a, b = await stage.actors(2)
    await push_n(a.store, "q", partition="old")
    await b.begin()
    await subscribe(b)
    waiting = await stage.blocked(push_n(a.store, "q", partition="new", start=2), a, by=b)
    await b.commit()
    await waiting
    assert await cursors(b) == ["old", "new"]
    assert sorted(numbers(await pop_all(b.store, "q", group="g"))) == [1, 2]


async def test_group_that_rolls_back_leaves_no_cursor(stage: Stage) -> None:
    """B creates a group and holds on; A pushes to a new partition and waits; B rolls back."""
    a, b = await stage.actors(2)
    await push_n(a.store, "q", partition="old")
    await b.begin()
    await subscribe(b)
    waiting = await stage.blocked(push_n(a.store, "q", partition="new", start=2), a, by=b)
    await b.rollback()
    await waiting
    with pytest.raises(GroupNotFound):
        await cursors(b)
    assert sorted(numbers(await pop_all(b.store, "q", group="g"))) == [1, 2]


async def test_groups_and_partitions_created_at_once_all_meet(dsn: str) -> None:
    """Four stores create groups while four create partitions, some of them the same: every pair has a cursor."""
    stores = [PostgresStore(dsn) for _ in range(8)]
    await push_n(stores[0], "q", partition="first")

    async def create_groups(store: PostgresStore, index: int) -> None:
        for number in range(6):
            await store.subscribe("q", f"g{(index + number) % 8}", Subscription())

    async def create_partitions(store: PostgresStore, index: int) -> None:
        for number in range(12):
            await store.push([batch("q", partition=f"p{(index * 5 + number + more) % 24}") for more in range(2)])

    await asyncio.gather(
        *(create_groups(store, index) for index, store in enumerate(stores[:4])),
        *(create_partitions(store, index) for index, store in enumerate(stores[4:])),
    )
    assert await stores[0].verify() == []
    groups = await stores[0].groups(queue="q")
    assert len(groups) == 8
    assert {group.partitions for group in groups} == {(await stores[0].queue("q")).partitions}
    assert {group.lag for group in groups} == {(await stores[0].queue("q")).messages}
    await asyncio.gather(*(store.close() for store in stores))


# --- A new group against a push ---------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
async def test_group_does_not_wait_for_a_push_in_flight(stage: Stage, mode: SubscriptionMode) -> None:
    """A pushes and holds on; B subscribes and does not wait; A commits: to `all` the message is there, to `new` it is
    old; and the next one reaches both."""
    a, b = await stage.actors(2)
    await push_n(a.store, "q")
    await a.begin()
    await push_n(a.store, "q", start=2)
    await subscribe(b, mode=mode)
    assert await b.store.has_pending([PendingRequest(queue="q", group="g")]) == [True]
    await a.commit()
    assert numbers(await pop_all(b.store, "q", group="g")) == ([1, 2] if mode == "all" else [])
    await push_n(a.store, "q", start=3)
    assert numbers(await pop_all(b.store, "q", group="g")) == [3]


@pytest.mark.parametrize("mode", MODES)
async def test_push_that_waits_for_a_group_wakes_it(stage: Stage, mode: SubscriptionMode) -> None:
    """B subscribes and holds on; A pushes and waits; B commits: the group is delivered A's message."""
    a, b = await stage.actors(2)
    await push_n(a.store, "q")
    await b.begin()
    await subscribe(b, mode=mode)
    waiting = await stage.blocked(push_n(a.store, "q", start=2), a, by=b)
    await b.commit()
    await waiting
    assert numbers(await pop_all(b.store, "q", group="g")) == ([1, 2] if mode == "all" else [2])


async def test_first_pop_of_a_group_by_two_at_once_creates_it_once(stage: Stage) -> None:
    """A's pop creates the group and holds on; B's pop, of the same group, waits; A commits: B gets the rest."""
    a, b = await stage.actors(2)
    await a.store.push([batch("q", partition="p1"), batch("q", partition="p2", start=2)])
    await a.begin()
    first = await pop(a.store, "q", group="g")
    waiting = await stage.blocked(pop(b.store, "q", group="g"), b, by=a)
    await a.commit()
    assert sorted(numbers(first) + numbers(await waiting)) == [1, 2]
    assert [group.name for group in await a.store.groups(queue="q")] == ["g"]


async def test_first_push_to_a_queue_by_two_at_once_creates_it_once(stage: Stage) -> None:
    """A's push creates queue and partition and holds on; B's push waits; A commits: seqs 1 and 2."""
    a, b = await stage.actors(2)
    await a.begin()
    await push_n(a.store, "q")
    waiting = await stage.blocked(push_n(b.store, "q", start=2), b, by=a)
    assert not await pop((await stage.actor()).store, "q")
    await a.commit()
    assert [receipt.seq for receipt in await waiting] == [2]
    assert len(await a.store.queues()) == 1


async def test_queue_of_a_first_push_that_rolls_back_is_not_there(stage: Stage) -> None:
    """A's push creates the queue and rolls back: to A's own store it does not exist either; a push makes it anew."""
    a, b = await stage.actors(2)
    await a.begin()
    await push_n(a.store, "q", partition="p")
    await a.rollback()
    assert await b.store.queues() == []
    assert not await pop(a.store, "q")
    assert await a.store.has_pending([PendingRequest(queue="q"), PendingRequest(queue="q", partition="p")]) == [
        False,
        False,
    ]
    assert [receipt.seq for receipt in await push_n(a.store, "q", partition="p")] == [1]


# --- Deleting a queue -------------------------------------------------------------------------------------


async def test_delete_that_waits_for_a_push_in_flight_takes_its_messages_along(stage: Stage) -> None:
    """A pushes and holds on; B deletes the queue and waits; A commits: all is gone. A pushes again: a new queue."""
    a, b = await stage.actors(2)
    await push_n(a.store, "q", transaction_ids=["t"], trace_ids=["0190a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2b"])
    await pop(a.store, "q", group="g")
    await a.begin()
    await push_n(a.store, "q", start=2)
    waiting = await stage.blocked(b.store.delete_queue("q"), b, by=a)
    await a.commit()
    assert await waiting
    assert await b.store.queues() == []
    [receipt] = await push_n(a.store, "q", start=3, transaction_ids=["t"])
    assert (receipt.status, receipt.seq) == ("queued", 1)
    assert numbers(await pop(a.store, "q", group="g")) == [3]


async def test_push_that_waits_for_a_delete_starts_afresh(stage: Stage) -> None:
    """B deletes the queue and holds on; A, who knows its names, pushes and waits; B commits: a new queue."""
    a, b = await stage.actors(2)
    await push_n(a.store, "q", 3)
    await b.begin()
    assert await b.store.delete_queue("q")
    waiting = await stage.blocked(push_n(a.store, "q", start=4), a, by=b)
    await b.commit()
    assert [receipt.seq for receipt in await waiting] == [1]
    assert numbers(await pop(b.store, "q", batch=9)) == [4]


async def test_first_push_of_a_store_that_waits_for_a_delete_starts_afresh(stage: Stage) -> None:
    """B deletes the queue and holds on; A, who does not know it yet, pushes and waits; B commits: a new queue."""
    a, b = await stage.actors(2)
    await push_n(b.store, "q", 3)
    await b.begin()
    assert await b.store.delete_queue("q")
    waiting = await stage.blocked(push_n(a.store, "q", start=4), a, by=b)
    await b.commit()
    assert [receipt.seq for receipt in await waiting] == [1]


async def test_push_from_sql_that_waits_for_a_delete_starts_afresh(stage: Stage) -> None:
    """B deletes the queue and holds on; A pushes in SQL and waits; B commits: a new queue, and no error."""
    a, b = await stage.actors(2)
    await push_n(b.store, "q", 3)
    await b.begin()
    assert await b.store.delete_queue("q")
    waiting = await stage.blocked(a.sql("select lockstep.push('q', 'Default', '{\"n\": 4}')"), a, by=b)
    await b.commit()
    await waiting
    assert numbers(await pop(b.store, "q", batch=9)) == [4]


async def test_push_that_waits_for_a_delete_that_rolls_back_goes_on(stage: Stage) -> None:
    """B deletes the queue and holds on; A pushes and waits; B rolls back: A's seq follows the old ones."""
    a, b = await stage.actors(2)
    await push_n(a.store, "q", 3)
    await b.begin()
    assert await b.store.delete_queue("q")
    waiting = await stage.blocked(push_n(a.store, "q", start=4), a, by=b)
    await b.rollback()
    assert [receipt.seq for receipt in await waiting] == [4]


async def test_delete_that_waits_for_a_pop_leaves_nothing_of_its_lease(stage: Stage) -> None:
    """A pops and holds on; B deletes the queue and waits; A commits: A's ack finds its lease lost."""
    a, b = await stage.actors(2)
    await push_n(a.store, "q")
    await subscribe(a)
    await a.begin()
    popped = await pop(a.store, "q", group="g")
    waiting = await stage.blocked(b.store.delete_queue("q"), b, by=a)
    await a.commit()
    assert await waiting
    assert (await ack(a.store, lease_id=popped.lease_id)).error == "lease_lost"


async def test_delete_that_waits_for_an_ack(stage: Stage) -> None:
    """A acks to a dead letter and holds on; B deletes the queue and waits; A commits: nothing is left."""
    a, b = await stage.actors(2)
    await push_n(a.store, "q")
    popped = await pop(a.store, "q")
    await a.begin()
    assert (await ack(a.store, lease_id=popped.lease_id, status="dlq")).dead
    waiting = await stage.blocked(b.store.delete_queue("q"), b, by=a)
    await a.commit()
    assert await waiting
    for table in ("queue", "partition", "segment", "run", "consumer_group", "cursor", "dead_letter", "depth"):
        assert await b.sql(f"select count(*) from lockstep.{table}") == 0, table


async def test_two_deletes_at_once_delete_once(stage: Stage) -> None:
    """A deletes and holds on; B deletes and waits; A commits: B found nothing."""
    a, b = await stage.actors(2)
    await push_n(a.store, "q")
    await a.begin()
    assert await a.store.delete_queue("q")
    waiting = await stage.blocked(b.store.delete_queue("q"), b, by=a)
    await a.commit()
    assert not await waiting


# --- Names that are out of date ---------------------------------------------------------------------------

Stores = tuple[PostgresStore, PostgresStore]


async def test_push_to_a_queue_that_another_server_deleted(stores: Stores) -> None:
    here, there = stores
    await push_n(here, "q", 2, partition="p")
    assert await there.delete_queue("q")
    assert [receipt.seq for receipt in await push_n(here, "q", partition="p")] == [1]


async def test_push_to_a_queue_that_another_server_deleted_and_made_again(stores: Stores) -> None:
    """The partition that is remembered is gone, and another of the same name is there."""
    here, there = stores
    await here.push([batch("q", 2, partition="p"), batch("q", partition="r")])
    assert await there.delete_queue("q")
    await push_n(there, "q", 3, partition="p")
    receipts = await here.push([batch("q", partition="p", start=4), batch("q", partition="s", start=5)])
    assert [receipt.seq for receipt in receipts] == [4, 1]
    assert sorted(numbers(await pop_all(there, "q"))) == [1, 2, 3, 4, 5]


async def test_push_to_two_queues_of_which_one_was_deleted(stores: Stores) -> None:
    here, there = stores
    both = [batch("kept"), batch("gone")]
    await here.push(both)
    assert await there.delete_queue("gone")
    assert [(receipt.queue, receipt.seq) for receipt in await here.push(both)] == [("kept", 2), ("gone", 1)]


async def test_pop_from_a_queue_that_another_server_deleted(stores: Stores) -> None:
    here, there = stores
    await push_n(here, "q", 2, partition="p")
    await pop(here, "q", partition="p", auto_ack=True)
    assert await there.delete_queue("q")
    assert not await pop(here, "q")
    assert not await pop(here, "q", partition="p")
    await push_n(there, "q", partition="p", start=7)
    assert numbers(await pop(here, "q", partition="p")) == [7]


async def test_pending_of_a_queue_that_another_server_deleted_is_not_falsely_false(stores: Stores) -> None:
    here, there = stores
    request = [PendingRequest(queue="q"), PendingRequest(queue="q", partition="p")]
    await push_n(here, "q", partition="p")
    await pop_all(here, "q")
    assert await here.has_pending(request) == [False, False]
    assert await there.delete_queue("q")
    await push_n(there, "q", partition="p")
    await there.subscribe("q", QUEUE_MODE, Subscription())
    assert await here.has_pending(request) == [True, True]
    assert len(await pop(here, "q")) == 1


async def test_group_that_another_server_deleted_starts_afresh(stores: Stores) -> None:
    here, there = stores
    await push_n(here, "q", 2)
    held = await pop(here, "q", group="g")
    assert await there.delete_group("g", queue="q") == 1
    assert (await ack(here, lease_id=held.lease_id)).error == "lease_lost"
    assert await here.has_pending([PendingRequest(queue="q", group="g")]) == [True]
    assert seqs(await pop(here, "q", group="g", batch=9)) == [1, 2]


async def test_group_that_another_server_deleted_is_sought_and_measured_as_what_it_is(stores: Stores) -> None:
    here, there = stores
    await push_n(here, "q", 2)
    await pop(here, "q", group="g", auto_ack=True)
    assert await there.delete_group("g") == 1
    with pytest.raises(GroupNotFound):
        await here.seek("q", "g", Position("end"))
    with pytest.raises(GroupNotFound):
        await here.lag("q", group="g")


async def test_pop_of_a_namespace_whose_queue_and_group_another_server_deleted(stores: Stores) -> None:
    here, there = stores
    for queue in ("shop.a", "shop.b", "shop.c"):
        await push_n(here, queue)
        assert numbers(await pop(here, queue, group="g", auto_ack=True)) == [1]
    await there.delete_queue("shop.a")
    await there.delete_group("g", queue="shop.b")
    await push_n(there, "shop.c", start=2)
    popped = await pop(here, namespace="shop", group="g", partitions=9, batch=9)
    assert [(message.queue, message.seq) for message in popped.messages()] == [("shop.b", 1), ("shop.c", 2)]


async def test_limit_that_another_server_set_is_obeyed(stores: Stores) -> None:
    here, there = stores
    await push_n(here, "q", 2)
    await configure(there, "q", max_size=10)
    [receipt] = await push_n(here, "q")
    assert (receipt.depth, receipt.remaining) == (3, 7)
    await configure(there, "q")
    assert [receipt.depth for receipt in await push_n(here, "q")] == [None]


async def test_transaction_with_names_that_another_server_made_stale(stores: Stores) -> None:
    here, there = stores
    await push_n(here, "in", 2)
    await push_n(here, "out", 5)
    popped = await pop(here, "in")
    assert await there.delete_queue("out")
    result = await here.transaction([Ack(lease_id=popped.lease_id)], [batch("out", start=6)])
    assert [receipt.seq for receipt in result.pushed] == [1]
    assert (await lag_of(here, "in")).acked == 1


async def test_operation_with_names_that_another_server_made_stale(stores: Stores) -> None:
    here, there = stores
    await push_n(here, "q")
    assert await there.delete_queue("q")
    assert len(await here.queue_operations([NewOperation([batch("q", start=2)])])) == 1
    await here.apply_operations("push", by="here", limits=ApplyLimits())
    assert numbers(await pop(there, "q")) == [2]


async def test_message_is_retried_with_names_that_another_server_made_stale(stores: Stores) -> None:
    here, there = stores
    await push_n(here, "q")
    assert await there.delete_queue("q")
    await push_tagged(there, "q", "a")
    popped = await pop(there, "q")
    partition_id = popped.runs[0].partition_id
    await ack(there, lease_id=popped.lease_id, partition_id=partition_id, seq=1, status="dlq")
    assert (await here.retry_message(partition_id, "a")).seq == 2


@pytest.mark.parametrize("verb", ["ack", "bury", "pop"])
async def test_message_dies_into_a_dead_queue_that_another_server_made_anew(stores: Stores, verb: str) -> None:
    here, there = stores
    await configure(here, "dead")
    await configure(here, "q", dead_queue="dead", retry_limit=0)
    await push_tagged(here, "q", "a", "b")
    popped = await pop(here, "q", batch=1)
    await ack(here, lease_id=popped.lease_id, partition_id=popped.runs[0].partition_id, seq=1, status="dlq")
    assert len(await pop_all(here, "dead")) == 1
    await configure(there, "q")
    assert await there.delete_queue("dead")
    await configure(there, "dead")
    await configure(there, "q", dead_queue="dead", retry_limit=0)
    if verb == "bury":
        await here.bury_message(popped.runs[0].partition_id, "b")
    elif verb == "ack":
        popped = await pop(here, "q", batch=1)
        await ack(here, lease_id=popped.lease_id, partition_id=popped.runs[0].partition_id, seq=2, status="dlq")
    else:
        await pop(here, "q", batch=1, lease_seconds=0.001)
        while not await pop(there, "dead", group="watching"):
            assert not await pop(here, "q")
    assert len(await pop_all(there, "dead")) == 1


async def forgetting(store: PostgresStore, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the store forget the queue q while a call of the database is on its way."""
    real = store.database.on

    async def on(connection: Any, name: str, query: str, *args: object) -> list[Any]:
        rows = await real(connection, name, query, *args)
        if name == call:
            store.context.names.forget("q")
        return rows

    monkeypatch.setattr(store.database, "on", on)


@pytest.mark.parametrize("call", ["queue_find", "partition_find", "group_find", "subscribe"])
async def test_names_that_are_forgotten_while_they_are_looked_up(
    stores: Stores, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = stores
    await push_n(there, "q", partition="p")
    await forgetting(here, call, monkeypatch)
    assert await here.has_pending([PendingRequest(queue="q", partition="p")]) == [True]
    assert numbers(await pop(here, "q", partition="p", mode="ordered")) == [1]
    await push_n(here, "q", 1, partition="p", start=2)
    assert numbers(await pop(there, "q", partition="p", group="g", batch=9)) == [1, 2]


async def test_copies_go_back_to_a_queue_that_is_forgotten_in_this_moment(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, _ = stores
    await configure(here, "dead")
    await configure(here, "q", dead_queue="dead", retry_limit=0)
    await push_n(here, "q")
    popped = await pop(here, "q")
    await ack(here, lease_id=popped.lease_id, partition_id=popped.runs[0].partition_id, seq=1, status="dlq")
    real = here.context.converse
    times = 0

    async def converse(*args: Any) -> Any:
        nonlocal times
        result = await real(*args)
        times += 1
        if times == 1:
            here.context.names.forget("q")
        return result

    monkeypatch.setattr(here.context, "converse", converse)
    assert await here.redrive_queue("dead") == 1
    assert len(await pop_all(here, "q")) == 1


# --- Deleting a group -------------------------------------------------------------------------------------


async def test_delete_group_does_not_wait_for_an_ack(stage: Stage) -> None:
    """A acks and holds on; B deletes the group; A commits: the group is gone, and starts afresh; nothing of the old one
    is left in the end."""
    a, b = await stage.actors(2)
    await push_n(a.store, "q", 2)
    popped = await pop(a.store, "q", group="g")
    await a.begin()
    assert (await ack(a.store, lease_id=popped.lease_id)).success
    assert await b.store.delete_group("g", queue="q") == 1
    await a.commit()
    assert seqs(await pop(a.store, "q", group="g", batch=9)) == [1, 2]
    await finish_groups(b.store)
    assert await b.sql("select count(*) from lockstep.cursor") == 1


async def test_push_beside_a_group_being_deleted_and_made_again(stage: Stage) -> None:
    """B deletes a drained group and holds on; A pushes; B commits; the group is made anew and is delivered all."""
    a, b = await stage.actors(2)
    await push_n(a.store, "q")
    await pop_all(a.store, "q", group="g")
    await b.begin()
    assert await b.store.delete_group("g", queue="q") == 1
    pushing = stage.start(push_n(a.store, "q", start=2))
    await stage.until_done_or_blocked(pushing, a)
    await b.commit()
    await pushing
    assert numbers(await pop_all(a.store, "q", group="g")) == [1, 2]


async def test_pop_does_not_wait_for_a_group_being_deleted(stage: Stage) -> None:
    """B deletes the group and holds on; A pops and gets nothing, without waiting; B rolls back: A gets all."""
    a, b = await stage.actors(2)
    await a.store.push([batch("q", partition="p1"), batch("q", partition="p2")])
    await subscribe(a)
    assert not await pop(a.store, "q", group="g", partition="nowhere")
    await b.begin()
    assert await b.store.delete_group("g", queue="q") == 2
    assert not await pop(a.store, "q", group="g", partitions=2, batch=2)
    await b.rollback()
    assert sorted(partitions_of(await pop(a.store, "q", group="g", partitions=2, batch=2))) == ["p1", "p2"]

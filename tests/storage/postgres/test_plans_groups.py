"""What groups cost among many partitions, while statistics know of one: a slice reads what it makes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import pytest_asyncio

from lockstep.core.names import QUEUE_MODE
from lockstep.core.policy import QueueOptions
from lockstep.core.records import MessageFilter, Position, Subscription, SubscriptionMode
from lockstep.storage.postgres.lookups import Lookups
from lockstep.storage.postgres.store import PostgresStore
from support.builders import batch, numbers, pop, pop_all, push_n
from support.clock import SetClock
from support.sessions import Actor, Stage

PARTITIONS = 6_000
SLICE = 50
READ_MAX = SLICE * 20
"""Rows that one slice may read in all tables; a walk through all partitions would read 6,000 in one."""

_READ = """
select sum(seq_tup_read + coalesce(idx_tup_fetch, 0))::bigint
from pg_stat_xact_user_tables where schemaname = 'lockstep'
"""
_NO_AUTOVACUUM = """
do $$
declare _table regclass;
begin
    for _table in select c.oid from pg_class c where c.relnamespace = 'lockstep'::regnamespace and c.relkind = 'r' loop
        execute format('alter table %s set (autovacuum_enabled = false)', _table);
    end loop;
end $$
"""


@pytest.fixture
def dsn(database_dsn: str) -> str:
    return database_dsn


@pytest_asyncio.fixture
async def actor(dsn: str, clock: SetClock) -> AsyncIterator[Actor]:
    """Its plans are made, and its tables analyzed, while there is one partition; then there are many."""
    async with Stage(dsn, clock=clock) as stage:
        actor = await stage.actor()
        store = actor.store
        await actor.connection.execute(_NO_AUTOVACUUM)
        store.context.limits.slice_partitions_max = SLICE
        store.context.limits.slices_seconds_max = 0
        await push_n(store, "q")
        for group in ("g", QUEUE_MODE):
            assert len(await pop_all(store, "q", group=group)) == 1
            await store.seek("q", group, Position("start"))
            await store.delete_group(group, queue="q")
        while (await store.prune_groups()).next is not None:
            pass
        await actor.connection.execute("analyze")
        for first in range(0, PARTITIONS, 1_000):
            await store.push([batch("q", partition=f"p{n}", start=n) for n in range(first, first + 1_000)])
        clock.advance(10)
        yield actor


async def rows_read(actor: Actor, call: Awaitable[Any]) -> int:
    await actor.begin()
    before = (await actor.connection.fetch(_READ))[0][0]
    await call
    read: int = (await actor.connection.fetch(_READ))[0][0] - before
    await actor.commit()
    return read


@pytest.mark.parametrize("mode", ["all", "new", "from"])
async def test_first_pop_reads_a_slice(actor: Actor, clock: SetClock, mode: SubscriptionMode) -> None:
    request = Subscription(mode, clock.now if mode == "from" else None)
    await push_n(actor.store, "q", partition="p77", start=-1)
    read = await rows_read(actor, pop(actor.store, "q", group="g", batch=10, partitions=10, subscription=request))
    assert read < READ_MAX
    await push_n(actor.store, "q", partition="p4000", start=-2)
    found = numbers(await pop(actor.store, "q", group="g", partition="p4000", batch=10))
    assert found == ([4000, -2] if mode == "all" else [-2])


async def test_slices_read_what_they_make(actor: Actor) -> None:
    await actor.store.subscribe("q", "g", Subscription())
    for _ in range(5):
        assert await rows_read(actor, actor.store.prune_groups()) < READ_MAX


async def test_push_to_a_partition_without_a_cursor_reads_that_partition(actor: Actor) -> None:
    await actor.store.subscribe("q", "g", Subscription("new"))
    assert await rows_read(actor, push_n(actor.store, "q", partition="p4000", start=-1)) < 120


async def test_seek_and_delete_read_a_slice(actor: Actor) -> None:
    """Beside the partitions, which they count."""
    store = actor.store
    await store.subscribe("q", "g", Subscription())
    assert await rows_read(actor, store.seek("q", "g", Position("end"))) < PARTITIONS + READ_MAX
    assert await rows_read(actor, store.delete_group("g", queue="q")) < PARTITIONS + READ_MAX
    for _ in range(5):
        assert await rows_read(actor, store.prune_groups()) < READ_MAX


WALKS: dict[str, Callable[[PostgresStore], Awaitable[Any]]] = {
    "expiry": lambda store: store.prune("expiry", limit=SLICE),
    "sample": lambda store: store.sample(seconds_max=0),
    "verify": lambda store: store.verify_slice(partitions=SLICE),
    "lag": lambda store: store.lag("q", after_partition_id=4_000, limit=SLICE),
    "partitions": lambda store: store.partitions("q", after="p4", limit=20),
}


@pytest.mark.parametrize("walk", WALKS)
async def test_walks_read_a_slice(actor: Actor, walk: str) -> None:
    store = actor.store
    await store.configure("q", QueueOptions(max_wait_seconds=3600, ttl_seconds=3600))
    await store.subscribe("q", "g", Subscription())
    store.context.limits.samples_partitions_max = SLICE
    assert await rows_read(actor, WALKS[walk](store)) < 2 * READ_MAX


async def test_lists_over_a_queue_that_was_never_walked_over_read_a_slice(actor: Actor) -> None:
    store = actor.store
    store.context.limits.figures_units_max = SLICE
    assert await rows_read(actor, store.configure("q", QueueOptions(lease_seconds=9))) < READ_MAX
    assert await rows_read(actor, store.subscribe("q", "g", Subscription())) < READ_MAX
    assert await rows_read(actor, store.groups(queue="q")) < READ_MAX
    assert await rows_read(actor, store.queues()) < READ_MAX


async def test_clear_and_deletion_of_a_queue_read_slices(actor: Actor) -> None:
    """A call that goes over all partitions reads each of them in one slice, and not all of them in every slice."""
    store = actor.store
    database = store.database
    queue_id = await Lookups(store.context).queue_id("q")
    clear = database.fetch("places", "select lockstep.clear_places($1, null, 4000, $2)", queue_id, SLICE)
    assert await rows_read(actor, clear) < READ_MAX
    await database.fetch("delete", "select * from lockstep.delete_queue('q', null)")
    remove = database.fetch(
        "remove", "select * from lockstep.remove_deleted_partitions($1, $2, 10000)", queue_id, SLICE
    )
    assert await rows_read(actor, remove) < READ_MAX


async def test_status_of_messages_reads_their_partitions(actor: Actor) -> None:
    await actor.store.subscribe("q", "g", Subscription())
    page = MessageFilter(queue="q", partition="p3000")
    assert await rows_read(actor, actor.store.messages(page)) < 100


def compared(plan: dict[str, Any]) -> float:
    """Rows that the nodes of a plan read, with those that a condition of a join turned away."""
    rows = plan["Actual Rows"] + plan.get("Rows Removed by Join Filter", 0) + plan.get("Rows Removed by Filter", 0)
    return float(rows * plan["Actual Loops"]) + sum(compared(child) for child in plan.get("Plans", ()))


async def test_figures_do_not_compare_each_cursor_with_each_group(actor: Actor) -> None:
    groups, partitions = 60, 40
    await actor.store.push([batch("grouped", partition=f"p{number}") for number in range(partitions)])
    for number in range(groups):
        await pop(actor.store, "grouped", group=f"g{number}")
    while (await actor.store.prune_groups()).next is not None:
        pass
    queue_id = await actor.sql("select id from lockstep.queue where name = 'grouped'")
    explain = "explain (analyze, timing off, format json) "
    look = f"select * from lockstep.look({queue_id}, 0, 9223372036854775807, now())"
    plan = json.loads(await actor.sql(explain + look))[0]["Plan"]
    assert plan["Node Type"] == "Append", "the function is a part of the plan"
    assert compared(plan) < 30 * groups * partitions

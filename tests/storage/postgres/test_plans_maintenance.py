"""What pruning costs follows what it removes: rows that it reads, counted by PostgreSQL, beside much that stays."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio

from lockstep.core.applying import ApplyLimits
from lockstep.core.operations import NewOperation
from lockstep.core.records import ClearScope
from lockstep.storage.postgres.cache import SegmentCache
from support.builders import batch, configure, pop, push_n
from support.clock import SetClock
from support.sessions import Actor, Stage

AGE = 100
STAYING = 400
"""Segments, or partitions, that stay."""
MANY_STAYING = 8_000

_READ = """
select relname, seq_scan, seq_tup_read + coalesce(idx_tup_fetch, 0)
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
# A row per queue, or per duty: nobody minds how they are read.
_SMALL = {"queue", "consumer_group", "removal", "sample_sum", "deleted_queue"}


@pytest.fixture
def dsn(database_dsn: str) -> str:
    """A database that never held anything else: statistics of what other tests stored would lead the planner astray."""
    return database_dsn


@pytest_asyncio.fixture
async def actor(dsn: str, clock: SetClock) -> AsyncIterator[Actor]:
    async with Stage(dsn, clock=clock) as stage:
        actor = await stage.actor()
        # Statistics that are taken while the first of a few hundred rows arrive would speak of other tables.
        await actor.connection.execute(_NO_AUTOVACUUM)
        yield actor


async def rows_read(actor: Actor, call: Awaitable[Any]) -> dict[str, int]:
    """By table, how many rows a call reads; no large table is read from end to end."""
    await actor.begin()
    before = {name: counts for name, *counts in await actor.connection.fetch(_READ)}
    await call
    read: dict[str, int] = {}
    for name, scans, rows in await actor.connection.fetch(_READ):
        if name not in _SMALL:
            assert scans == before[name][0], f"{name} is read from end to end"
            read[name] = rows - before[name][1]
    await actor.commit()
    return read


async def test_retention_reads_what_it_removes_and_not_what_is_young(actor: Actor, clock: SetClock) -> None:
    store = actor.store
    await configure(store, "q", retention_enabled=True, retention_seconds=AGE, completed_retention_seconds=AGE)
    for number in range(3):
        await push_n(store, "q", partition=f"old{number}")
    await pop(store, "q", partitions=2, batch=2, auto_ack=True)
    clock.advance(AGE + 1)
    for number in range(STAYING):
        await push_n(store, "q", partition=f"p{number % 50}")
    completed = await rows_read(actor, store.prune("completed_retention", limit=100))
    assert sum(completed.values()) < STAYING / 2
    assert (await store.queue("q")).messages == STAYING + 1
    removed = await rows_read(actor, store.prune("retention", limit=100))
    assert sum(removed.values()) < STAYING / 2
    assert (await store.queue("q")).messages == STAYING
    assert await store.verify() == []


async def test_ids_of_messages_that_stay_are_not_read(actor: Actor, clock: SetClock) -> None:
    """Of the same partition, too: a deletion by seq would go through all of its transaction ids."""
    store = actor.store
    await configure(store, "q", retention_enabled=True, retention_seconds=AGE)

    def ids(count: int) -> dict[str, Any]:
        transaction_ids = [str(uuid4()) if number % 2 else f"t{uuid4()}" for number in range(count)]
        return {"transaction_ids": transaction_ids, "trace_ids": [str(uuid4()) for _ in range(count)]}

    await push_n(store, "q", 4, **ids(4))
    clock.advance(AGE + 1)
    # So many that going through them is dear whatever the statistics know of the tables.
    await push_n(store, "q", MANY_STAYING, **ids(MANY_STAYING))
    read = await rows_read(actor, store.prune("retention", limit=100))
    assert (await store.queue("q")).messages == MANY_STAYING
    assert max(read.get(table, 0) for table in ("dedup_uuid", "dedup_text", "trace_index")) < 20
    assert await store.verify() == []


async def test_idle_partitions_are_found_among_full_ones(actor: Actor, clock: SetClock) -> None:
    store = actor.store
    await store.push([batch("q", 1, partition=f"p{number}") for number in range(STAYING)])
    await store.push([batch("empty", 1, partition=f"p{number}") for number in range(3)])
    await store.clear("empty")
    assert sum((await rows_read(actor, store.prune_partitions(60, limit=100))).values()) < 100
    clock.advance(60)
    removed = await rows_read(actor, store.prune_partitions(60, limit=100))
    assert sum(removed.values()) < 100
    assert (len(await store.partitions("empty")), len(await store.partitions("q", limit=1000))) == (0, STAYING)


async def test_segment_that_cannot_be_read_goes_with_its_ids(actor: Actor, clock: SetClock) -> None:
    """Without the key, or with a damaged body: retention does not stand still before it."""
    store = actor.store
    await configure(store, "q", retention_enabled=True, retention_seconds=AGE)
    identity = str(uuid4())
    await push_n(store, "q", 300, transaction_ids=[identity, *[None] * 299], trace_ids=[identity] * 300)
    store.context.memory.segments = SegmentCache(0)
    assert await actor.sql("update lockstep.segment set body = 'none' where codec <> 0 returning id")
    clock.advance(AGE + 1)
    assert (await store.prune("retention", limit=1000)).messages == 300
    assert await store.verify() == []
    assert await actor.sql("select count(*) from lockstep.segment") == 0


async def test_claim_reads_what_it_takes_and_not_what_has_ended(actor: Actor, clock: SetClock) -> None:
    store = actor.store
    await push_n(store, "q")
    for number in range(STAYING):
        await store.queue_operations([NewOperation([batch("q", start=number)])])
        if number % 50 == 49:
            await store.apply_operations("push", by="test", limits=ApplyLimits())
    await store.queue_operations([NewOperation([batch("q")])])
    clock.advance(1)
    read = await rows_read(actor, store.apply_operations("push", by="test", limits=ApplyLimits()))
    assert read["operation"] < 30
    assert read["operation_lane"] < 30


async def test_claim_of_one_lane_costs_the_same_for_each_bundle(actor: Actor) -> None:
    store = actor.store
    await push_n(store, "q")
    for number in range(STAYING):
        await store.queue_operations([NewOperation([batch("q", start=number)])])
    read = await rows_read(actor, store.apply_operations("push", by="test", limits=ApplyLimits()))
    assert (await store.operation_counts()).depth("push").operations == 0
    assert read["operation_lane"] < 10 * STAYING
    assert read["operation"] < 10 * STAYING


async def test_one_bundle_is_tried_again_however_many_wait_for_it(actor: Actor, clock: SetClock) -> None:
    store = actor.store
    await configure(store, "full", max_size=1)
    await push_n(store, "full")
    for number in range(STAYING):
        await store.queue_operations([NewOperation([batch("full", start=number)])])
    limits = ApplyLimits(retry_seconds_min=1, retry_seconds_max=1)
    assert (await store.apply_operations("push", by="test", limits=limits)).postponed == STAYING
    clock.advance(20)
    # Those behind it are put to sleep by the first retry, for half as long as they have waited; the second skips them.
    await store.apply_operations("push", by="test", limits=limits)
    clock.advance(1)
    again = store.apply_operations("push", by="test", limits=limits)
    assert (await rows_read(actor, again))["operation_lane"] < 60
    await configure(store, "full", max_size=0)
    clock.advance(1)
    assert (await store.apply_operations("push", by="test", limits=limits)).operations == 1
    applied = await store.apply_operations("push", by="test", limits=limits)
    assert applied.operations == STAYING - 1, "they are woken"


async def test_bundles_that_wait_for_a_full_queue_are_passed_quickly(actor: Actor, clock: SetClock) -> None:
    store = actor.store
    await configure(store, "full", max_size=1)
    await push_n(store, "full")
    for number in range(STAYING):
        await store.queue_operations([NewOperation([batch("full", start=number)])])
    limits = ApplyLimits(messages_max=1, retry_seconds_min=60, retry_seconds_max=60)
    await store.apply_operations("push", by="test", limits=limits)
    # The first look puts all of them off until the first is due; after that they are not looked into.
    await store.apply_operations("push", by="test", limits=limits)
    await store.queue_operations([NewOperation([batch("other")])])
    clock.advance(1)
    read = await rows_read(actor, store.apply_operations("push", by="test", limits=limits))
    assert read["operation_lane"] < 30
    assert (await store.queue("other")).messages == 1


async def test_ended_operations_are_found_by_their_age(actor: Actor, clock: SetClock) -> None:
    store = actor.store
    for number in range(3):
        await store.queue_operations([NewOperation([batch("q", start=number)])])
        await store.apply_operations("push", by="test", limits=ApplyLimits())
    clock.advance(AGE + 1)
    for number in range(STAYING):
        await store.queue_operations([NewOperation([batch("q", start=number)])])
    await store.apply_operations("push", by="test", limits=ApplyLimits())
    read = await rows_read(actor, store.prune_operations(AGE, failed_seconds=AGE, limit=100))
    assert read["operation"] < 30


@pytest.mark.parametrize("scope", ["all", "unleased"])
async def test_clear_reads_what_it_removes_and_not_what_others_have(actor: Actor, scope: ClearScope) -> None:
    store = actor.store
    await push_n(store, "q", MANY_STAYING, trace_ids=[str(uuid4()) for _ in range(MANY_STAYING)])
    await store.push([batch("small", 3, partition=f"p{n}", trace_ids=[str(uuid4())] * 3) for n in range(3)])
    await pop(store, "small", batch=2)
    read = await rows_read(actor, store.clear("small", scope=scope))
    assert sum(read.values()) < 400
    assert (await store.queue("small")).messages == (0 if scope == "all" else 2)
    assert await store.verify() == []


async def test_deletion_reads_what_it_removes_and_not_what_others_have(actor: Actor) -> None:
    store = actor.store
    await push_n(store, "q", MANY_STAYING, trace_ids=[str(uuid4()) for _ in range(MANY_STAYING)])
    await store.push([batch("small", 3, partition=f"p{n}", trace_ids=[str(uuid4())] * 3) for n in range(3)])
    await pop(store, "small", batch=2)
    read = await rows_read(actor, store.delete_queue("small"))
    assert sum(read.values()) < 400
    assert await actor.sql("select count(*) from lockstep.trace_index") == MANY_STAYING
    assert await store.verify() == []


async def test_what_was_removed_elsewhere_is_not_read_again(actor: Actor, clock: SetClock) -> None:
    """The first plan is made while nothing was ever removed, and outlives that."""
    store = actor.store
    await configure(store, "q", retention_enabled=True, retention_seconds=AGE)
    await store.push([batch("other", 1, partition=f"p{number}") for number in range(STAYING)])
    await actor.connection.execute("analyze lockstep.run")
    for _ in range(2):
        await store.push([batch("q", 1, partition=f"p{number}") for number in range(3)])
        clock.advance(AGE + 1)
        read = await rows_read(actor, store.prune("retention", limit=100))
        assert read["run"] < STAYING / 2
        await store.clear("other")
    assert (await store.queue("q")).messages == 0
    assert await store.verify() == []

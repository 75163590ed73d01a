"""Leases that are continued while something goes wrong: locks that are held for long, messages that cannot be read."""

from __future__ import annotations

import asyncio

import pytest

from lockstep.config import Config
from lockstep.core.messages import Batch
from lockstep.core.records import NextRequest, PopRequest
from lockstep.engine.engine import Engine
from lockstep.storage.postgres.store import PostgresStore
from support.builders import batch, pop
from support.builders import next_of as continued_of
from support.sessions import Stage
from support.until import until

_AT_WORK = """
select count(*) from pg_stat_activity
where datname = current_database() and pid <> pg_backend_pid() and state = 'active' and query like '%lockstep.next(%'
"""


async def test_lease_that_waited_for_a_lock_begins_after_it(stage: Stage) -> None:
    """B holds the partition that A's lease drains, for longer than the next lease is to last."""
    a, b = await stage.actors(2)
    await a.store.push([batch("q", partition="first")])
    await a.store.push([batch("q", 3, partition="second")])
    popped = await pop(a.store, "q", batch=2, partitions=2)
    await b.begin()
    await b.sql("select 1 from lockstep.partition where name = 'first' for update")
    continuing = continued_of(a.store, popped, "q", batch=2, partitions=2, lease_seconds=1)
    waiting = await stage.blocked(continuing, a, by=b)
    await b.sql("select pg_sleep(1.2)")
    await b.commit()
    continued = await waiting
    [lease] = await a.store.leases()
    assert (continued.acked.success, lease.partition) == (True, "second")
    assert not await pop(b.store, "q", batch=2, partitions=2)


async def test_closing_does_not_wait_for_a_lock_that_nobody_waits_for_any_more(dsn: str, stage: Stage) -> None:
    """B holds the partition that the lease drains, and the caller of `next` is gone."""
    a, b = await stage.actors(2)
    await a.store.push([batch("q")])
    popped = await pop(a.store, "q")
    await b.begin()
    await b.sql("select 1 from lockstep.partition for update")
    settings = {"lock_timeout_seconds": 3600.0, "statement_timeout_seconds": 3600.0}
    engine = Engine(PostgresStore(dsn, config=Config(**settings)), Config(**settings))
    await engine.open()
    request = NextRequest(lease_id=popped.lease_id or "", pop=PopRequest(queue="q"))
    gone = asyncio.create_task(engine.next([request]))
    await until(lambda: engine._batching.counts["next"].calls > 1)  # the brief wait for the lock is over
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    async with asyncio.timeout(60):
        await engine.close()
        while await stage.observer.fetchval(_AT_WORK):
            pass  # the database ends it, too
    await b.rollback()
    # It has not been carried out, so the lease is still there.
    [lease] = await a.store.leases()
    assert lease.lease_id == popped.lease_id


async def test_queue_that_cannot_be_read_does_not_fail_those_who_share_its_call(dsn: str, stage: Stage) -> None:
    """What was completed is said to be, because it cannot be said again."""
    large = Batch.of("good", [b'"%s"' % (b"x" * 3000)])
    [a] = await stage.actors(1)
    for _ in range(2):
        await a.store.push([large])
        await a.store.push([Batch.of("bad", large.columns.payloads)])
    leased = {queue: await pop(a.store, queue, group="g") for queue in ("good", "bad")}
    await stage.observer.execute(
        "update lockstep.segment s set body = 'none' from lockstep.queue q where q.id = s.queue_id and q.name = 'bad'"
    )
    async with Engine(PostgresStore(dsn), Config()) as engine:
        ahead = engine.next(
            [NextRequest(lease_id="0190a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2b", pop=PopRequest(queue="good", group="g"))]
        )
        joined = [
            engine.next([NextRequest(lease_id=popped.lease_id or "", pop=PopRequest(queue=queue, group="g"))])
            for queue, popped in leased.items()
        ]
        _, [good], [bad] = await asyncio.gather(ahead, *joined)
    assert (good.acked.success, bad.acked.success) == (True, True)
    assert not bad.popped
    assert {
        row[0]
        for row in await stage.observer.fetch(
            "select acked from lockstep.cursor c join lockstep.consumer_group g on g.id = c.group_id where g.name = 'g'"
        )
    } == {1}

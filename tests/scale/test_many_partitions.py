"""Groups on a queue with very many partitions: `make soak` makes a million of them, and an ordinary run a few thousand.

Every statement has a limit of time that a walk through a million partitions would exceed.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator

import psycopg
import pytest_asyncio

from lockstep.config import Config
from lockstep.core.records import Position, Subscription
from lockstep.storage.postgres.store import PostgresStore
from support.builders import ack, batch, pop
from support.databases import Databases

PARTITIONS = 1_000_000 if os.environ.get("LOCKSTEP_SOAK") else 6_000
STATEMENT_SECONDS_MAX = 10

# Partitions with a message each, in segments of 1,000 partitions, as wide pushes make them.
_GROW = """
with made as (
    insert into lockstep.partition (queue_id, name, created_at)
    select q.id, 'p' || n, clock_timestamp()
    from lockstep.queue q, generate_series(%(first)s::int, %(last)s::int) n where q.name = 'q'
    returning id, queue_id
), segments as (
    insert into lockstep.segment (
        queue_id, uuid, created_at, codec, message_count, partition_ids, first_seqs, counts, payloads
    )
    select m.queue_id, lockstep.segment_uuid(), clock_timestamp(), 0, count(*), array_agg(m.id order by m.id),
           array_agg(1::bigint order by m.id), array_agg(1 order by m.id), array_agg('{"n":1}'::bytea order by m.id)
    from (select m.*, row_number() over (order by m.id) / 1000 as wave from made m) m
    group by m.queue_id, m.wave
    returning id, partition_ids
)
insert into lockstep.run (partition_id, first_seq, last_seq, segment_id, ordinal)
select t.id, 1, 1, s.id, t.o - 1 from segments s
cross join lateral unnest(s.partition_ids) with ordinality t (id, o)
"""
_BEHIND = """
select count(*), sum(p.last_seq - c.acked)::bigint
from lockstep.consumer_group g join lockstep.cursor c on c.group_id = g.id
cross join lateral (
    select r.last_seq from lockstep.run r where r.partition_id = c.partition_id order by r.first_seq desc limit 1
) p
where g.name = %(group)s
"""


class Many:
    """A queue with very many partitions, and one who pushes to any of them while others are at work."""

    def __init__(self, dsn: str, store: PostgresStore) -> None:
        self.dsn = dsn
        self.store = store
        self.pushed = 0
        self._random = random.Random(7)
        self._pushing = False

    def grow(self) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute("select lockstep.resolve('q', array['Default'])")
            connection.execute("delete from lockstep.partition")
            for first in range(0, PARTITIONS, 100_000):
                last = min(first + 100_000, PARTITIONS) - 1
                connection.execute(_GROW, {"first": first, "last": last})

    async def push(self) -> None:
        partitions = self._random.sample(range(PARTITIONS), 20)
        await self.store.push([batch("q", partition=f"p{n}", start=2) for n in partitions])
        self.pushed += len(partitions)

    async def finish(self) -> None:
        """Do the duty to its end, while messages are pushed."""
        self._pushing = True
        pushing = asyncio.create_task(self._push_on())
        place = (await self.store.prune_groups()).next
        while place is not None:
            place = (await self.store.prune_groups(after=place)).next or (await self.store.prune_groups()).next
        self._pushing = False
        await pushing

    async def _push_on(self) -> None:
        while self._pushing:
            await self.push()

    def behind(self, group: str) -> tuple[int, int]:
        """How many cursors a group has, and how many messages are before them."""
        with psycopg.connect(self.dsn) as connection:
            row = connection.execute(_BEHIND, {"group": group}).fetchone()
        assert row is not None
        return row[0], row[1] or 0


@pytest_asyncio.fixture
async def many(databases: Databases) -> AsyncIterator[Many]:
    dsn = databases.clone()
    store = PostgresStore(dsn, config=Config(statement_timeout_seconds=STATEMENT_SECONDS_MAX))
    many = Many(dsn, store)
    many.grow()
    yield many
    await store.close()


async def test_groups_begin_move_and_go_among_many_partitions(many: Many) -> None:
    store = many.store
    await many.push()
    assert len(await pop(store, "q", group="all", batch=100, partitions=100, lease_seconds=3600)) == 100
    before_new = many.pushed
    assert not await pop(store, "q", group="new", subscription=Subscription("new"))
    await many.push()
    assert len(await pop(store, "q", group="new", batch=100, partitions=100, auto_ack=True)) == 20
    await many.finish()
    assert many.behind("all") == (PARTITIONS, PARTITIONS + many.pushed)
    assert many.behind("new") == (PARTITIONS, many.pushed - before_new - 20)

    assert await store.seek("q", "all", Position("end")) == PARTITIONS
    before_end = many.pushed
    assert not await pop(store, "q", group="all")
    await many.push()
    assert await store.delete_group("new", queue="q") == PARTITIONS
    assert len(await pop(store, "q", group="new", batch=100, partitions=100)) == 100
    await many.finish()
    assert many.behind("all") == (PARTITIONS, many.pushed - before_end)
    assert many.behind("new") == (PARTITIONS, PARTITIONS + many.pushed)
    with psycopg.connect(many.dsn) as connection:
        left = connection.execute("select count(*) from lockstep.cursor where group_id > 0").fetchone()
    assert left == (2 * PARTITIONS,)


async def test_lease_over_many_partitions_is_acknowledged(databases: Databases) -> None:
    """An ack that compared each of its partitions with every other took a minute for so many."""
    partitions = min(PARTITIONS // 3, 20_000)
    store = PostgresStore(databases.clone(), config=Config(statement_timeout_seconds=STATEMENT_SECONDS_MAX))
    for first in range(0, partitions, 1_000):
        await store.push([batch("q", partition=f"p{n}") for n in range(first, min(first + 1_000, partitions))])
    await store.subscribe("q", "g", Subscription())
    place = (await store.prune_groups()).next
    while place is not None:
        place = (await store.prune_groups(after=place)).next
    popped = await pop(store, "q", group="g", batch=partitions, partitions=partitions, lease_seconds=3600)
    assert len(popped) == partitions
    assert (await ack(store, lease_id=popped.lease_id)).messages == partitions
    await store.close()

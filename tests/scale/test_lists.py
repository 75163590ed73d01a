"""Lists over very many partitions: their cost does not follow the number of partitions. `make soak` has 1,000,000."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import Any

import psycopg
import pytest

from lockstep.storage.postgres.store import PostgresStore
from support.costs import cost
from support.databases import Databases, run_apart
from support.sessions import Stage

SOAK = bool(os.environ.get("LOCKSTEP_SOAK"))
SMALL = 3_000
LARGE = 1_000_000 if SOAK else 30_000
GROUPS = 5
SLICE = 1_000
LEVELS_MAX = 60
"""Blocks that larger indexes may cost, with a level more."""

# Two messages per partition. Of the groups two have done nothing, one all, one half, and one holds leases.
_FILL = """
with made as (
    insert into lockstep.partition (queue_id, name, created_at)
    select q.id, 'p' || n, clock_timestamp()
    from lockstep.queue q, generate_series(1, %(partitions)s) n where q.name = 'q'
    returning id, queue_id
), segments as (
    insert into lockstep.segment (
        queue_id, uuid, created_at, codec, message_count, partition_ids, first_seqs, counts, payloads
    )
    select m.queue_id, lockstep.segment_uuid(), clock_timestamp(), 0, 2 * count(*), array_agg(m.id order by m.id),
           array_agg(1::bigint order by m.id), array_agg(2 order by m.id),
           array_agg('{}'::bytea) || array_agg('{}'::bytea)
    from made m group by m.queue_id, m.id / 1000
    returning id, partition_ids
), cursors as (
    insert into lockstep.cursor (partition_id, group_id, acked, due_at, lease_id, lease_to, leased_at)
    select m.id, g.id, case g.name when 'g1' then 2 when 'g2' then 1 else 0 end,
           case g.name when 'g1' then null when 'g3' then clock_timestamp() + interval '1 day'
                       else clock_timestamp() end,
           case g.name when 'g3' then gen_random_uuid() end, case g.name when 'g3' then 2 end,
           case g.name when 'g3' then clock_timestamp() end
    from made m join lockstep.consumer_group g on g.queue_id = m.queue_id
)
insert into lockstep.run (partition_id, first_seq, last_seq, segment_id, ordinal)
select t.id, 1, 2, s.id, 2 * (t.o - 1)
from segments s cross join lateral unnest(s.partition_ids) with ordinality t (id, o)
"""

Call = Callable[[PostgresStore], Awaitable[Any]]
LISTS: dict[str, Call] = {
    "queues": lambda store: store.queues(),
    "queue": lambda store: store.queue("q"),
    "groups": lambda store: store.groups(),
    "overview": lambda store: store.overview(),
    "namespaces": lambda store: store.namespaces(),
    "tasks": lambda store: store.tasks(),
    "utilisation": lambda store: store.utilisation(),
    "depth": lambda store: store.depth("q", "g2"),
    "partitions": lambda store: store.partitions("q", after="p2", limit=20),
    "partitions-by-prefix": lambda store: store.partitions("q", prefix="p29", limit=20),
    "lag": lambda store: store.lag("q", group="g2", after_partition_id=2_000, limit=20),
    "leases": lambda store: store.leases(limit=20),
}


def fill(dsn: str, partitions: int) -> None:
    async def begin() -> None:
        async with Stage(dsn) as stage:
            store = (await stage.actor()).store
            await store.database.fetch("queue", "select lockstep.create_queue('q', null, null, clock_timestamp())")

    run_apart(begin)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            "insert into lockstep.consumer_group (queue_id, name, created_at, begun_at, mode) "
            "select q.id, 'g' || n, clock_timestamp(), clock_timestamp(), 'ordered' "
            "from lockstep.queue q, generate_series(0, %s) n where q.name = 'q'",
            (GROUPS - 1,),
        )
        connection.execute(_FILL, {"partitions": partitions})
        connection.execute("vacuum analyze")


async def walked(dsn: str) -> dict[str, Any]:
    """What the lists cost and say after a walk in slices, and what the longest slice read."""
    found: dict[str, Any] = {}
    async with Stage(dsn) as stage:
        actor = await stage.actor()
        store = actor.store
        store.figures_units_max = 2_000
        store.samples_partitions_max = SLICE
        slices = []
        while True:
            taken: list[int] = []

            async def one_slice(taken: list[int] = taken) -> None:
                taken.append(await store.sample(seconds_max=0))

            slices.append((await cost(stage, actor, one_slice)).blocks)
            if taken[0]:
                break
        found["slices"] = slices
        for name, call in LISTS.items():
            await call(store)
            found[name] = (await cost(stage, actor, lambda call=call: call(store))).blocks  # type: ignore[misc]
        found["figures"] = [await store.queue("q"), await store.groups()]
    return found


@pytest.fixture(scope="module")
def sized(databases: Databases) -> dict[int, dict[str, Any]]:
    found: dict[int, dict[str, Any]] = {}
    for size in (SMALL, LARGE):
        dsn = databases.clone()
        fill(dsn, size)

        async def main(size: int = size, dsn: str = dsn) -> None:
            found[size] = await walked(dsn)

        run_apart(main)
        databases.drop(dsn)
    return found


@pytest.mark.parametrize("name", LISTS)
def test_list_costs_the_same_over_many_partitions(sized: dict[int, dict[str, Any]], name: str) -> None:
    assert sized[LARGE][name] <= 1.5 * sized[SMALL][name] + LEVELS_MAX
    assert sized[LARGE][name] <= 3_000


def test_walk_goes_in_slices_that_cost_the_same(sized: dict[int, dict[str, Any]]) -> None:
    assert len(sized[LARGE]["slices"]) == LARGE // SLICE + 1
    assert max(sized[LARGE]["slices"]) <= 1.5 * max(sized[SMALL]["slices"])


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_figures_of_the_walk_are_right(sized: dict[int, dict[str, Any]], size: int) -> None:
    queue, groups = sized[size]["figures"]
    assert (queue.partitions, queue.messages, queue.pending, queue.processing) == (size, 2 * size, 2 * size, 2 * size)
    assert queue.figures_at is not None
    assert {one.name: (one.lag, one.in_flight, one.unread, one.partitions_with_lag) for one in groups} == {
        "g0": (2 * size, 0, 2 * size, size),
        "g1": (0, 0, 0, 0),
        "g2": (size, 0, size, size),
        "g3": (2 * size, 2 * size, 0, size),
        "g4": (2 * size, 0, 2 * size, size),
    }

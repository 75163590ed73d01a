"""Pages of stored messages: their cost does not follow how many there are, whatever they look for. `make soak` has
2,000,000 messages."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from lockstep.core.policy import QueueOptions
from lockstep.core.records import MessageFilter
from lockstep.storage.postgres.store import PostgresStore
from support.builders import batch
from support.costs import cost, vacuum_analyze
from support.databases import Databases, run_apart
from support.sessions import Stage

PARTITIONS = 10
LOOKED_INTO_MAX = 500
SMALL = 600
LARGE = 200_000 if os.environ.get("LOCKSTEP_SOAK") else 2_400
"""Messages of each partition."""
BLOCKS_MAX = 12_000
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)

# A segment and a run for each message; and as many partitions whose messages are gone, and of another namespace.
_FILL = """
with made as (
    insert into lockstep.segment (
        queue_id, uuid, created_at, codec, message_count, partition_ids, first_seqs, counts, payloads)
    select p.queue_id, lockstep.segment_uuid(), now(), 0, 1, array[p.id], array[n], array[1], array['1'::bytea]
    from lockstep.partition p cross join generate_series(2, %(count)s::bigint) n
    where p.name like 'p%%'
    returning id, partition_ids[1] as partition_id, first_seqs[1] as seq
)
insert into lockstep.run (partition_id, first_seq, last_seq, segment_id, ordinal)
select m.partition_id, m.seq, m.seq, m.id, 0 from made m
"""
_EMPTY = """
insert into lockstep.partition (queue_id, name, created_at)
select q.id, 'e' || n, now() from lockstep.queue q, generate_series(1, %(count)s::int) n where q.name <> 'shop.rare'
"""


def page(newest_first: bool = False, **where: Any) -> Callable[[PostgresStore], Awaitable[Any]]:
    return lambda store: store.messages(MessageFilter(**where), newest_first=newest_first)


CALLS = {
    "all": page(queue="q"),
    "of-a-status": page(queue="q", status="completed"),
    "of-a-status-newest-first": page(queue="q", status="completed", newest_first=True),
    "of-a-status-in-a-partition": page(queue="q", partition="p1", status="dead_letter"),
    "of-a-status-in-a-partition-newest-first": page(queue="q", partition="p1", status="completed", newest_first=True),
    "of-a-period": page(queue="q", to_at=LONG_AGO),
    "of-a-period-newest-first": page(queue="q", to_at=LONG_AGO, newest_first=True),
    "of-a-namespace": page(namespace="shop", status="completed"),
    "of-a-namespace-newest-first": page(namespace="shop", newest_first=True),
    "without-messages": page(queue="empty"),
}


async def measured(dsn: str, count: int) -> dict[str, Any]:
    """What the pages cost, and what they have."""
    found: dict[str, Any] = {}
    async with Stage(dsn) as stage:
        actor = await stage.actor()
        store = actor.store
        store.context.limits.page_looked_into_max = LOOKED_INTO_MAX
        await store.configure("empty", QueueOptions())
        await store.push([batch("q", partition=f"p{number}") for number in range(PARTITIONS)])
        for statement in (_FILL, _EMPTY):
            with psycopg.connect(dsn, autocommit=True) as connection:
                connection.execute(statement, {"count": count})
        await store.push([batch("shop.rare")])
        vacuum_analyze(dsn)
        for name, call in CALLS.items():
            await call(store)
            found[name] = await cost(stage, actor, lambda call=call: call(store))  # type: ignore[misc]
            found[f"page {name}"] = await call(store)
    return found


@pytest.fixture(scope="module")
def sized(databases: Databases) -> dict[int, dict[str, Any]]:
    found: dict[int, dict[str, Any]] = {}
    for size in (SMALL, LARGE):
        dsn = databases.clone()

        async def main(size: int = size, dsn: str = dsn) -> None:
            found[size] = await measured(dsn, size)

        with psycopg.connect(dsn, autocommit=True) as connection:
            for table in ("segment", "run", "partition"):  # its reads would count as those of a call
                connection.execute(f"alter table lockstep.{table} set (autovacuum_enabled = off)".encode())
        run_apart(main)
        databases.drop(dsn)
    return found


@pytest.mark.parametrize("name", CALLS)
def test_page_costs_the_same_however_many_there_are(sized: dict[int, dict[str, Any]], name: str) -> None:
    small, large = sized[SMALL][name], sized[LARGE][name]
    assert not large.scanned
    assert large.blocks <= 1.5 * small.blocks + 60
    assert large.blocks <= BLOCKS_MAX


@pytest.mark.parametrize("name", CALLS)
def test_page_that_finds_nothing_says_how_far_it_looked(sized: dict[int, dict[str, Any]], name: str) -> None:
    page = sized[LARGE][f"page {name}"]
    if name == "all":
        assert len(page.items) == 100
    else:
        assert page.looked_into <= LOOKED_INTO_MAX
        assert page.next_cursor is not None or page.looked_into < LOOKED_INTO_MAX

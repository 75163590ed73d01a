"""Lists, counts and places of operations: their cost does not follow how many there are. `make soak` has 1,000,000."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import Any

import psycopg
import pytest

from lockstep.core.operations import NewOperation, Outcome, operation_ids, pack_aims, pack_outcomes
from lockstep.storage.postgres.operations import LOOKED_INTO_MAX
from lockstep.storage.postgres.store import PostgresStore
from support.builders import batch
from support.costs import cost, vacuum_analyze
from support.databases import Databases, run_apart
from support.sessions import Stage

SMALL = 4 * LOOKED_INTO_MAX
LARGE = 1_000_000 if os.environ.get("LOCKSTEP_SOAK") else 12 * LOOKED_INTO_MAX
BLOCKS_MAX = 2_000

# Bundles of one operation each. The older half has ended, and every second of those failed; the newer half waits. Queue
# `rare` has only the last one.
_FILL = """
insert into lockstep.operation (
    uuid, kind, priority, pending, request_count, message_count, bytes, partition_ids, codec, requests, results,
    failed_count, created_at, due_at, completed_at, queues, aims
)
select lockstep.segment_uuid(), 'push', 5, not e.ended, 1, 1, 10, array[n], 1, '', case when e.ended then %(done)s end,
       case when e.ended then n %% 2 else 0 end, now(), now() + interval '1 day', case when e.ended then now() end,
       array[case when n = %(count)s then 'rare' else 'q' end], case when n = %(count)s then %(aims)s::bytea end
from generate_series(1, %(count)s::int) n cross join lateral (select n <= %(count)s / 2 as ended) e
"""
_SUM = """
insert into lockstep.operation_sum (kind, slot, operations, messages, bytes, failed)
select 'push', 0, count(*) filter (where pending), 0, 0, sum(failed_count) from lockstep.operation
"""

Call = Callable[[PostgresStore], Awaitable[Any]]
CALLS: dict[str, Call] = {
    "counts": lambda store: store.operation_counts(),
    "all": lambda store: store.operations(limit=100),
    "pending": lambda store: store.operations(status="pending", limit=100),
    "done": lambda store: store.operations(status="done", limit=100),
    "failed": lambda store: store.operations(status="failed", limit=100),
    "of-a-queue": lambda store: store.operations(queue="rare", limit=100),
    "pending-of-a-queue": lambda store: store.operations(status="pending", queue="rare", limit=100),
    "done-of-a-queue": lambda store: store.operations(status="done", queue="rare", limit=100),
    "failed-of-a-queue": lambda store: store.operations(status="failed", queue="rare", limit=100),
}


async def measured(dsn: str) -> dict[str, Any]:
    """What the calls cost, and what they say."""
    found: dict[str, Any] = {}
    async with Stage(dsn) as stage:
        actor = await stage.actor()
        store = actor.store
        last = await actor.sql("select uuid from lockstep.operation order by serial desc limit 1")
        calls = CALLS | {"place": lambda store: store.operation(operation_ids(last, 1)[0])}
        for name, call in calls.items():
            await call(store)
            found[name] = await cost(stage, actor, lambda call=call: call(store))  # type: ignore[misc]
        found["counted"] = await store.operation_counts()
        found["positions"] = (await store.operation(operation_ids(last, 1)[0])).position
        found["rare"] = await pages(store)
    return found


async def pages(store: PostgresStore) -> list[int]:
    """How many operations of the rare queue each page has."""
    found = []
    cursor = None
    while True:
        page = await store.operations(queue="rare", cursor=cursor)
        found.append(len(page.items))
        cursor = page.next_cursor
        if cursor is None:
            return found


@pytest.fixture(scope="module")
def sized(databases: Databases) -> dict[int, dict[str, Any]]:
    found: dict[int, dict[str, Any]] = {}
    aims = pack_aims([NewOperation([batch("rare")])])
    for size in (SMALL, LARGE):
        dsn = databases.clone()
        with psycopg.connect(dsn, autocommit=True) as connection:
            # Its reads would count as those of a call.
            connection.execute("alter table lockstep.operation set (autovacuum_enabled = off)")
            connection.execute(_FILL, {"count": size, "done": pack_outcomes([Outcome()]), "aims": aims})
            connection.execute(_SUM)
        vacuum_analyze(dsn)

        async def main(size: int = size, dsn: str = dsn) -> None:
            found[size] = await measured(dsn)

        run_apart(main)
        databases.drop(dsn)
    return found


@pytest.mark.parametrize("name", [*CALLS, "place"])
def test_operations_cost_the_same_however_many_there_are(sized: dict[int, dict[str, Any]], name: str) -> None:
    small, large = sized[SMALL][name], sized[LARGE][name]
    assert not large.scanned
    assert large.blocks <= 1.5 * small.blocks + 40
    assert large.blocks <= BLOCKS_MAX


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_what_is_far_away_is_still_found(sized: dict[int, dict[str, Any]], size: int) -> None:
    found = sized[size]
    assert (found["counted"].depth("push").operations, found["counted"].failed) == (size // 2, size // 4)
    assert found["positions"] is None
    assert found["rare"] == [0] * (size // LOOKED_INTO_MAX - 1) + [1]

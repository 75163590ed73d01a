"""A hundred thousand dead letters: listed, redriven, purged."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lockstep.core.records import Ack, DeadLetterFilter, PopRequest
from lockstep.storage.postgres.store import PostgresStore
from scale.conftest import Scale
from support.builders import batch, configure, pop
from support.costs import cost
from support.sessions import Stage

Split = Callable[[int], list[int]]
OF_QUEUE = DeadLetterFilter(queue="q")


async def kill(store: PostgresStore, sizes: list[int]) -> None:
    """Everything that is pushed dies in a shared group, by whole leases."""
    for size in sizes:
        await store.push([batch("q", size)])
        popped = await pop(store, "q", group="g", mode="shared", batch=size)
        [outcome] = await store.ack([Ack(lease_id=popped.lease_id, status="dlq")])
        assert outcome.success


async def redrive(store: PostgresStore, where: DeadLetterFilter) -> int:
    moved = 0
    while count := await store.redrive(where, limit=1_000):
        moved += count
    return moved


async def test_listed_redriven_and_purged(store: PostgresStore, scale: Scale, batches: Split) -> None:
    count = scale(100_000)
    await configure(store, "q")
    await kill(store, batches(count))
    page = await store.dead_letters(OF_QUEUE, limit=100)
    assert (len(page.items), page.total) == (min(100, count), count)
    for where in (DeadLetterFilter(), DeadLetterFilter(group="g"), DeadLetterFilter(queue="q", partition="Default")):
        found = await store.dead_letters(where, limit=5, offset=count // 2)
        assert ([one.id for one in found.items], found.total) == (
            [one.id for one in (await store.dead_letters(OF_QUEUE, limit=5, offset=count // 2)).items],
            count,
        )
    assert await redrive(store, OF_QUEUE) == count
    assert (await store.queue("q")).messages == 2 * count
    await kill(store, [])
    popped = await store.pop([PopRequest(queue="q", group="g", batch=min(count, 10_000))])
    assert len(popped[0]) == min(count, 10_000)
    await store.ack([Ack(lease_id=popped[0].lease_id, status="dlq")])
    assert await store.purge(OF_QUEUE) == min(count, 10_000)
    assert (await store.dead_letters(OF_QUEUE)).total == 0


@pytest.mark.parametrize("done", [False, True])
async def test_redriven_with_their_copies(store: PostgresStore, scale: Scale, batches: Split, done: bool) -> None:
    """From the dead queue, or past all those that were worked through there."""
    count = scale(100_000)
    await configure(store, "dead")
    await configure(store, "q", dead_queue="dead")
    await kill(store, batches(count))
    assert (await store.queue("dead")).messages == count
    if done:
        while await pop(store, "dead", batch=10_000, auto_ack=True):
            pass
        assert await redrive(store, OF_QUEUE) == 0
        assert await store.purge(DeadLetterFilter()) == count
    else:
        assert await redrive(store, OF_QUEUE) == count
        assert (await store.queue("dead")).messages == 0


async def test_sent_back_from_the_dead_queue(store: PostgresStore, scale: Scale, batches: Split) -> None:
    count = scale(20_000)
    await configure(store, "dead")
    await configure(store, "q", dead_queue="dead")
    await kill(store, batches(count))
    moved = 0
    while sent := await store.redrive_queue("dead", limit=1_000):
        moved += sent
    assert moved == count
    assert (await store.dead_letters(OF_QUEUE)).total == 0


_OF_OTHERS = """
insert into lockstep.dead_letter (queue_id, partition_id, seq, group_name, attempts, failed_at)
select p.queue_id, p.id, 1, 'gone', 1, clock_timestamp()
from lockstep.partition p join lockstep.queue q on q.id = p.queue_id, generate_series(1, %(count)s) n
where q.name = 'other'
"""


@pytest.mark.parametrize("analyzed", [False, True])
async def test_dead_letters_of_other_queues_cost_nothing(database_dsn: str, scale: Scale, analyzed: bool) -> None:
    """Also when the statistics know of no other queue than theirs."""
    found: dict[str, list[int]] = {"list": [], "redrive": [], "purge": []}
    calls = {
        "list": lambda store: store.dead_letters(OF_QUEUE, limit=5),
        "redrive": lambda store: store.redrive(OF_QUEUE, limit=5),
        "purge": lambda store: store.purge(OF_QUEUE),
    }
    async with Stage(database_dsn) as stage:
        actor = await stage.actor()
        await actor.sql("alter table lockstep.dead_letter set (autovacuum_enabled = off)")
        await actor.store.push([batch("other")])
        for count in (200, scale(500_000, at_least=10_000)):
            await actor.sql(_OF_OTHERS.replace("%(count)s", str(count)))
            if analyzed:
                await actor.sql("vacuum analyze lockstep.dead_letter")
            for name, call in calls.items():
                for _ in range(2):  # the first makes its plans
                    await kill(actor.store, [5])
                    taken = await cost(stage, actor, lambda call=call: call(actor.store))  # type: ignore[misc]
                found[name].append(taken.blocks)
            await actor.store.purge(OF_QUEUE)
    for name, (small, large) in found.items():
        assert large <= 1.5 * small + 40, name

"""A thousand groups on a queue."""

from __future__ import annotations

from lockstep.core.maintenance import PruneKind
from lockstep.core.records import MessageFilter, PopRequest
from lockstep.storage.postgres.store import PostgresStore
from scale.conftest import Scale
from support.builders import ack, batch, configure, pop
from support.clock import SetClock

PARTITIONS = 100


async def walk(store: PostgresStore, kind: PruneKind) -> int:
    messages, place = 0, None
    while True:
        pruned = await store.prune(kind, after=place, limit=store.context.limits.slice_messages_max)
        assert pruned.problem is None
        messages += pruned.messages
        place = pruned.next
        if place is None:
            return messages


async def test_every_verb_answers(store: PostgresStore, clock: SetClock, scale: Scale) -> None:
    groups, partitions = scale(1_000, at_least=20), scale(PARTITIONS, at_least=8)
    names = [f"p{number}" for number in range(partitions)]
    await configure(store, "q", lease_seconds=30, max_size=1_000_000)
    await store.push([batch("q", 3, partition=name) for name in names])
    for number in range(groups):
        [popped] = await store.pop([PopRequest(queue="q", group=f"g{number}")])
        assert len(popped) == 1
    await store.push([batch("q", 3, partition=name, start=4) for name in [*names, "new"]])
    popped = await pop(store, "q", group="g5", batch=1_000, partitions=1_000)
    assert (await ack(store, lease_id=popped.lease_id)).success
    assert len(await store.lag("q", group="g5")) == partitions + 2, "with Default and new"
    assert len(await store.lag("q", limit=1_000)) == min(1_000, groups * (partitions + 2))
    assert len(await store.groups(queue="q")) == groups
    assert (await store.queue("q", exact=True)).messages == 6 * partitions + 3
    assert len((await store.messages(MessageFilter(queue="q"), limit=10)).items) == 10
    assert (await store.messages(MessageFilter(queue="q", status="completed"), limit=10)).items == []
    await store.sample()
    await store.overview()
    clock.advance(100)
    await configure(store, "q", lease_seconds=30, expire_seconds=30, on_expired="drop", max_size=1_000_000)
    passed = await walk(store, "expiry")
    assert passed > groups * partitions * 3
    assert (await store.depth("q", "g7", exact=True)).pending == 0
    await configure(store, "q", retention_enabled=True, completed_retention_seconds=60)
    assert await walk(store, "completed_retention") == 6 * partitions + 3
    await store.delete_group("g5", queue="q")
    await store.clear("q")
    assert await store.delete_queue("q")

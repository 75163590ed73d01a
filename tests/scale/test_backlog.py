"""A backlog of ten million messages."""

from __future__ import annotations

from collections.abc import Callable

import psycopg

from lockstep.core.records import Ack, MessageFilter, Position, Subscription
from lockstep.storage.postgres.store import PostgresStore
from scale.conftest import Scale
from scale.test_groups_at_scale import walk
from support.builders import ack, batch, configure, numbers, pop, push_n
from support.clock import SetClock

Split = Callable[[int], list[int]]
PARTITIONS = 7


async def test_every_verb_answers(store: PostgresStore, clock: SetClock, scale: Scale, batches: Split) -> None:
    count = scale(10_000_000)
    most = scale.config.push_messages_max
    await configure(store, "q", lease_seconds=30, max_size=2 * count)
    for number, size in enumerate(batches(count)):
        await store.push([batch("q", size, partition=f"p{number % PARTITIONS}")])
    popped = await pop(store, "q", group="g", batch=most)
    assert len(popped) == most
    assert (await ack(store, lease_id=popped.lease_id)).success
    shared = await pop(store, "q", group="s", mode="shared", batch=most, partitions=10)
    assert (await store.ack([Ack(lease_id=shared.lease_id, status="failed")]))[0].success
    await pop(store, "q", group="new", subscription=Subscription("new"))
    assert sum(one.lag for one in await store.lag("q", group="g")) == count - most
    assert (await store.queue("q")).messages == count
    assert (await store.depth("q", "new")).pending == 0
    for where in (MessageFilter(queue="q"), MessageFilter(queue="q", status="pending")):
        assert len((await store.messages(where, limit=10)).items) == 10
    assert (await store.messages(MessageFilter(queue="q", status="dead_letter"), limit=10)).items == []
    await store.seek("q", "new", Position("start"))
    await store.seek("q", "new", Position("end"))
    await store.sample()
    assert await store.verify() == []
    clock.advance(100)
    await configure(store, "q", max_size=2 * count, retention_enabled=True, retention_seconds=60)
    assert await walk(store, "retention") > count // 2
    await push_n(store, "q", 3, partition="p0")
    await store.clear("q")
    await push_n(store, "q", partition="p0", start=9)
    assert numbers(await pop(store, "q", group="g")) == [9]
    assert await store.delete_queue("q")


_SINGLES = """
with made as (
    insert into lockstep.segment (
        queue_id, uuid, created_at, codec, message_count, partition_ids, first_seqs, counts, payloads)
    select p.queue_id, lockstep.segment_uuid(), %(at)s, 0, 1, array[p.id], array[n], array[1], array['1'::bytea]
    from lockstep.partition p cross join generate_series(2, %(count)s::bigint) n
    returning id, partition_ids[1] as partition_id, first_seqs[1] as seq
)
insert into lockstep.run (partition_id, first_seq, last_seq, segment_id, ordinal)
select m.partition_id, m.seq, m.seq, m.id, 0 from made m
"""


async def test_single_messages_of_one_partition(store: PostgresStore, clock: SetClock, scale: Scale) -> None:
    """Each with a segment and a run: what reads the runs between two places reads many."""
    count = scale(500_000)
    await configure(store, "q")
    await push_n(store, "q")
    with psycopg.connect(store.database._dsn, autocommit=True) as connection:
        connection.execute(_SINGLES, {"at": clock.now, "count": count})
    for options in ({}, {"max_wait_seconds": 60}, {"delay_seconds": 1}, {"window_seconds": 1}, {"expire_seconds": 60}):
        name = "-".join(options) or "plain"
        await configure(store, "q", lease_seconds=30, **options)
        clock.advance(2)
        for group, mode in ((name, "ordered"), (f"{name}-shared", "shared")):
            popped = await pop(store, "q", group=group, mode=mode, batch=100)
            assert len(popped) == min(100, count)
            assert (await ack(store, lease_id=popped.lease_id)).success
    assert (await store.queue("q")).messages == count
    await store.seek("q", "plain", Position("time", at=clock.now))
    clock.advance(60)
    await configure(store, "q", max_wait_seconds=60)
    assert len(await pop(store, "q", group="max_wait_seconds")) == 0
    await configure(store, "q")
    assert await store.clear("q") == count

"""Verify and repair: every invariant broken on purpose, found by name, and mended where it can be."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import asyncpg
import pytest
import pytest_asyncio

from lockstep.core.names import QUEUE_MODE
from lockstep.core.records import Ack, Problem, ProblemKind, Subscription
from lockstep.storage.postgres.store import PostgresStore
from support.builders import batch, configure, dead_letter_by_dlq, lag_of, numbers, pop, pop_all, push_n
from support.clock import SetClock

TRACE = "0190a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2b"


@pytest_asyncio.fixture
async def store(dsn: str, clock: SetClock) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(dsn, clock=clock)
    yield store
    await store.close()


@pytest_asyncio.fixture
async def session(dsn: str) -> AsyncIterator[asyncpg.Connection[Any]]:
    connection = await asyncpg.connect(dsn)
    yield connection
    await connection.close()


async def fill(store: PostgresStore) -> None:
    """Two queues: `q`, in which something will break, and `sound`, in which nothing does."""
    for queue in ("q", "sound"):
        await configure(store, queue, max_size=1000)
        await store.subscribe(queue, QUEUE_MODE, Subscription())
        for start in (1, 3, 5):
            ids = [f"{start}", str(uuid4())]
            await push_n(store, queue, 2, partition="p", start=start, transaction_ids=ids, trace_ids=[TRACE, None])
        await push_n(store, queue, 3, partition="drained")
        await pop(store, queue, partition="drained", batch=9, auto_ack=True)
        await pop(store, queue, partition="p", batch=2, auto_ack=True)
        await push_n(store, queue, 3, partition="leased")
        await pop(store, queue, partition="leased", batch=2)
        await dead_letter_by_dlq(store, queue, partition="dead")
        # A place that is held for removed messages, and messages after it.
        await push_n(store, queue, 2, partition="cleared")
        await store.clear(queue, partition="cleared")
        await push_n(store, queue, partition="cleared", start=3)
        await push_n(store, queue, 2, partition="removed")
        await store.clear(queue, partition="removed")


QUEUE = "(select id from lockstep.queue where name = 'q')"
PARTITION = f"(select id from lockstep.partition where queue_id = {QUEUE} and name = '{{}}')"
GROUP = f"(select id from lockstep.consumer_group where queue_id = {QUEUE})"


def in_partition(name: str) -> str:
    return f"partition_id = {PARTITION.format(name)}"


@dataclass(frozen=True)
class Damage:
    """A statement that breaks something, and the problem that verify has to name."""

    id: str
    sql: str
    kind: ProblemKind
    repairable: bool = True
    also: tuple[ProblemKind, ...] = ()
    """What the same damage makes wrong besides."""


DAMAGES = [
    Damage(
        "gap-between-runs",
        f"delete from lockstep.run where {in_partition('p')} and first_seq = 3",
        "seq_gap",
        repairable=False,
        also=("dedup_dangling", "trace_dangling", "run_missing", "segment_orphaned", "depth_wrong"),
    ),
    Damage(
        "runs-overlap",
        f"update lockstep.run set last_seq = 3 where {in_partition('p')} and first_seq = 1",
        "seq_gap",
        repairable=False,
        also=("segment_missing", "manifest_wrong"),
    ),
    Damage(
        "segment-missing",
        f"""delete from lockstep.segment where id = (
            select segment_id from lockstep.run where {in_partition("p")} and first_seq = 3)""",
        "segment_missing",
        repairable=False,
    ),
    Damage(
        "segment-too-short",
        f"update lockstep.run set ordinal = 1000 where {in_partition('p')} and first_seq = 3",
        "segment_missing",
        repairable=False,
        also=("manifest_wrong",),
    ),
    Damage(
        "manifest-without-the-run",
        f"""update lockstep.segment set first_seqs = array(select seq + 1000 from unnest(first_seqs) seq) where id = (
            select segment_id from lockstep.run where {in_partition("p")} and first_seq = 3)""",
        "manifest_wrong",
        repairable=False,
        also=("segment_orphaned", "run_missing"),
    ),
    Damage(
        "manifest-with-another-place",
        f"""update lockstep.run set ordinal = ordinal + 1 where {in_partition("p")} and first_seq = 1""",
        "manifest_wrong",
        repairable=False,
        also=("segment_missing",),
    ),
    Damage(
        "seq-before-the-first",
        f"""update lockstep.run set first_seq = 0 where {in_partition("p")} and first_seq = 1""",
        "seq_gap",
        repairable=False,
        also=("segment_missing", "manifest_wrong", "segment_orphaned", "dedup_dangling"),
    ),
    Damage(
        "segment-orphaned",
        f"""insert into lockstep.segment
            (queue_id, uuid, created_at, codec, message_count, partition_ids, first_seqs, counts, payloads)
            select {QUEUE}, lockstep.segment_uuid(), now(), 0, 1, array[987654321], array[999], array[1],
                   array['x'::bytea]""",
        "segment_orphaned",
    ),
    Damage(
        "segment-of-removed-messages",
        f"""insert into lockstep.segment
            (queue_id, uuid, created_at, codec, message_count, partition_ids, first_seqs, counts, payloads)
            select {QUEUE}, lockstep.segment_uuid(), now(), 0, 1, array[{PARTITION.format("removed")}], array[2],
                   array[1], array['x'::bytea]""",
        "segment_orphaned",
    ),
    Damage(
        "segment-far-from-the-runs",
        f"""insert into lockstep.segment
            (queue_id, uuid, created_at, codec, message_count, partition_ids, first_seqs, counts, payloads)
            select {QUEUE}, lockstep.segment_uuid(), now(), 0, 1, array[{PARTITION.format("p")}], array[999], array[1],
                   array['x'::bytea]""",
        "run_missing",
        repairable=False,
    ),
    Damage(
        "segment-whose-seqs-another-has",
        f"""insert into lockstep.segment
            (queue_id, uuid, created_at, codec, message_count, partition_ids, first_seqs, counts, payloads)
            select {QUEUE}, lockstep.segment_uuid(), now(), 0, 1, array[{PARTITION.format("p")}], array[3], array[1],
                   array['x'::bytea]""",
        "segment_orphaned",
        repairable=False,
    ),
    Damage(
        "first-run-missing",
        f"delete from lockstep.run where {in_partition('p')} and first_seq = 1",
        "run_missing",
        also=("dedup_dangling", "trace_dangling", "depth_wrong"),
    ),
    Damage(
        "last-run-missing",
        f"delete from lockstep.run where {in_partition('p')} and first_seq = 5",
        "run_missing",
        also=("dedup_dangling", "trace_dangling", "depth_wrong"),
    ),
    Damage(
        "all-runs-of-a-leased-partition-missing",
        f"delete from lockstep.run where {in_partition('leased')}",
        "run_missing",
        also=("lease_invalid", "depth_wrong"),
    ),
    Damage(
        "run-of-a-dead-letter-missing",
        f"delete from lockstep.run where {in_partition('dead')}",
        "run_missing",
        also=("dead_letter_dangling", "cursor_out_of_range", "depth_wrong"),
    ),
    Damage(
        "cursor-missing",
        f"delete from lockstep.cursor where {in_partition('p')}",
        "cursor_missing",
        also=("depth_wrong",),
    ),
    Damage(
        "cursor-beyond-the-end",
        f"update lockstep.cursor set acked = 1000, due_at = null where {in_partition('p')}",
        "cursor_out_of_range",
        also=("depth_wrong",),
    ),
    Damage(
        "cursor-before-the-start",
        f"update lockstep.cursor set acked = 0, due_at = null where {in_partition('cleared')}",
        "cursor_out_of_range",
        also=("due_at_wrong", "depth_wrong"),
    ),
    Damage(
        "wake-up-lost",
        f"update lockstep.cursor set due_at = null where {in_partition('p')}",
        "due_at_wrong",
    ),
    Damage(
        "drained-but-due",
        f"update lockstep.cursor set due_at = '2020-01-01' where {in_partition('drained')}",
        "due_at_wrong",
    ),
    Damage(
        "drained-but-due-later",
        f"update lockstep.cursor set due_at = now() + interval '1 hour' where {in_partition('drained')}",
        "due_at_wrong",
    ),
    Damage(
        "lease-without-end",
        f"update lockstep.cursor set lease_to = null where {in_partition('leased')}",
        "lease_invalid",
    ),
    Damage(
        "lease-without-beginning",
        f"update lockstep.cursor set leased_at = null where {in_partition('leased')}",
        "lease_invalid",
    ),
    Damage(
        "lease-without-deadline",
        f"update lockstep.cursor set due_at = null where {in_partition('leased')}",
        "lease_invalid",
    ),
    Damage(
        "lease-beyond-the-end",
        f"update lockstep.cursor set lease_to = 1000 where {in_partition('leased')}",
        "lease_invalid",
    ),
    Damage(
        "lease-on-nothing",
        f"update lockstep.cursor set lease_to = acked - 1 where {in_partition('leased')}",
        "lease_invalid",
    ),
    Damage(
        "end-without-lease",
        f"update lockstep.cursor set lease_id = null where {in_partition('leased')}",
        "lease_invalid",
    ),
    Damage(
        "transaction-text-dangling",
        f"insert into lockstep.dedup_text values ({PARTITION.format('p')}, 'nowhere', 999)",
        "dedup_dangling",
    ),
    Damage(
        "transaction-uuid-dangling",
        f"insert into lockstep.dedup_uuid values ({PARTITION.format('p')}, gen_random_uuid(), 999)",
        "dedup_dangling",
    ),
    Damage(
        "transaction-of-a-removed-message",
        f"insert into lockstep.dedup_text values ({PARTITION.format('cleared')}, 'removed', 2)",
        "dedup_dangling",
    ),
    Damage(
        "trace-dangling",
        f"insert into lockstep.trace_index values (gen_random_uuid(), {PARTITION.format('p')}, 999)",
        "trace_dangling",
    ),
    Damage(
        "trace-event-dangling",
        "insert into lockstep.trace_event (partition_id, seq, transaction_id, event_type, names, data, created_at)"
        f" values ({PARTITION.format('p')}, 999, 't', 'info', '{{}}', '1', now())",
        "trace_dangling",
    ),
    Damage(
        "dead-letter-dangling",
        f"update lockstep.dead_letter set seq = 999 where {in_partition('dead')}",
        "dead_letter_dangling",
    ),
    Damage(
        "depth-of-a-group",
        f"update lockstep.depth set pending = pending + 5 where queue_id = {QUEUE} and group_id = {GROUP} and slot = 0",
        "depth_wrong",
    ),
    Damage(
        "depth-of-the-queue",
        f"delete from lockstep.depth where queue_id = {QUEUE} and group_id = 0",
        "depth_wrong",
    ),
    Damage(
        "depth-of-a-group-that-is-gone",
        f"insert into lockstep.depth values ({QUEUE}, 987654, 0, 3)",
        "depth_wrong",
    ),
]


def told(problems: list[Problem]) -> list[tuple[ProblemKind, str | None]]:
    return [(problem.kind, problem.queue) for problem in problems]


async def test_nothing_is_wrong_before_anything_is_broken(store: PostgresStore) -> None:
    await fill(store)
    assert await store.verify() == []


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.id)
async def test_damage_is_found_by_name(store: PostgresStore, session: asyncpg.Connection[Any], damage: Damage) -> None:
    await fill(store)
    await session.execute(damage.sql)
    problems = await store.verify()
    assert (damage.kind, "q") in told(problems)
    assert {problem.kind for problem in problems} <= {damage.kind, *damage.also}
    assert {problem.queue for problem in problems} == {"q"}
    assert {problem.repairable for problem in problems if problem.kind == damage.kind} == {damage.repairable}
    assert not any(problem.repaired for problem in problems)
    assert all(problem.text for problem in problems)
    assert set(await store.verify(queue="q")) == set(problems)
    assert await store.verify(queue="sound") == []


@pytest.mark.parametrize("damage", [damage for damage in DAMAGES if damage.repairable], ids=lambda damage: damage.id)
async def test_damage_is_repaired(
    store: PostgresStore, session: asyncpg.Connection[Any], damage: Damage, clock: SetClock
) -> None:
    await fill(store)
    sound = await store.lag("sound"), await store.leases(queue="sound")
    await session.execute(damage.sql)
    repaired = await store.repair()
    assert (damage.kind, "q") in told(repaired)
    assert all(problem.repaired for problem in repaired)
    assert await store.verify() == []
    assert (await store.lag("sound"), await store.leases(queue="sound")) == sound
    assert await store.repair() == []
    # Whatever was lost, everything that is still ahead of the cursors is delivered.
    clock.advance(400)
    ahead = (await store.depth("q", QUEUE_MODE)).pending
    assert len(await pop_all(store, "q")) == ahead
    assert await store.verify() == []


@pytest.mark.parametrize("damage", [d for d in DAMAGES if not d.repairable], ids=lambda damage: damage.id)
async def test_damage_that_cannot_be_repaired_is_told_and_not_claimed_to_be(
    store: PostgresStore, session: asyncpg.Connection[Any], damage: Damage
) -> None:
    await fill(store)
    await session.execute(damage.sql)
    problems = await store.repair()
    assert not any(problem.repaired for problem in problems if problem.kind == damage.kind)
    assert (damage.kind, "q") in told(await store.verify())


@pytest.mark.parametrize("damage", [d for d in DAMAGES if d.kind == "manifest_wrong"], ids=lambda damage: damage.id)
async def test_repair_removes_no_segment_while_runs_or_manifests_are_wrong(
    store: PostgresStore, session: asyncpg.Connection[Any], damage: Damage
) -> None:
    await fill(store)
    await session.execute(damage.sql)
    before = await session.fetch("select id from lockstep.segment order by id")
    await store.repair()
    assert await session.fetch("select id from lockstep.segment order by id") == before


@pytest.mark.parametrize("lost", ["first_seq = 1", "first_seq = 5", "first_seq > 1", "true"])
async def test_unread_messages_whose_runs_are_lost_are_delivered_after_repair(
    store: PostgresStore, session: asyncpg.Connection[Any], lost: str
) -> None:
    await configure(store, "q")
    await store.subscribe("q", "g", Subscription())
    for start in (1, 3, 5):
        await push_n(store, "q", 2, partition="p", start=start, transaction_ids=[f"t{start}", None])
    await session.execute(f"delete from lockstep.run where {in_partition('p')} and {lost}")
    assert all(problem.repaired for problem in await store.repair())
    assert await store.verify() == []
    assert numbers(await pop_all(store, "q", group="g")) == [1, 2, 3, 4, 5, 6]
    [again] = await push_n(store, "q", partition="p", start=9, transaction_ids=["t5"])
    assert again.status == "duplicate"


async def test_run_that_is_lost_of_a_segment_that_others_need_is_made_again(
    store: PostgresStore, session: asyncpg.Connection[Any]
) -> None:
    await configure(store, "q")
    await store.subscribe("q", "g", Subscription())
    await store.push([batch("q", 2, partition=name) for name in ("p", "other")])
    await push_n(store, "q", partition="p", start=3)
    await session.execute(f"delete from lockstep.run where {in_partition('p')} and first_seq = 1")
    assert [problem.kind for problem in await store.repair()] == ["run_missing"]
    assert numbers(await pop_all(store, "q", group="g", partition="p")) == [1, 2, 3]


async def test_retention_of_a_part_of_a_segment_is_no_missing_run(store: PostgresStore, clock: SetClock) -> None:
    await configure(store, "q", retention_enabled=True, completed_retention_seconds=60)
    await store.push([batch("q", 2, partition=name) for name in ("p", "other")])
    await push_n(store, "q", partition="p", start=3)
    await pop(store, "q", partition="p", batch=2, auto_ack=True)
    clock.advance(60.001)
    assert (await store.prune("completed_retention", limit=100)).messages == 2
    assert await store.verify() == []


async def test_repair_keeps_everything_while_a_run_cannot_be_made_again(
    store: PostgresStore, session: asyncpg.Connection[Any]
) -> None:
    """Somebody has pushed since the last run was lost, and got its seqs."""
    await fill(store)
    await session.execute(f"delete from lockstep.run where {in_partition('dead')}")
    await push_n(store, "q", partition="dead", start=50)
    tables = ("segment", "dead_letter", "dedup_text", "dedup_uuid", "trace_index")
    before = [await session.fetchval(f"select count(*) from lockstep.{table}") for table in tables]
    assert [problem.kind for problem in await store.repair() if not problem.repaired] == ["segment_orphaned"]
    assert [await session.fetchval(f"select count(*) from lockstep.{table}") for table in tables] == before


async def test_segments_of_a_queue_whose_row_is_lost_are_kept(
    store: PostgresStore, session: asyncpg.Connection[Any]
) -> None:
    await push_n(store, "q", 3)
    await session.execute("delete from lockstep.queue")
    assert [problem.repaired for problem in await store.repair()] == [False]
    assert await session.fetchval("select count(*) from lockstep.segment") == 1


async def test_repair_of_one_queue_leaves_the_other_alone(
    store: PostgresStore, session: asyncpg.Connection[Any]
) -> None:
    await fill(store)
    await session.execute("delete from lockstep.cursor")
    assert {problem.queue for problem in await store.repair(queue="q")} == {"q"}
    assert await store.verify(queue="q") == []
    assert {problem.kind for problem in await store.verify()} == {"cursor_missing", "depth_wrong"}
    assert {problem.queue for problem in await store.verify()} == {"sound"}


async def test_group_is_told_by_name(store: PostgresStore, session: asyncpg.Connection[Any]) -> None:
    await fill(store)
    await session.execute("update lockstep.cursor set due_at = null where lease_id is null")
    problems = [problem for problem in await store.verify(queue="q") if problem.kind == "due_at_wrong"]
    assert problems
    assert all(problem.text.startswith(f"group '{QUEUE_MODE}' is due at no time") for problem in problems)


async def test_missing_cursor_begins_at_the_start(store: PostgresStore, session: asyncpg.Connection[Any]) -> None:
    """Where it was nobody knows; delivering again is better than losing."""
    await fill(store)
    await session.execute(f"delete from lockstep.cursor where {in_partition('p')}")
    await store.repair()
    assert numbers(await pop(store, "q", partition="p", batch=9)) == [1, 2, 3, 4, 5, 6]


async def test_lost_wake_up_is_delivered_after_repair(store: PostgresStore, session: asyncpg.Connection[Any]) -> None:
    await fill(store)
    await session.execute(f"update lockstep.cursor set due_at = null where {in_partition('p')}")
    assert not await pop(store, "q", partition="p")
    await store.repair()
    assert numbers(await pop(store, "q", partition="p", batch=9)) == [3, 4, 5, 6]


async def test_repair_keeps_leases_stops_and_delays(store: PostgresStore, session: asyncpg.Connection[Any]) -> None:
    await configure(store, "q", retry_limit=0, on_exhausted="stop", delay_seconds=60)
    await store.push([batch("q", 2, partition=name) for name in ("stopped", "leased", "waiting")])
    await store.subscribe("q", QUEUE_MODE, Subscription())
    await session.execute(f"update lockstep.cursor set due_at = 'infinity' where {in_partition('stopped')}")
    before = await store.lag("q")
    await session.execute(f"insert into lockstep.dedup_text values ({PARTITION.format('leased')}, 'nowhere', 999)")
    assert told(await store.repair()) == [("dedup_dangling", "q")]
    assert await store.lag("q") == before
    assert (await lag_of(store, "q", partition="stopped")).stopped


async def test_segment_of_a_queue_that_is_gone_is_repaired(
    store: PostgresStore, session: asyncpg.Connection[Any]
) -> None:
    await fill(store)
    await session.execute(
        """insert into lockstep.segment
           (queue_id, uuid, created_at, codec, message_count, partition_ids, first_seqs, counts, payloads)
           values (987654, gen_random_uuid(), now(), 0, 1, '{1}', '{1}', '{1}', array['x'::bytea])"""
    )
    assert told(await store.verify()) == [("segment_orphaned", None)]
    assert [problem.repaired for problem in await store.repair()] == [True]
    assert await store.verify() == []


async def test_verify_beside_traffic_sees_no_ghosts(dsn: str) -> None:
    """It looks at everything as of one moment, so what others do meanwhile is no problem to it."""
    stores = [PostgresStore(dsn) for _ in range(5)]
    await configure(stores[0], "q", max_size=100_000)
    await stores[0].subscribe("q", QUEUE_MODE, Subscription())
    working = 4

    async def work(store: PostgresStore, index: int) -> None:
        nonlocal working
        for number in range(20):
            lanes = [batch("q", 3, partition=f"p{(index + number + more) % 6}") for more in range(2)]
            await store.push(lanes)
            held = await pop(store, "q", partitions=2, batch=4)
            if held.lease_id is not None:
                await store.ack([Ack(lease_id=held.lease_id)])
        working -= 1

    async def look(store: PostgresStore) -> int:
        looks = 0
        while working:
            assert await store.verify() == []
            looks += 1
        return looks

    looks, *_ = await asyncio.gather(look(stores[4]), *(work(store, i) for i, store in enumerate(stores[:4])))
    assert looks > 0
    for store in stores:
        await store.close()

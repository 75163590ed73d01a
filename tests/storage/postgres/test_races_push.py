"""Pushes that meet: late commits, roll-backs, duplicates, lock order."""

from __future__ import annotations

import asyncio
import random
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from lockstep.config import Config
from lockstep.core.messages import Receipt
from lockstep.core.records import Ack
from lockstep.errors import InvalidRequest, LockTimeout
from lockstep.storage.postgres.store import PostgresStore
from support.builders import batch, numbers, pop, pop_all, push_n, push_tagged
from support.sessions import Actor, Stage

SQL_PUSH = "select lockstep.push($1, $2, $3::jsonb)"


async def sql_push(actor: Actor, number: int, *, partition: str = "p") -> Any:
    return await actor.sql(SQL_PUSH, "q", partition, f'{{"n": {number}}}')


async def with_partitions(actor: Actor, *partitions: str) -> None:
    """Make the partitions, consume what made them, and let the actor's store know their names."""
    await actor.store.push([batch("q", partition=partition) for partition in partitions])
    await pop_all(actor.store, "q")


# --- Late commit ------------------------------------------------------------------------------------------


async def test_push_waits_for_push_that_has_not_committed_and_follows_it(stage: Stage) -> None:
    """A pushes, B pushes to the same partition and waits, A commits: A's message is before B's."""
    a, b = await stage.actors(2)
    await a.begin()
    await sql_push(a, 1)
    waiting = await stage.blocked(push_n(b.store, "q", partition="p", start=2), b, by=a)
    await a.commit()
    assert [receipt.seq for receipt in await waiting] == [2]
    assert numbers(await pop(b.store, "q", batch=10)) == [1, 2]


@pytest.mark.parametrize("known", ["nothing", "queue", "partition"])
async def test_push_waits_for_what_another_creates_or_holds_as_long_as_it_is_told(
    stage: Stage, dsn: str, known: str
) -> None:
    """A makes a queue or a partition, or pushes to one, and does not commit: B gives up after its own time."""
    [a] = await stage.actors(1)
    patient = PostgresStore(dsn, config=Config(lock_timeout_seconds=3600))
    if known != "nothing":
        await push_n(patient, "q", partition="p" if known == "partition" else "other")
    await a.begin()
    await sql_push(a, 1)
    async with asyncio.timeout(30):
        with pytest.raises(LockTimeout):
            await patient.push([batch("q", partition="p")], lock_seconds=0.01)
    await a.rollback()
    await patient.close()


async def test_push_after_push_that_rolls_back_leaves_no_gap(stage: Stage) -> None:
    """A pushes, B waits, A rolls back: B's message takes the seq that A's would have had."""
    a, b = await stage.actors(2)
    await with_partitions(a, "p")
    await a.begin()
    await sql_push(a, 2)
    waiting = await stage.blocked(push_n(b.store, "q", partition="p", start=3), b, by=a)
    await a.rollback()
    assert [receipt.seq for receipt in await waiting] == [2]
    assert numbers(await pop(b.store, "q", batch=10)) == [3]


async def test_push_does_not_wait_for_push_to_another_partition(stage: Stage) -> None:
    """A pushes to p, B pushes to r and is done before A commits."""
    a, b = await stage.actors(2)
    await with_partitions(a, "p", "r")
    await a.begin()
    await sql_push(a, 2, partition="p")
    await push_n(b.store, "q", partition="r", start=3)
    assert numbers(await pop_all(b.store, "q")) == [3]
    await a.commit()
    assert numbers(await pop_all(b.store, "q")) == [2]


async def test_push_that_creates_a_partition_does_not_wait_for_one_that_creates_another(stage: Stage) -> None:
    """A creates partition p, B creates r and is done before A commits."""
    a, b = await stage.actors(2)
    await with_partitions(a, "first")
    await a.begin()
    await sql_push(a, 2, partition="p")
    await push_n(b.store, "q", partition="r", start=3)
    await a.commit()
    assert numbers(await pop_all(b.store, "q")) == [2, 3]


async def test_consumer_does_not_skip_message_that_commits_late(stage: Stage) -> None:
    """A pushes early and commits late; B pushed to another partition and committed in between; C popped then."""
    a, b, c = await stage.actors(3)
    await with_partitions(c, "p", "r")
    await a.begin()
    await sql_push(a, 2, partition="p")
    await push_n(b.store, "q", partition="r", start=3)
    assert numbers(await pop_all(c.store, "q")) == [3]
    await a.commit()
    assert numbers(await pop_all(c.store, "q")) == [2]


async def test_consumer_sees_nothing_of_a_push_before_it_commits(stage: Stage) -> None:
    """A pushes; B asks and pops and finds nothing, without waiting; A commits; B finds it."""
    a, b = await stage.actors(2)
    await with_partitions(b, "p")
    await a.begin()
    await sql_push(a, 2)
    assert not await pop(b.store, "q")
    assert not await pop(b.store, "q", partition="p")
    await a.commit()
    assert numbers(await pop(b.store, "q")) == [2]


async def test_pushes_queue_up_in_the_order_in_which_they_wait(stage: Stage) -> None:
    """A pushes; B waits; C waits behind it; A commits: the seqs are A, B, C."""
    a, b, c = await stage.actors(3)
    await with_partitions(a, "p")
    for actor in (b, c):
        await with_partitions(actor, "p")
    await a.begin()
    await sql_push(a, 1)
    second = await stage.blocked(push_n(b.store, "q", partition="p", start=2), b, by=a)
    third = await stage.blocked(push_n(c.store, "q", partition="p", start=3), c, by=b)
    await a.commit()
    await asyncio.gather(second, third)
    assert numbers(await pop(a.store, "q", batch=10)) == [1, 2, 3]


# --- Duplicates -------------------------------------------------------------------------------------------

TRANSACTION_IDS = [pytest.param("order-1", id="text"), pytest.param(str(uuid4()), id="uuid")]


@pytest.mark.parametrize("transaction_id", TRANSACTION_IDS)
async def test_same_transaction_id_at_once_is_stored_once(stage: Stage, transaction_id: str) -> None:
    """A pushes t, B pushes t and waits, A commits: B is told of A's message."""
    a, b = await stage.actors(2)
    await a.begin()
    [first] = await push_tagged(a.store, "q", transaction_id)
    waiting = await stage.blocked(push_tagged(b.store, "q", transaction_id), b, by=a)
    await a.commit()
    [second] = await waiting
    assert (second.status, second.message_id, second.seq) == ("duplicate", first.message_id, first.seq)
    assert len(await pop(b.store, "q", batch=10)) == 1


@pytest.mark.parametrize("transaction_id", TRANSACTION_IDS)
async def test_transaction_id_of_a_push_that_rolls_back_is_free(stage: Stage, transaction_id: str) -> None:
    """A pushes t, B pushes t and waits, A rolls back: B's message is stored."""
    a, b = await stage.actors(2)
    await with_partitions(a, "Default")
    await a.begin()
    await push_tagged(a.store, "q", transaction_id)
    waiting = await stage.blocked(push_tagged(b.store, "q", transaction_id), b, by=a)
    await a.rollback()
    [second] = await waiting
    assert (second.status, second.seq) == ("queued", 2)


@pytest.mark.parametrize("count", [5, 20])
async def test_same_transaction_id_from_many_is_stored_once(dsn: str, count: int) -> None:
    """Eight stores push the same transaction ids at once, in one call and one by one: few, and many."""
    ids = [f"t{number}" for number in range(count)] + [str(uuid4()) for _ in range(count)]
    stores = [PostgresStore(dsn) for _ in range(8)]

    async def push(store: PostgresStore, together: bool) -> list[Receipt]:
        if together:
            return await push_tagged(store, "q", *ids)
        return [receipt for identity in ids for receipt in await push_tagged(store, "q", identity)]

    answers = await asyncio.gather(*(push(store, index % 2 == 0) for index, store in enumerate(stores)))
    by_id: dict[str, list[Receipt]] = {}
    for receipt in (receipt for answer in answers for receipt in answer):
        by_id.setdefault(receipt.transaction_id, []).append(receipt)
    assert sorted(by_id) == sorted(ids)
    for receipts in by_id.values():
        assert [receipt.status for receipt in receipts].count("queued") == 1
        assert len({(receipt.message_id, receipt.seq) for receipt in receipts}) == 1
    assert len(await pop(stores[0], "q", batch=100)) == 2 * count
    await asyncio.gather(*(store.close() for store in stores))


# --- Lock order -------------------------------------------------------------------------------------------


async def test_push_locks_partitions_in_id_order_whatever_the_order_of_its_batches(stage: Stage) -> None:
    """A holds p1; B pushes [p2, p1] and waits for p1 without holding p2; so A goes on to p2."""
    a, b = await stage.actors(2)
    await with_partitions(a, "p1", "p2")
    await with_partitions(b, "p1", "p2")
    await a.begin()
    await push_n(a.store, "q", partition="p1", start=2)
    backwards = [batch("q", partition="p2", start=4), batch("q", partition="p1", start=5)]
    waiting = await stage.blocked(b.store.push(backwards), b, by=a)
    await push_n(a.store, "q", partition="p2", start=3)
    await a.commit()
    await waiting
    assert numbers(await pop(a.store, "q", partition="p1", batch=9)) == [2, 5]
    assert numbers(await pop(a.store, "q", partition="p2", batch=9)) == [3, 4]


async def test_transaction_locks_pushed_and_acked_partitions_together_in_order(stage: Stage) -> None:
    """A holds p1; B's transaction (ack in p2, push to p1) waits for p1 without holding p2; A goes on to p2."""
    a, b = await stage.actors(2)
    await with_partitions(a, "p1", "p2")
    await push_n(b.store, "q", partition="p1", start=2)
    await push_n(b.store, "q", partition="p2", start=3)
    held = await pop(b.store, "q", partition="p2")
    await a.begin()
    await push_n(a.store, "q", partition="p1", start=4)
    step = b.store.transaction([Ack(lease_id=held.lease_id)], [batch("q", partition="p1", start=5)])
    waiting = await stage.blocked(step, b, by=a)
    await push_n(a.store, "q", partition="p2", start=6)
    await a.commit()
    assert [outcome.success for outcome in (await waiting).acks] == [True]
    assert numbers(await pop(a.store, "q", partition="p1", batch=9)) == [2, 4, 5]
    assert numbers(await pop(a.store, "q", partition="p2", batch=9)) == [6]


async def test_ack_of_several_partitions_locks_them_in_order(stage: Stage) -> None:
    """A holds p1; B acks a lease over p1 and p2 and waits for p1 without holding p2; A goes on to p2."""
    a, b = await stage.actors(2)
    await with_partitions(a, "p1", "p2")
    await push_n(b.store, "q", partition="p2", start=2)
    await push_n(b.store, "q", partition="p1", start=3)
    held = await pop(b.store, "q", partitions=2, batch=2)
    assert len(held) == 2
    await a.begin()
    await push_n(a.store, "q", partition="p1", start=4)
    waiting = await stage.blocked(b.store.ack([Ack(lease_id=held.lease_id)]), b, by=a)
    await push_n(a.store, "q", partition="p2", start=5)
    await a.commit()
    assert [outcome.messages for outcome in await waiting] == [2]
    assert sorted(numbers(await pop(a.store, "q", partitions=2, batch=9))) == [4, 5]


async def test_pushes_that_create_partitions_of_several_queues_in_opposite_order(stage: Stage) -> None:
    """A wants x/p, g/p and y/p, and waits at queue g; B, which names y before x, is not held up by it; A goes on."""
    a, b, c = await stage.actors(3)
    await b.store.push([batch("x", partition="first"), batch("y", partition="first"), batch("g")])
    await c.begin()
    await c.sql("select 1 from lockstep.queue where name = 'g' for update")
    ahead = [batch("x", partition="p"), batch("g", partition="p"), batch("y", partition="p")]
    first = await stage.blocked(a.store.push(ahead), a, by=c)
    backwards = [batch("y", partition="p", start=2), batch("x", partition="p", start=2)]
    await b.store.push(backwards)
    await c.commit()
    await first
    assert numbers(await pop(a.store, "x", partition="p", batch=9)) == [2, 1]
    assert numbers(await pop(a.store, "y", partition="p", batch=9)) == [2, 1]


async def test_pushes_acks_and_transactions_over_the_same_partitions_do_not_deadlock(dsn: str) -> None:
    """Six stores push to, consume from and move between the same partitions, in random orders."""
    deadlocks: list[BaseException] = []

    def note(_name: str, _seconds: float, error: BaseException | None) -> None:
        if isinstance(error, asyncpg.DeadlockDetectedError):
            deadlocks.append(error)

    stores = [PostgresStore(dsn, on_query=note) for _ in range(6)]
    names = [f"p{number}" for number in range(5)]
    await stores[0].push([batch("q", 5, partition=name) for name in names])
    await pop(stores[0], "q", group="other")

    async def work(store: PostgresStore, seed: int) -> None:
        choose = random.Random(seed)
        for _ in range(15):
            lanes = [batch("q", partition=name) for name in choose.sample(names, 3)]
            popped = await pop(store, "q", partitions=3, batch=4, group=choose.choice(["__QUEUE_MODE__", "other"]))
            acks = [Ack(lease_id=popped.lease_id)] if popped else []
            match choose.randrange(3):
                case 0:
                    await store.transaction(acks, lanes)
                case 1:
                    await asyncio.gather(store.push(lanes), store.ack(acks))
                case _:
                    await store.ack(acks)
                    await store.push(lanes)

    await asyncio.gather(*(work(store, seed) for seed, store in enumerate(stores)))
    assert deadlocks == []
    assert await stores[0].verify() == []
    await asyncio.gather(*(store.close() for store in stores))


# --- Isolation --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("isolation", ["repeatable_read", "serializable"])
async def test_push_in_a_transaction_with_one_snapshot_is_refused(stage: Stage, isolation: str) -> None:
    """A's transaction sees one snapshot only, so it cannot look after it has locked: LS002."""
    a, b = await stage.actors(2)
    await with_partitions(b, "p")
    await a.begin(isolation)
    with pytest.raises(asyncpg.PostgresError, match="READ COMMITTED") as refused:
        await sql_push(a, 2)
    assert refused.value.sqlstate == "LS002"
    await a.rollback()
    assert numbers(await pop_all(b.store, "q")) == []


async def test_push_through_a_store_in_a_repeatable_read_transaction_is_an_invalid_request(stage: Stage) -> None:
    a, b = await stage.actors(2)
    await with_partitions(b, "p")
    with pytest.raises(InvalidRequest, match="READ COMMITTED"):
        await a.store.database.transaction(
            lambda connection: a.store.database.on(connection, "push", SQL_PUSH, "q", "p", "{}"),
            isolation="repeatable_read",
        )


async def test_refusal_of_one_snapshot_comes_before_a_serialization_failure(stage: Stage) -> None:
    """A begins REPEATABLE READ and looks; B reconfigures the queue; A pushes: told of the isolation level."""
    a, b = await stage.actors(2)
    await with_partitions(b, "p")
    await a.begin("repeatable_read")
    await a.sql("select 1 from lockstep.queue")
    await b.sql("update lockstep.queue set priority = 5")
    with pytest.raises(asyncpg.PostgresError, match="READ COMMITTED"):
        await sql_push(a, 2)
    await a.rollback()


async def test_first_messages_that_expire_of_two_producers(stage: Stage) -> None:
    """A and B mark the queue, which C holds, and make partitions. Neither holds what the other waits for."""
    a, b, c = await stage.actors(3)
    await push_n(c.store, "q")
    at = datetime.now(UTC) + timedelta(hours=1)
    await c.begin()
    await c.sql("select 1 from lockstep.queue where name = 'q' for share")
    first = await stage.blocked(push_n(a.store, "q", partition="a", expires_at=[at]), a, by=c)
    second = stage.start(push_n(b.store, "q", partition="b", expires_at=[at]))
    await stage.until_blocked(b.pid)
    await c.commit()
    assert [receipt.seq for receipts in await asyncio.gather(first, second) for receipt in receipts] == [1, 1]


async def test_first_messages_that_expire_make_their_queue(stage: Stage) -> None:
    a, b = await stage.actors(2)
    at = datetime.now(UTC) + timedelta(hours=1)
    await a.begin()
    await push_n(a.store, "q", partition="a", expires_at=[at])
    waiting = await stage.blocked(push_n(b.store, "q", partition="b", expires_at=[at]), b, by=a)
    await a.commit()
    assert [receipt.seq for receipt in await waiting] == [1]
    assert await stage.observer.fetchval("select expiring from lockstep.queue where name = 'q'")

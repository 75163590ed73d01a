"""Clear, delete_queue and verify work in slices: what others see in between, and how much one statement takes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any
from uuid import uuid4

import asyncpg
import psycopg
import pytest
import pytest_asyncio

from lockstep.config import Config
from lockstep.core.maintenance import Place
from lockstep.core.messages import NewSchedule
from lockstep.core.records import Ack, ClearScope, DeadLetterFilter, MessageFilter, Renewal, Subscription
from lockstep.core.schedules import ScheduleFilter
from lockstep.core.traces import NewTraceEvent
from lockstep.engine.maintenance.deleted_queues import DeletedQueues
from lockstep.engine.maintenance.duty import DutyReport
from lockstep.errors import LockTimeout, MessageNotFound, PartitionNotFound, QueueNotFound
from lockstep.storage.postgres.store import PostgresStore
from support.builders import SMALL_SLICES, ack, ack_of, batch, configure, numbers, pop, pop_all, push_n
from support.clock import SetClock
from support.sessions import Stage

_OWNED = (
    "partition",
    "cursor",
    "delivery",
    "dedup_uuid",
    "dedup_text",
    "run",
    "segment",
    "dead_letter",
    "trace_index",
    "trace_event",
    "trace_name",
    "stream_state",
    "scheduled",
    "depth",
    "consumer_group",
    "subscription",
    "deleted_queue",
)


@pytest_asyncio.fixture
async def stage(dsn: str) -> AsyncIterator[Stage]:
    """Some of these tests damage what they look at."""
    async with Stage(dsn) as stage:
        yield stage


@pytest_asyncio.fixture
async def store(dsn: str, clock: SetClock) -> AsyncIterator[PostgresStore]:
    made = small(dsn, clock=clock)
    yield made
    await made.close()


def small(dsn: str, **given: Any) -> PostgresStore:
    return PostgresStore(dsn, config=SMALL_SLICES, **given)


async def rows_left(connection: asyncpg.Connection[Any]) -> dict[str, int]:
    """By table, the rows of what a queue owns, and no ballast; those that have none are left out."""
    counts = {table: await connection.fetchval(f"select count(*) from lockstep.{table}") for table in _OWNED}
    counts["delivery"] -= await connection.fetchval("select count(*) from lockstep.delivery where group_id = 0")
    return {table: count for table, count in counts.items() if count}


async def fill(store: PostgresStore, queue: str = "q") -> None:
    """A queue with something of everything."""
    await configure(store, queue, max_size=1000)
    for number in range(7):
        transaction_ids = [str(uuid4()), f"t{number}", None]
        trace_ids = [str(uuid4()), None, None]
        await store.push(
            [batch(queue, 3, partition=f"p{number}", transaction_ids=transaction_ids, trace_ids=trace_ids)]
        )
    await store.push([batch(queue, 1, partition=f"p{number}", start=9) for number in range(7)])
    await store.subscribe(queue, "g", Subscription())
    await store.subscribe(queue, "s", Subscription(), mode="shared")
    await pop(store, queue, group="s", batch=5, partitions=3)
    popped = await pop(store, queue, group="g", batch=2, partitions=1)
    first = next(iter(popped.messages()))
    await store.ack([ack_of(first, "dlq", group="g")])
    await store.record_trace(
        NewTraceEvent(partition_id=first.partition_id, transaction_id=first.transaction_id, data=b"{}", names=("seen",))
    )


# --- Deleting ---------------------------------------------------------------------------------------------


async def test_deleting_in_slices_leaves_nothing(store: PostgresStore, stage: Stage) -> None:
    await fill(store)
    await fill(store, "other")
    before = await store.overview()
    assert await store.delete_queue("q")
    assert not await store.delete_queue("q")
    assert (await store.overview()).messages * 2 == before.messages
    assert await store.verify() == []
    assert await store.delete_queue("other")
    assert await rows_left(stage.observer) == {}


async def test_queue_is_gone_for_everybody_before_its_rows_are(store: PostgresStore, stage: Stage) -> None:
    """As after kill -9 of the process that deletes it, right after the first transaction."""
    await fill(store)
    held = await pop(store, "q", group="g", batch=2)
    shared = await pop(store, "q", group="s", batch=2)
    one = next(iter(held.messages()))
    assert await stage.observer.fetchval("select lockstep.delete_queue('q')") is not None

    for gone in (store.queue("q"), store.lag("q"), store.clear("q"), store.partitions("q")):
        with pytest.raises(QueueNotFound):
            await gone
    assert await store.queues() == []
    assert not await pop(store, "q", group="g")
    assert (await store.messages(MessageFilter())).items == []
    with pytest.raises(MessageNotFound):
        await store.message(one.id)
    assert (await store.dead_letters(DeadLetterFilter())).total == 0
    assert await store.leases() == []
    assert (await store.trace_names()).total == (await store.traces_by_name("seen")).total == 0
    overview = await store.overview()
    assert (overview.queues, overview.messages, overview.dead_letters) == (0, 0, 0)
    assert await store.verify() == []

    for lease_id in (held.lease_id, shared.lease_id):
        assert (await ack(store, lease_id=lease_id)).error == "lease_lost"
        assert (await ack(store, lease_id=lease_id, status="failed")).error == "lease_lost"
        assert (await store.renew([Renewal(lease_id=str(lease_id))]))[0].partitions == 0
    assert (await store.ack([ack_of(one, group="g")]))[0].error == "unresolvable"


async def test_name_is_free_before_the_rows_of_the_old_queue_are_gone(store: PostgresStore, stage: Stage) -> None:
    """With the ids of the old queue in the cache: nothing that is pushed goes to it."""
    await fill(store)
    assert await stage.observer.fetchval("select lockstep.delete_queue('q')") is not None
    receipts = await store.push([batch("q", 2, partition="p1", start=100), batch("q", 1, partition="p2", start=200)])
    assert [receipt.seq for receipt in receipts] == [1, 2, 1]
    assert [receipt.seq for receipt in await push_n(store, "q", partition="p1", start=300)] == [3]
    while (await store.prune_queues()).next is not None:
        pass
    assert sorted(numbers(await pop_all(store, "q", group="g"))) == [100, 101, 200, 300]
    assert await store.verify() == []
    assert await store.delete_queue("q")
    assert await rows_left(stage.observer) == {}


async def test_maintenance_removes_what_a_killed_process_left(store: PostgresStore, stage: Stage) -> None:
    await fill(store)
    await fill(store, "kept")
    await stage.observer.fetchval("select lockstep.delete_queue('q')")
    kept = await store.queue("kept")
    duty = DeletedQueues(store, Config())
    assert await duty.run_once() == DutyReport({"partitions": 8, "messages": 28})
    assert await duty.run_once() == DutyReport({"partitions": 0, "messages": 0})
    assert await store.queue("kept") == kept
    assert await stage.observer.fetchval("select count(*) from lockstep.deleted_queue") == 0
    assert await stage.observer.fetchval("select count(*) from lockstep.partition") == kept.partitions
    assert await store.verify() == []


async def test_what_waited_in_a_deleted_queue_is_not_promoted(
    store: PostgresStore, stage: Stage, clock: SetClock
) -> None:
    """By whoever has found it due before the queue was deleted."""
    await store.push([replace(batch("q", 3), schedule=NewSchedule(delay_seconds=60))])
    clock.advance(61)
    queue_id = await stage.observer.fetchval("select lockstep.delete_queue('q')")
    take = "select count(*) from lockstep.take_due($1, 10, 1000000, $2)"
    assert await stage.observer.fetchval(take, queue_id, clock.now) == 0
    assert (await store.promote(limit=10)).messages == 0
    assert (await store.schedules(ScheduleFilter())).items == []
    while (await store.prune_queues()).next is not None:
        pass
    assert await rows_left(stage.observer) == {}


async def test_two_who_remove_the_same_queue_do_not_disturb_each_other(dsn: str, stage: Stage) -> None:
    one, other = small(dsn), small(dsn)
    await fill(one)
    await stage.observer.fetchval("select lockstep.delete_queue('q')")
    place: Place | None = None
    for turn in range(100):
        place = (await (one, other)[turn % 2].prune_queues(after=place)).next
        if place is None:
            break
    assert await rows_left(stage.observer) == {}
    await one.close()
    await other.close()


async def test_push_in_flight_to_a_queue_that_is_deleted(stage: Stage) -> None:
    """A pushes and holds on; B deletes, which everybody sees, and waits for A's partition; A commits."""
    a, b, c = await stage.actors(3)
    await push_n(a.store, "q", partition="p")
    await a.begin()
    await push_n(a.store, "q", partition="p", start=2)
    waiting = await stage.blocked(b.store.delete_queue("q"), b, by=a)
    assert await c.store.queues() == []
    await push_n(c.store, "q", partition="p", start=7)
    await a.commit()
    assert await waiting
    assert numbers(await pop_all(c.store, "q")) == [7]
    assert (await c.store.queue("q")).messages == 1
    assert await c.store.verify() == []
    assert "deleted_queue" not in await rows_left(stage.observer)


async def test_push_that_waits_for_a_queue_that_is_being_deleted(stage: Stage) -> None:
    """B deletes and is at the partitions, A pushes with the ids that it knows, and waits; it goes to a new queue."""
    a, b = await stage.actors(2)
    await push_n(a.store, "q", 2, partition="p")
    await b.begin()
    assert await b.store.delete_queue("q")
    waiting = await stage.blocked(push_n(a.store, "q", partition="p", start=7), a, by=b)
    await b.commit()
    assert [receipt.seq for receipt in await waiting] == [1]
    assert numbers(await pop_all(a.store, "q")) == [7]


async def test_deletion_that_cannot_go_on_is_left_to_maintenance(
    dsn: str, stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    """Somebody's transaction holds a partition for longer than a lock is waited for: the queue is deleted anyway."""
    config = Config(lock_timeout_seconds=0.05, transaction_attempts_max=1)
    store = PostgresStore(dsn, config=config)
    (holder,) = await stage.actors(1)
    await push_n(store, "held")
    await push_n(store, "free")
    await holder.begin()
    await holder.sql("select 1 from lockstep.partition order by id limit 1 for share")
    assert await store.delete_queue("held")
    assert "queue_removal_postponed" in [record.message for record in caplog.records]
    assert [queue.name for queue in await store.queues()] == ["free"]
    await stage.observer.fetchval("select lockstep.delete_queue('free')")
    duty = DeletedQueues(store, Config())
    assert (await duty.run_once()).effect == {"partitions": 1, "messages": 1}, "the other one is not held up"
    await holder.commit()
    assert (await duty.run_once()).effect == {"partitions": 1, "messages": 1}
    assert await rows_left(stage.observer) == {}
    await store.close()


async def test_cursor_that_changes_while_its_partition_is_removed(stage: Stage) -> None:
    """A's pop holds a cursor; the slice of B waits for it, and takes it with the next look."""
    a, b = await stage.actors(2)
    await push_n(a.store, "q", partition="p")
    await pop(a.store, "q", group="g", partition="none")
    await a.store.subscribe("q", "g", Subscription())
    await a.begin()
    assert await pop(a.store, "q", group="g")
    await stage.observer.fetchval("select lockstep.delete_queue('q')")
    waiting = await stage.blocked(b.store.prune_queues(), b, by=a)
    await a.commit()
    place = (await waiting).next
    while place is not None:
        place = (await b.store.prune_queues(after=place)).next
    assert await rows_left(stage.observer) == {}


# --- Clearing ---------------------------------------------------------------------------------------------


async def test_what_is_pushed_before_messages_go_is_removed_or_delivered(dsn: str, stage: Stage) -> None:
    """A clear waits between its slices for a partition that somebody holds, while others push to both sides of it."""
    store = small(dsn)
    holder, other = await stage.actors(2)
    await store.push([batch("q", 2, partition=f"p{number}") for number in range(6)])
    await store.subscribe("q", "g", Subscription())
    assert await pop(store, "q", group="g", batch=2)
    await holder.begin()
    await holder.sql("select 1 from lockstep.partition where name = 'p3' for no key update")
    clearing = stage.start(store.clear("q"))
    await until_waiting(stage, "lockstep.wait_for_partition")
    # Before it, the cursors are at the end; behind it, they are not yet.
    assert await other.sql("select count(*) from lockstep.cursor where due_at is null") > 0
    await other.store.push([batch("q", partition=name, start=10 + i) for i, name in enumerate(("p0", "p5"))])
    await holder.commit()
    removed = await clearing
    left = numbers(await pop_all(store, "q", group="g"))
    assert removed + len(left) == 14
    assert set(left) <= {10, 11}
    assert (await store.queue("q")).pending == 0
    assert await store.verify() == []
    await store.close()


@pytest.mark.parametrize("scope", ["all", "unleased"])
async def test_clear_that_waits_for_a_held_partition_holds_up_no_other(stage: Stage, scope: ClearScope) -> None:
    """All partitions are in one slice."""
    holder, other, clearer = await stage.actors(3)
    await other.store.push([batch("q", 2, partition=f"p{number}") for number in range(6)])
    await other.store.subscribe("q", "g", Subscription())
    await holder.begin()
    await holder.sql("select 1 from lockstep.partition where name = 'p3' for no key update")
    clearing = stage.start(clearer.store.clear("q", scope=scope))
    await until_waiting(stage, "lockstep.wait_for_partition")
    await other.store.push([batch("q", partition=f"p{number}", start=10) for number in (0, 1, 2, 4, 5)])
    assert not clearing.done()
    await holder.commit()
    removed = await clearing
    assert removed >= 12
    assert removed + len(await pop_all(other.store, "q", group="g")) == 17
    assert await other.store.verify() == []


async def test_what_is_pushed_while_messages_go_is_delivered(dsn: str, stage: Stage) -> None:
    store = small(dsn)
    holder, other = await stage.actors(2)
    for number in range(6):
        await push_n(store, "q", 2, partition=f"p{number}")
    await store.subscribe("q", "g", Subscription())
    await holder.begin()
    await holder.sql("select 1 from lockstep.segment order by id desc limit 1 for update")
    clearing = stage.start(store.clear("q"))
    await until_waiting(stage, "lockstep.clear(")
    assert (await other.store.queue("q")).messages < 12
    await push_n(other.store, "q", partition="p0", start=10)
    await holder.rollback()
    assert await clearing == 12
    assert numbers(await pop_all(store, "q", group="g")) == [10]
    assert await store.verify() == []
    await store.close()


async def until_waiting(stage: Stage, statement: str) -> None:
    query = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and strpos(query, $1) > 0"
    for _ in range(10_000):
        if await stage.observer.fetchval(query, statement):
            return
    raise AssertionError(f"nobody waits in {statement}")


async def test_clear_that_fails_is_repeated(dsn: str, stage: Stage) -> None:
    store = PostgresStore(
        dsn, config=Config(slice_messages_max=2, lock_timeout_seconds=0.05, transaction_attempts_max=1)
    )
    (holder,) = await stage.actors(1)
    for number in range(4):
        await push_n(store, "q", 2, partition=f"p{number}")
    await holder.begin()
    await holder.sql("select 1 from lockstep.partition where name = 'p2' for share")
    with pytest.raises(LockTimeout):
        await store.clear("q", scope="unleased")
    assert (await store.queue("q")).messages == 4, "two slices were done"
    assert await store.verify() == []
    await holder.commit()
    assert await store.clear("q", scope="unleased") == 4
    assert (await store.queue("q")).messages == 0
    await store.close()


async def test_queue_that_is_deleted_while_it_is_cleared(dsn: str, stage: Stage) -> None:
    store = small(dsn)
    holder, other = await stage.actors(2)
    await store.push([batch("q", 2, partition=f"p{number}") for number in range(6)])
    await holder.begin()
    await holder.sql("select 1 from lockstep.partition where name = 'p3' for share")
    clearing = stage.start(store.clear("q"))
    await until_waiting(stage, "lockstep.wait_for_partition")
    deleting = stage.start(other.store.delete_queue("q"))
    await stage.until_blocked(other.pid)
    await holder.commit()
    with pytest.raises(QueueNotFound):
        await clearing
    assert await deleting
    assert await rows_left(stage.observer) == {}
    await store.close()


@pytest.mark.parametrize("leased", [0, 1, 2])
async def test_leases_inside_a_run_are_spared_in_any_number(store: PostgresStore, leased: int) -> None:
    """Several shared leases cut one run into pieces, of which every second one goes."""
    await store.push([batch("q", 10, partition="p")])
    await store.subscribe("q", "s", Subscription(), mode="shared")
    held = [await pop(store, "q", group="s", batch=2) for _ in range(4)]
    for one in held[leased + 1 :: 2]:
        await ack(store, lease_id=one.lease_id)
    live = [one for i, one in enumerate(held) if i <= leased or (i - leased - 1) % 2]
    kept = sum(len(one) for one in live)
    assert await store.clear("q", partition="p", scope="unleased") == 10 - kept
    assert [(await ack(store, lease_id=one.lease_id)).success for one in live] == [True] * len(live)
    assert await store.verify() == []
    with pytest.raises(PartitionNotFound):
        await store.clear("q", partition="none")


# --- Size -------------------------------------------------------------------------------------------------

PARTITIONS = 100_000
_GROW = """
with made as (
    insert into lockstep.partition (queue_id, name, created_at)
    select q.id, 'p' || n, now() from lockstep.queue q, generate_series(1, %(partitions)s::int) n where q.name = 'q'
    returning id, queue_id
), cursors as (
    insert into lockstep.cursor (partition_id, group_id, due_at)
    select m.id, g.id, now() from made m join lockstep.consumer_group g on g.queue_id = m.queue_id
), segments as (
    insert into lockstep.segment (
        queue_id, uuid, created_at, codec, message_count, partition_ids, first_seqs, counts, payloads
    )
    select m.queue_id, lockstep.segment_uuid(), now(), 0, count(*), array_agg(m.id order by m.id),
           array_agg(1::bigint), array_agg(1), array_agg('1'::bytea)
    from (select m.*, row_number() over (order by m.id) / 1000 as wave from made m) m group by m.queue_id, m.wave
    returning id, partition_ids
)
insert into lockstep.run (partition_id, first_seq, last_seq, segment_id, ordinal)
select t.id, 1, 1, s.id, t.o - 1 from segments s cross join lateral unnest(s.partition_ids) with ordinality t (id, o)
"""


async def test_many_partitions_are_cleared_and_deleted_by_short_statements(database_dsn: str) -> None:
    """None may take two seconds, on however busy a machine; all of them at once take several."""
    longest: dict[str, float] = {}

    def note(name: str, seconds: float, _error: BaseException | None) -> None:
        longest[name] = max(longest.get(name, 0.0), seconds)

    config = Config(statement_timeout_seconds=2, slice_messages_max=3_000)
    store = PostgresStore(database_dsn, config=config, on_query=note)
    await push_n(store, "q")
    await store.subscribe("q", "g", Subscription())
    with psycopg.connect(database_dsn, autocommit=True) as connection:
        connection.execute(_GROW, {"partitions": PARTITIONS})
        connection.execute("vacuum analyze")
    longest.clear()
    assert await store.clear("q") == PARTITIONS + 1
    assert await pop_all(store, "q", group="g") == []
    assert await store.delete_queue("q")
    assert {"clear_places", "clear", "remove_deleted_partitions"} <= longest.keys()
    with psycopg.connect(database_dsn, autocommit=True) as connection:
        for table in ("partition", "cursor", "run", "segment", "deleted_queue"):
            assert connection.execute(f"select count(*) from lockstep.{table}").fetchone() == (0,)
    await store.close()


# --- Verifying --------------------------------------------------------------------------------------------

_SLOW = """
alter function lockstep.{name} rename to {name}_itself;
create function lockstep.{name}({arguments})
returns table (kind text, problem text, queue_name text, partition_id bigint, repairable boolean) language plpgsql as $$
begin
    if {slow} then
        perform pg_sleep(60);
    end if;
    return query select * from lockstep.{name}_itself({given});
end $$
"""


async def test_partition_that_takes_too_long_is_told_and_passed(database_dsn: str) -> None:
    store = PostgresStore(database_dsn, config=Config(statement_timeout_seconds=0.4))
    await store.push([batch("a", partition=f"p{number}") for number in range(12)])
    await push_n(store, "b")
    slow, queue_id = (await store.partition("a", "p4")).id, (await store.queue("a")).id
    with psycopg.connect(database_dsn, autocommit=True) as connection:
        connection.execute(
            _SLOW.format(
                name="verify",
                arguments="_queue_id int, _after bigint, _upto bigint, _at timestamptz",
                given="_queue_id, _after, _upto, _at",
                slow=f"_queue_id = {queue_id} and _after < {slow} and _upto >= {slow}",
            )
        )
    place: Place | None = None
    problems, partitions = [], 0
    for _ in range(100):
        verified = await store.verify_slice(after=place, partitions=10)
        problems += verified.problems
        partitions += verified.partitions
        place = verified.next
        if place is None:
            break
    assert [(problem.kind, problem.queue, problem.partition_id) for problem in problems] == [("unverified", "a", slow)]
    assert partitions == 13
    assert [problem.kind for problem in await store.verify(queue="a")] == ["unverified"]
    assert await store.verify(queue="b") == []
    await store.close()


async def test_segment_that_takes_too_long_is_told_and_passed(database_dsn: str) -> None:
    store = PostgresStore(database_dsn, config=Config(statement_timeout_seconds=0.4))
    for number in range(12):
        await push_n(store, "a", partition=f"p{number % 3}")
    with psycopg.connect(database_dsn, autocommit=True) as connection:
        found = connection.execute("select id from lockstep.segment order by id offset 5 limit 1").fetchone()
        assert found is not None
        connection.execute(
            _SLOW.format(
                name="verify_segments",
                arguments="_queue_id int, _after bigint, _upto bigint",
                given="_queue_id, _after, _upto",
                slow=f"_after < {found[0]} and _upto >= {found[0]}",
            )
        )
    assert [problem.text for problem in await store.verify()] == [
        f"segment {found[0]} could not be verified within statement_timeout_seconds"
    ]
    await store.close()


async def test_traces_are_verified_in_slices(store: PostgresStore, stage: Stage) -> None:
    trace_ids = sorted(str(uuid4()) for _ in range(5))
    await store.push([batch("q", 10, trace_ids=trace_ids * 2)])
    partition_id = (await store.partition("q", "Default")).id
    for trace_id in (trace_ids[0], trace_ids[4]):
        await stage.observer.execute("insert into lockstep.trace_index values ($1, $2, 99)", trace_id, partition_id)
    found, place = [], Place(part="traces")
    while True:
        verified = await store.verify_slice(after=place, partitions=3)
        found += [problem.text for problem in verified.problems]
        if verified.next is None:
            break
        place = verified.next
    assert found == [
        f"trace {trace_id} points at seq 99, which is not stored" for trace_id in (trace_ids[0], trace_ids[4])
    ]
    assert [problem.kind for problem in await store.verify(queue="q")] == ["trace_dangling"] * 2


async def test_repair_leaves_alone_what_spark_has_staged(store: PostgresStore, stage: Stage) -> None:
    await push_n(store, "q")
    await stage.observer.execute(
        """insert into lockstep.segment
           (queue_id, uuid, created_at, codec, message_count, partition_ids, first_seqs, counts, payloads)
           values (0, gen_random_uuid(), now(), 0, 1, '{}', '{}', '{}', array['x'::bytea])"""
    )
    await stage.observer.execute(
        "insert into lockstep.dedup_text values ((select min(id) from lockstep.partition), 'x', 9)"
    )
    assert [problem.repaired for problem in await store.repair()] == [True]
    assert await stage.observer.fetchval("select count(*) from lockstep.segment where queue_id = 0") == 1


async def test_ack_of_a_lease_beside_a_clear_of_all(store: PostgresStore) -> None:
    """Leases end with the clear, on every partition, also where nothing is stored."""
    await store.push([batch("q", 2, partition=f"p{number}") for number in range(5)])
    held = await pop(store, "q", partitions=5, batch=10)
    await store.clear("q", scope="unleased")
    assert await store.clear("q") == 10
    assert [outcome.error for outcome in await store.ack([Ack(lease_id=held.lease_id)])] == ["lease_lost"]
    assert await store.leases() == []

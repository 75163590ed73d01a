"""What the hot calls cost: no scan of a whole table, and as few blocks among 100,000 partitions as among 1,000.

The statements live inside functions, so they are measured where they run: PostgreSQL counts scans and blocks per
table, and each call is taken between two readings of these counters.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from statistics import median
from typing import Any
from uuid import uuid4

import asyncpg
import psycopg
import pytest
import pytest_asyncio
from msgspec.structs import replace

from lockstep.core.maintenance import Place
from lockstep.core.messages import Batch, Columns, NewSchedule
from lockstep.core.names import QUEUE_MODE
from lockstep.core.operations import Outcome, pack_outcomes
from lockstep.core.policy import QueueOptions
from lockstep.core.records import (
    Ack,
    Awaited,
    DeadLetterFilter,
    MessageFilter,
    PendingRequest,
    PopRequest,
    Renewal,
    Subscription,
)
from lockstep.storage.postgres import sql
from lockstep.storage.postgres.session import PLANNER
from support.builders import ack_of, batch, next_of, pop, pop_all, push_n
from support.costs import FLUSH, Cost, cost
from support.databases import Databases, run_apart
from support.hot_calls import GROW_BESIDE, MORE_SCENARIOS, Call, Scenario
from support.sessions import Actor, Stage

# One worker makes the databases of these tests, and not each that happens to get some of them.
pytestmark = pytest.mark.xdist_group("plans")

SMALL, LARGE = 1_000, 100_000
GROWN = 20_000
KNOWN_MIN = 60
"""A little more than the changes that autovacuum waits for (autovacuum_analyze_threshold)."""
GROWTH_MAX = 1.5
LEVELS_MAX = 40
"""A larger index may have one level more, and a call looks into several."""
MESSAGES_PER_PARTITION = 2
DEEP = 2_000

READY = QUEUE_MODE
"""Every partition has something for this group."""
DRAINED = "drained"
"""No partition has anything for this group, unless a test pushes."""
BUSY = "busy"
"""Every partition is leased by this group, for an hour."""
SHARED = "shared"
"""A shared group: every partition has something new for it."""
IN_FLIGHT = "in-flight"
"""A shared group that has all messages of every partition in flight, for an hour."""

# As many partitions as asked for, with messages in segments of 1,000 partitions each, as wide pushes make them.
_GROW = """
with made as (
    insert into lockstep.partition (queue_id, name, created_at)
    select q.id, 'p' || n, clock_timestamp()
    from lockstep.queue q, generate_series(%(first)s::int, %(last)s::int) n where q.name = 'q'
    returning id, queue_id
), cursors as (
    insert into lockstep.cursor (partition_id, group_id, acked, due_at, lease_id, lease_to, leased_at)
    select m.id, g.id, case when g.name in ('drained', 'in-flight') then %(messages)s else 0 end,
           case when g.name = 'busy' then clock_timestamp() + interval '1 hour'
                when g.name not in ('drained', 'in-flight') then clock_timestamp() end,
           case g.name when 'busy' then gen_random_uuid() end, case g.name when 'busy' then %(messages)s end,
           case g.name when 'busy' then clock_timestamp() end
    from made m join lockstep.consumer_group g on g.queue_id = m.queue_id
), deliveries as (
    insert into lockstep.delivery (partition_id, group_id, from_seq, to_seq, lease_id, leased_at, due_at, attempts)
    select m.id, g.id, 1, %(messages)s, gen_random_uuid(), clock_timestamp(), clock_timestamp() + interval '1 hour', 0
    from made m join lockstep.consumer_group g on g.queue_id = m.queue_id and g.name = 'in-flight'
), segments as (
    insert into lockstep.segment (
        queue_id, uuid, created_at, codec, message_count, partition_ids, first_seqs, counts, payloads
    )
    select m.queue_id, lockstep.segment_uuid(), clock_timestamp(), 0, count(*), array_agg(m.id order by m.id),
           array_agg(s.seq order by m.id), array_agg(1 order by m.id), array_agg('{"n":1}'::bytea order by m.id)
    from (select m.*, row_number() over (order by m.id) / 1000 as wave from made m) m
    cross join generate_series(1, %(messages)s::bigint) s (seq)
    group by m.queue_id, m.wave, s.seq
    returning id, partition_ids, first_seqs
), uuids as (
    insert into lockstep.dedup_uuid (partition_id, transaction_id, seq) select m.id, gen_random_uuid(), 1 from made m
), texts as (
    insert into lockstep.dedup_text (partition_id, transaction_id, seq)
    select m.id, 't' || m.id, 2 from made m where m.id %% 10 = 0
), traces as (
    insert into lockstep.trace_index (trace_id, partition_id, seq) select gen_random_uuid(), m.id, 1 from made m
), waiting as (
    insert into lockstep.scheduled (queue_id, partition_name, due_at, created_at, codec, body)
    select m.queue_id, 'waiting', clock_timestamp() + interval '1 day', clock_timestamp(), 1, '' from made m
), dead_letters as (
    insert into lockstep.dead_letter (queue_id, partition_id, seq, group_name, attempts, failed_at)
    select m.queue_id, m.id, 1, 'gone', 1, clock_timestamp() from made m where m.id %% 10 = 0
)
insert into lockstep.run (partition_id, first_seq, last_seq, segment_id, ordinal)
select t.id, t.seq, t.seq, s.id, t.o - 1 from segments s
cross join lateral unnest(s.partition_ids, s.first_seqs) with ordinality t (id, seq, o)
"""
_MORE_QUEUES = """
select lockstep.create_queue('other' || n, 'other', '', clock_timestamp())
from generate_series(%(first)s::int, %(last)s::int) n
"""
# Queues with one partition each, and a group that reads it.
_NARROW_QUEUES = """
do $$
begin
    for n in 1 .. 60 loop
        perform lockstep.push('narrow' || n, 'p', '{}'::jsonb);
        perform lockstep.subscribe(q.id, 'g', 'all', null, 'ordered', null)
        from lockstep.queue q where q.name = 'narrow' || n;
    end loop;
    perform lockstep.place_slice(g.id, null, 10, null) from lockstep.consumer_group g where g.placed_upto is not null;
end $$
"""
# A queue with a long backlog in few partitions: a run for each message, as small pushes make them.
_DEEPEN = """
with whole as (
    delete from lockstep.run r using lockstep.partition p join lockstep.queue q on q.id = p.queue_id
    where r.partition_id = p.id and q.name = 'deep' returning r.*
)
insert into lockstep.run (partition_id, first_seq, last_seq, segment_id, ordinal)
select w.partition_id, seq, seq, w.segment_id, w.ordinal + seq - w.first_seq
from whole w cross join lateral generate_series(w.first_seq, w.last_seq) seq
"""
_NO_AUTOVACUUM = """
do $$
declare
    _table text;
begin
    for _table in select tablename from pg_tables where schemaname = 'lockstep' loop
        execute format('alter table lockstep.%I set (autovacuum_enabled = off)', _table);
    end loop;
end $$
"""


def grow(dsn: str, last: int, *, first: int = 1, analyze: bool) -> None:
    """Make the partitions p<first> to p<last>, and a queue without any for each ten of them."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(_GROW, {"first": first, "last": last, "messages": MESSAGES_PER_PARTITION})
        connection.execute(GROW_BESIDE, {"first": first, "last": last, "done": pack_outcomes([Outcome()])})
        connection.execute(_MORE_QUEUES, {"first": first // 10, "last": last // 10})
        if analyze:
            connection.execute("vacuum analyze")
            connection.execute(FLUSH)  # or it would count as soon as this session has ended


def deepen(dsn: str) -> None:
    """Give the queue with few partitions its backlog."""

    async def main() -> None:
        async with Stage(dsn) as stage:
            store = (await stage.actor()).store
            await store.push([batch("deep", DEEP, partition=f"d{number}") for number in range(4)])

    run_apart(main)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(_DEEPEN)


def prepare(dsn: str) -> None:
    """The queue with its groups; and nobody else's blocks in the counters."""

    async def main() -> None:
        async with Stage(dsn) as stage:
            store = (await stage.actor()).store
            await push_n(store, "q", partition="first")
            for group in (READY, DRAINED, BUSY, SHARED, IN_FLIGHT):
                mode = "shared" if group in (SHARED, IN_FLIGHT) else "ordered"
                await store.subscribe("q", group, Subscription(), mode=mode)  # type: ignore[arg-type]
                await pop(store, "q", group=group, batch=9, auto_ack=True)

    run_apart(main)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(_NO_AUTOVACUUM)


@pytest.fixture(scope="module")
def sized(databases: Databases) -> Iterator[dict[int, str]]:
    """A database with 1,000 partitions and one with 100,000, both analyzed."""
    made = {size: databases.clone() for size in (SMALL, LARGE)}
    for size, dsn in made.items():
        prepare(dsn)
        deepen(dsn)
        grow(dsn, size, analyze=True)
    yield made
    for dsn in made.values():
        databases.drop(dsn)


@pytest_asyncio.fixture
async def stages(sized: dict[int, str]) -> AsyncIterator[dict[int, Stage]]:
    async with Stage(sized[SMALL]) as small, Stage(sized[LARGE]) as large:
        yield {SMALL: small, LARGE: large}


# --- Counting ---------------------------------------------------------------------------------------------


async def typical_cost(stage: Stage, actor: Actor, scenario: Scenario, *, vacuum: bool = True) -> Cost:
    """What a call usually reads, once its plans are made, its names are known and others' dead rows are gone."""
    costs: list[Cost] = []
    if vacuum:  # which also tells the planner how many rows there are
        await actor.sql("vacuum lockstep.cursor")
        await actor.sql("vacuum lockstep.delivery")
        await actor.sql("vacuum lockstep.dead_letter")
    for _ in range(5):
        call = await scenario.prepare(actor)
        costs.append(await cost(stage, actor, call))
    return Cost(
        int(median(cost.blocks for cost in costs[1:])), frozenset().union(*(cost.scanned for cost in costs[1:]))
    )


# --- The calls --------------------------------------------------------------------------------------------


def lanes(**columns: Any) -> list[Batch]:
    """A message for each of ten partitions; the same ones at every turn, so they are known."""
    return [batch("q", partition=f"p{1 + 9 * number}", **columns) for number in range(10)]


async def push_to_ten_partitions(actor: Actor) -> Call:
    return lambda: actor.store.push(lanes())


async def packed_push_to_ten_partitions(actor: Actor) -> Call:
    """Seen before, so that it looks from where the last runs were."""
    packed = [Batch(one.queue, one.partition, Columns([b"x" * 1024])) for one in lanes()]
    await actor.store.push(packed)
    return lambda: actor.store.push(packed)


async def push_of_a_hundred_to_one_partition(actor: Actor) -> Call:
    return lambda: push_n(actor.store, "q", 100, partition="p50")


async def push_with_transaction_ids(actor: Actor) -> Call:
    return lambda: actor.store.push(lanes(transaction_ids=[str(uuid4())], trace_ids=[str(uuid4())]))


async def push_to_partitions_whose_ids_are_not_known(actor: Actor) -> Call:
    actor.store.context.names.forget("q")
    return lambda: actor.store.push(lanes())


async def push_that_creates_partitions(actor: Actor) -> Call:
    return lambda: actor.store.push([batch("q", partition=f"new-{uuid4()}") for _ in range(10)])


async def pop_of_ten_partitions(actor: Actor) -> Call:
    return lambda: pop(actor.store, "q", group=READY, partitions=10, batch=100)


async def joined_pops(actor: Actor) -> Call:
    request = PopRequest(queue="q", group=READY, partitions=5, batch=100)
    return lambda: actor.store.pop([request, request])


async def pop_where_few_are_due(actor: Actor) -> Call:
    await actor.store.push(lanes())
    return lambda: pop(actor.store, "q", group=DRAINED, partitions=10, batch=100, auto_ack=True)


async def take_what_is_due(actor: Actor) -> None:
    """Partitions that other tests made are not leased yet."""
    while await pop(actor.store, "q", group=BUSY, partitions=100, batch=1000, auto_ack=True):
        pass


async def pop_where_all_are_leased(actor: Actor) -> Call:
    await take_what_is_due(actor)
    return lambda: pop(actor.store, "q", group=BUSY, partitions=10, batch=100)


async def pop_of_a_named_partition(actor: Actor) -> Call:
    await push_n(actor.store, "q", partition="p32")
    return lambda: pop(actor.store, "q", group=DRAINED, partition="p32", batch=100, auto_ack=True)


async def ack_of_a_lease_over_ten_partitions(actor: Actor) -> Call:
    popped = await pop(actor.store, "q", group=READY, partitions=10, batch=100)
    assert len(popped.partition_ids) == 10
    return lambda: actor.store.ack([Ack(lease_id=popped.lease_id)])


async def next_of_ten_partitions(actor: Actor) -> Call:
    """Each of them goes on."""
    popped = await pop(actor.store, "q", group=READY, partitions=10, batch=10)
    assert len(popped.partition_ids) == 10 or sum(map(len, popped.runs)) == 10
    return lambda: next_of(actor.store, popped, "q", partitions=10, batch=10)


async def next_where_all_is_drained(actor: Actor) -> Call:
    """Ten partitions end, and ten others begin."""
    popped = await pop(actor.store, "q", group=READY, partitions=10, batch=100)
    return lambda: next_of(actor.store, popped, "q", partitions=10, batch=100)


async def shared_next_of_ten_partitions(actor: Actor) -> Call:
    popped = await pop(actor.store, "q", group=SHARED, partitions=10, batch=100)
    return lambda: next_of(actor.store, popped, "q", partitions=10, batch=100)


async def next_of_deep_partitions(actor: Actor) -> Call:
    popped = await (await pop_of_deep_partitions(actor))()
    return lambda: next_of(actor.store, popped, "deep", partitions=10, batch=10)


async def ack_by_message(actor: Actor) -> Call:
    popped = await pop(actor.store, "q", group=READY, partitions=10, batch=100)
    acks = [ack_of(message, lease_id=popped.lease_id) for message in popped.messages()]
    return lambda: actor.store.ack(acks)


async def renewal(actor: Actor) -> Call:
    popped = await pop(actor.store, "q", group=READY, partitions=10, batch=100)
    return lambda: actor.store.renew([Renewal(lease_id=popped.lease_id or "")])


async def question_whether_something_is_pending(actor: Actor) -> Call:
    await take_what_is_due(actor)
    requests = [PendingRequest(queue="q", group=group) for group in (READY, BUSY)]
    requests.append(PendingRequest(queue="q", group=BUSY, partition="p32"))
    return lambda: actor.store.has_pending(requests)


async def question_when_something_is_due(actor: Actor) -> Call:
    await take_what_is_due(actor)
    groups = (READY, BUSY, IN_FLIGHT)
    awaited = [Awaited(queue, group) for group in groups for queue in ("q",)]
    awaited += [Awaited("q", group, "p32") for group in groups]
    return lambda: actor.store.due_in(awaited, within=2.0)


async def transaction_of_ack_and_push(actor: Actor) -> Call:
    popped = await pop(actor.store, "q", group=READY, partitions=10, batch=100)
    return lambda: actor.store.transaction([Ack(lease_id=popped.lease_id)], lanes())


async def lease_of_ten_partitions(actor: Actor) -> Call:
    return lambda: pop(actor.store, "q", group=SHARED, partitions=10, batch=100)


async def lease_where_all_is_in_flight(actor: Actor) -> Call:
    while await pop(actor.store, "q", group=IN_FLIGHT, partitions=100, batch=1000, auto_ack=True):
        pass
    return lambda: pop(actor.store, "q", group=IN_FLIGHT, partitions=10, batch=100)


async def lease_of_what_is_retried(actor: Actor) -> Call:
    popped = await pop(actor.store, "q", group=SHARED, partitions=10, batch=100)
    await actor.store.ack([Ack(lease_id=popped.lease_id, status="retry")])
    return lambda: pop(actor.store, "q", group=SHARED, partitions=10, batch=len(popped))


async def completion_of_a_lease(actor: Actor) -> Call:
    popped = await pop(actor.store, "q", group=SHARED, partitions=10, batch=100)
    return lambda: actor.store.ack([Ack(lease_id=popped.lease_id)])


async def completion_of_single_messages(actor: Actor) -> Call:
    popped = await pop(actor.store, "q", group=SHARED, partitions=10, batch=100)
    acks = [ack_of(message, lease_id=popped.lease_id, group=SHARED) for message in popped.messages()]
    return lambda: actor.store.ack(acks)


async def renewal_of_a_shared_lease(actor: Actor) -> Call:
    popped = await pop(actor.store, "q", group=SHARED, partitions=10, batch=100)
    return lambda: actor.store.renew([Renewal(lease_id=popped.lease_id or "")])


AGE = """
update lockstep.segment s set created_at = s.created_at - interval '2 hours'
from lockstep.queue q where q.id = s.queue_id and q.name in ('aging', 'retried')
"""


async def pop_of_what_expired(actor: Actor) -> Call:
    await actor.store.configure("aging", QueueOptions(expire_seconds=3600, lease_seconds=60))
    await push_n(actor.store, "aging", 10)
    await actor.sql(AGE)
    return lambda: pop(actor.store, "aging", batch=100)


async def expiry_of_what_is_retried(actor: Actor) -> Call:
    await actor.store.configure("retried", QueueOptions(expire_seconds=3600, lease_seconds=60, on_expired="drop"))
    await push_n(actor.store, "retried", 10)
    popped = await pop(actor.store, "retried", group=SHARED, mode="shared", batch=10)
    again_at = datetime.now(UTC) + timedelta(hours=1)
    acks = [Ack(lease_id=popped.lease_id, seq=message.seq, status="retry") for message in popped.messages()]
    await actor.store.ack([replace(ack, retry_at=again_at + timedelta(seconds=n)) for n, ack in enumerate(acks)])
    await actor.sql(AGE)
    return lambda: actor.store.prune("expiry", after=Place("retried"), limit=100)


async def death_with_a_dead_queue(actor: Actor) -> Call:
    await actor.store.configure("grave", QueueOptions())
    await actor.store.configure("dying", QueueOptions(dead_queue="grave"))
    await pop_all(actor.store, "dying")  # what others put back: the ten would be of several segments
    await push_n(actor.store, "dying", 10)
    popped = await pop(actor.store, "dying", batch=10)
    acks = [ack_of(message, lease_id=popped.lease_id, status="dlq") for message in popped.messages()]
    return lambda: actor.store.ack(acks)


async def redrive_with_a_dead_queue(actor: Actor) -> Call:
    await actor.store.purge(DeadLetterFilter(queue="dying"))
    await (await death_with_a_dead_queue(actor))()
    return lambda: actor.store.redrive(DeadLetterFilter(queue="dying"), limit=10)


async def dead_letter_by_id(actor: Actor) -> Call:
    await (await death_with_a_dead_queue(actor))()
    [letter] = (await actor.store.dead_letters(DeadLetterFilter(queue="dying"), limit=1)).items
    return lambda: actor.store.dead_letter(letter.id)


async def look_for_what_is_due(actor: Actor) -> Call:
    return lambda: actor.store.promote(limit=100)


async def promotion_of_ten(actor: Actor) -> Call:
    waiting = batch("q", 10, partition="p50")
    waiting.schedule = NewSchedule(delay_seconds=3600)
    await actor.store.push([waiting])
    await actor.sql("update lockstep.scheduled set due_at = clock_timestamp() where partition_name = 'p50'")
    return lambda: actor.store.promote(limit=100)


async def first_page_of_messages(actor: Actor) -> Call:
    return lambda: actor.store.messages(MessageFilter(queue="q"), limit=20)


async def page_of_messages_from_the_middle(actor: Actor) -> Call:
    middle = await actor.sql("select max(id) / 2 from lockstep.partition")
    return lambda: actor.store.messages(MessageFilter(queue="q"), cursor=f"{middle}.0", limit=20)


async def message_by_id(actor: Actor) -> Call:
    [receipt] = await push_n(actor.store, "q", partition="p32")
    return lambda: actor.store.message(receipt.message_id)


async def message_by_transaction_id(actor: Actor) -> Call:
    identity = str(uuid4())
    [receipt] = await push_n(actor.store, "q", partition="p32", transaction_ids=[identity])
    return lambda: actor.store.message(identity, partition_id=receipt.partition_id)


async def trace(actor: Actor) -> Call:
    identity = str(uuid4())
    await actor.store.push(lanes(trace_ids=[identity]))
    return lambda: actor.store.trace(identity)


async def lag_of_one_partition(actor: Actor) -> Call:
    return lambda: actor.store.lag("q", group=READY, partition="p32")


async def push_to_deep_partitions(actor: Actor) -> Call:
    return lambda: actor.store.push([batch("deep", partition=f"d{number}") for number in range(4)])


FREE_DEEP = """
update lockstep.cursor c set lease_id = null, lease_to = null, leased_at = null, due_at = clock_timestamp()
from lockstep.partition p join lockstep.queue q on q.id = p.queue_id where c.partition_id = p.id and q.name = 'deep'
"""


async def pop_of_deep_partitions(actor: Actor) -> Call:
    await (await push_to_deep_partitions(actor))()
    await actor.sql(FREE_DEEP)
    return lambda: pop(actor.store, "deep", partitions=10, batch=10)


async def joined_pops_of_deep_partitions(actor: Actor) -> Call:
    await pop_of_deep_partitions(actor)
    request = PopRequest(queue="deep", partitions=10, batch=10)
    return lambda: actor.store.pop([request, request])


async def pop_of_a_deep_partition_by_name(actor: Actor) -> Call:
    await (await push_to_deep_partitions(actor))()
    return lambda: pop(actor.store, "deep", group="named", partition="d1", batch=10, auto_ack=True)


async def ack_of_a_deep_partition(actor: Actor) -> Call:
    popped = await (await pop_of_deep_partitions(actor))()
    return lambda: actor.store.ack([Ack(lease_id=popped.lease_id)])


async def ack_by_message_of_a_deep_partition(actor: Actor) -> Call:
    popped = await (await pop_of_deep_partitions(actor))()
    acks = [ack_of(message, lease_id=popped.lease_id) for message in popped.messages()]
    return lambda: actor.store.ack(acks)


async def lease_of_deep_partitions(actor: Actor) -> Call:
    await (await push_to_deep_partitions(actor))()
    return lambda: pop(actor.store, "deep", group=SHARED, mode="shared", partitions=10, batch=10)


async def completion_in_a_deep_partition(actor: Actor) -> Call:
    popped = await (await lease_of_deep_partitions(actor))()
    return lambda: actor.store.ack([Ack(lease_id=popped.lease_id)])


# The second figure is about twice what was measured; PostgreSQL 15 needs more of it than 18.
SCENARIOS = [
    Scenario("push", push_to_ten_partitions, 300),
    Scenario("push-packed", packed_push_to_ten_partitions, 300),
    Scenario("push-wide-batch", push_of_a_hundred_to_one_partition, 60),
    Scenario("push-ids", push_with_transaction_ids, 450),
    Scenario("push-unknown", push_to_partitions_whose_ids_are_not_known, 420),
    Scenario("push-new", push_that_creates_partitions, 1000),
    Scenario("pop", pop_of_ten_partitions, 650),
    Scenario("joined-pops", joined_pops, 650),
    Scenario("pop-few-due", pop_where_few_are_due, 1500),
    Scenario("pop-all-leased", pop_where_all_are_leased, 30),
    Scenario("pop-named", pop_of_a_named_partition, 140),
    Scenario("ack", ack_of_a_lease_over_ten_partitions, 500),
    Scenario("next", next_of_ten_partitions, 900),
    Scenario("next-drained", next_where_all_is_drained, 1300),
    Scenario("shared-next", shared_next_of_ten_partitions, 1700),
    Scenario("ack-messages", ack_by_message, 1500),
    Scenario("renew", renewal, 350),
    Scenario("has-pending", question_whether_something_is_pending, 60),
    Scenario("due-in", question_when_something_is_due, 150),
    Scenario("transaction", transaction_of_ack_and_push, 800),
    Scenario("shared-pop", lease_of_ten_partitions, 1400),
    Scenario("shared-pop-in-flight", lease_where_all_is_in_flight, 80),
    Scenario("shared-pop-again", lease_of_what_is_retried, 1500),
    Scenario("shared-ack", completion_of_a_lease, 220),
    Scenario("shared-ack-messages", completion_of_single_messages, 1900),
    Scenario("shared-renew", renewal_of_a_shared_lease, 520),
    Scenario("pop-expired", pop_of_what_expired, 1500),
    Scenario("prune-expired-retries", expiry_of_what_is_retried, 4000),
    Scenario("ack-dead-queue", death_with_a_dead_queue, 5000),
    Scenario("redrive-dead-queue", redrive_with_a_dead_queue, 3000),
    Scenario("dead-letter", dead_letter_by_id, 60),
    Scenario("promote-nothing", look_for_what_is_due, 20),
    Scenario("promote", promotion_of_ten, 600),
    Scenario("messages-first", first_page_of_messages, 220),
    Scenario("messages-middle", page_of_messages_from_the_middle, 450),
    Scenario("message-by-id", message_by_id, 60),
    Scenario("message-by-transaction-id", message_by_transaction_id, 60),
    Scenario("trace", trace, 250),
    Scenario("lag", lag_of_one_partition, 100),
    Scenario("push-deep", push_to_deep_partitions, 200),
    Scenario("pop-deep", pop_of_deep_partitions, 200),
    Scenario("joined-pops-deep", joined_pops_of_deep_partitions, 300),
    Scenario("pop-named-deep", pop_of_a_deep_partition_by_name, 200),
    Scenario("ack-deep", ack_of_a_deep_partition, 200),
    Scenario("next-deep", next_of_deep_partitions, 300),
    Scenario("ack-messages-deep", ack_by_message_of_a_deep_partition, 500),
    Scenario("shared-pop-deep", lease_of_deep_partitions, 400),
    Scenario("shared-ack-deep", completion_in_a_deep_partition, 200),
    *MORE_SCENARIOS,
]


each_scenario = pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)


@each_scenario
async def test_call_costs_as_little_among_many_partitions(stages: dict[int, Stage], scenario: Scenario) -> None:
    costs = {}
    for size, stage in stages.items():
        costs[size] = await typical_cost(stage, await stage.actor(), scenario)
    assert not costs[LARGE].scanned, f"read from end to end: {sorted(costs[LARGE].scanned)}"
    assert costs[LARGE].blocks <= scenario.blocks_max
    assert costs[LARGE].blocks <= GROWTH_MAX * costs[SMALL].blocks + LEVELS_MAX


# --- A database that grows ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def grown(databases: Databases) -> Iterator[dict[str, Cost]]:
    """What the calls cost a session that made its plans when there was next to nothing, and kept them.

    A new installation grows faster than autovacuum analyzes it.
    """
    dsn = databases.clone()
    prepare(dsn)
    grow(dsn, 100, analyze=False)
    costs: dict[str, Cost] = {}

    async def main() -> None:
        async with Stage(dsn) as stage:
            actor = await stage.actor()
            for scenario in SCENARIOS:
                await (await scenario.prepare(actor))()
            deepen(dsn)
            grow(dsn, GROWN, first=101, analyze=False)
            for scenario in SCENARIOS:
                costs[scenario.name] = await typical_cost(stage, actor, scenario)

    run_apart(main)
    yield costs
    databases.drop(dsn)


@each_scenario
def test_plan_that_was_made_on_empty_tables_stays_good(grown: dict[str, Cost], scenario: Scenario) -> None:
    assert not grown[scenario.name].scanned
    assert grown[scenario.name].blocks <= scenario.blocks_max


# --- Statistics that are out of date -------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["bare", "narrow", "quiet", "late"])
def outdated(databases: Databases, request: pytest.FixtureRequest) -> Iterator[dict[str, Cost]]:
    """What the calls cost when the tables were analyzed at another time, and now there is much.

    Bare: there was one partition. Narrow: there were many queues with one partition each, so a queue seems to have one.
    Quiet: there were as few partitions as autovacuum ever analyzes, and nothing in flight. Late: no consumer had come
    yet, so nothing is known of cursors.
    """
    dsn = databases.clone()
    prepare(dsn)
    known = {"bare": 0, "narrow": 0, "quiet": KNOWN_MIN, "late": GROWN}[request.param]
    grow(dsn, known, analyze=False)
    with psycopg.connect(dsn, autocommit=True) as connection:
        if request.param == "narrow":
            connection.execute(_NARROW_QUEUES)
        connection.execute("delete from lockstep.delivery where group_id > 0")
        connection.execute("analyze")
        if request.param == "late":
            connection.execute("delete from pg_statistic where starelid = 'lockstep.cursor'::regclass")
            connection.execute(
                "update pg_class set reltuples = -1, relpages = 0 where oid = 'lockstep.cursor'::regclass"
            )
    deepen(dsn)
    grow(dsn, GROWN, first=known + 1, analyze=False)
    costs: dict[str, Cost] = {}

    async def main() -> None:
        async with Stage(dsn) as stage:
            actor = await stage.actor()
            for scenario in SCENARIOS:
                costs[scenario.name] = await typical_cost(stage, actor, scenario, vacuum=False)

    run_apart(main)
    yield costs
    databases.drop(dsn)


@each_scenario
def test_statistics_that_are_out_of_date_do_no_harm(outdated: dict[str, Cost], scenario: Scenario) -> None:
    assert not outdated[scenario.name].scanned
    assert outdated[scenario.name].blocks <= scenario.blocks_max


# --- Sessions that are not ours -----------------------------------------------------------------------------


async def test_push_from_sql_costs_little_in_a_session_with_default_settings(sized: dict[int, str]) -> None:
    """The settings for the planner that our connections make are not there."""
    async with Stage(sized[LARGE]) as stage:
        connection = await asyncpg.connect(sized[LARGE])
        actor = Actor(sized[LARGE], connection, None)
        scenario = Scenario("sql-push", sql_push, 150)
        found = await typical_cost(stage, actor, scenario)
        await connection.close()
    assert not found.scanned
    assert found.blocks <= scenario.blocks_max


async def sql_push(actor: Actor) -> Call:
    push = "select lockstep.push('q', 'p32', '{}'::jsonb, transaction_id => $1)"
    return lambda: actor.sql(push, str(uuid4()))


# --- Queries ------------------------------------------------------------------------------------------------


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)


def explained(dsn: str, name: str, *arguments: Any) -> dict[str, Any]:
    """The plan of a query from `sql/queries`, for any arguments, and what it took with these."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("set plan_cache_mode = force_generic_plan")
        connection.execute(f"prepare it as {sql.query(name)}".encode())
        literals = ", ".join("null" if a is None else f"'{a}'" for a in arguments)
        explain = f"explain (analyze, buffers, format json) execute it({literals})"
        [row] = connection.execute(explain.encode()).fetchall()
    plan: dict[str, Any] = row[0][0]["Plan"]
    return plan


def blocks(plan: dict[str, Any]) -> int:
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


def test_segments_are_loaded_by_their_ids(sized: dict[int, str]) -> None:
    with psycopg.connect(sized[LARGE], autocommit=True) as connection:
        for name, value in PLANNER.items():
            connection.execute("select set_config(%s, %s, false)", [name, value])
        for _ in range(3):  # the first reads the catalog
            explain = "explain (analyze, buffers, format json) select * from lockstep.load_segments('{1,2}')"
            [row] = connection.execute(explain.encode()).fetchall()
    assert row[0][0]["Plan"]["Actual Rows"] == 2
    assert blocks(row[0][0]["Plan"]) <= 10


def test_page_of_runs_is_read_through_indexes(sized: dict[int, str]) -> None:
    """Of a queue with 100,000 partitions, from the middle: as many runs as asked for, and no more."""
    plan = explained(sized[LARGE], "message_runs", 1, None, LARGE // 2, 0, None, None, 20, 10_000)
    assert not [node for node in nodes(plan) if node["Node Type"] == "Seq Scan"]
    assert plan["Actual Rows"] == 20
    assert blocks(plan) <= 200

"""Calls of which the plan tests say what they may cost: of duties, waiting operations and queues with limits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from msgspec.structs import replace

from lockstep.core.applying import ApplyLimits
from lockstep.core.crons import NewCron
from lockstep.core.maintenance import Place
from lockstep.core.messages import NewSchedule
from lockstep.core.operations import NewOperation
from lockstep.core.policy import QueueOptions
from lockstep.core.records import Ack, MessageFilter, Subscription
from lockstep.core.streams import NewStreamQuery, StateFilter, StateOp, StreamCycle
from lockstep.core.traces import NewTraceEvent
from support.builders import ack_of, batch, pop
from support.sessions import Actor

Call = Callable[[], Awaitable[Any]]

LONG_AGO = """
update lockstep.segment s set created_at = s.created_at - interval '2 hours'
from lockstep.queue q where q.id = s.queue_id and q.name = $1 returning 1
"""


# Beside each partition of the queue q: a trace event with its name, state of a stream query, and a bundle of operations
# that was applied; beside each tenth a cron, and a bundle of acks that waits.
GROW_BESIDE = """
with grown as (
    select p.id, p.name, n from generate_series(%(first)s::int, %(last)s::int) n
    join lockstep.partition p on p.name = 'p' || n
    join lockstep.queue q on q.id = p.queue_id and q.name = 'q'
), events as (
    insert into lockstep.trace_event (partition_id, seq, transaction_id, event_type, names, data, created_at)
    select g.id, 1, 't' || g.n, 'seen', array['name' || g.n %% 100], '{}', clock_timestamp() from grown g
    returning id, partition_id, names
), names as (
    insert into lockstep.trace_name (name, event_id, partition_id, seq, created_at)
    select e.names[1], e.id, e.partition_id, 1, clock_timestamp() from events e
), state as (
    insert into lockstep.stream_state (query_id, partition_id, key, value, window_end, updated_at)
    select -1 - g.n %% 10, g.id, 'k', '1', 1, clock_timestamp() from grown g -- of queries that no test registers
), crons as (
    insert into lockstep.cron (
        name, queue, partition_name, expression, timezone, catch_up, enabled, codec, body, created_at, next_at
    )
    select 'cron' || g.n, 'q', g.name, '0 0 1 1 *', 'UTC', 'one', true, 1, '', clock_timestamp(),
           clock_timestamp() + interval '1 day'
    from grown g where g.n %% 10 = 0
)
insert into lockstep.operation (
    uuid, kind, priority, pending, request_count, message_count, bytes, partition_ids, codec, results, failed_count,
    created_at, due_at, completed_at, queues
)
select lockstep.segment_uuid(), k.kind, case k.kind when 'ack' then 3 else 5 end, k.waits, 1, 1, 10, array[g.id], 1,
       case when not k.waits then %(done)s::bytea end, case when k.waits then 0 else g.n %% 2 end, clock_timestamp(),
       clock_timestamp() + interval '1 day', case when not k.waits then clock_timestamp() end, array['q']
from grown g
cross join lateral (select g.n %% 10 = 0 as waits, case when g.n %% 10 = 0 then 'ack' else 'push' end as kind) k
"""


@dataclass(frozen=True)
class Scenario:
    """A call, what has to be there before it, and how many blocks it may read at most."""

    name: str
    prepare: Callable[[Actor], Awaitable[Call]]
    blocks_max: int


async def ten_lanes(actor: Actor, queue: str, **options: Any) -> None:
    """A queue of ten partitions, which come after all others, with a group that reads it."""
    await actor.store.configure(queue, QueueOptions(**options))
    await actor.store.push([batch(queue, partition=f"t{number}") for number in range(10)])


async def push_to_a_limited_queue(actor: Actor) -> Call:
    await ten_lanes(actor, "limited", max_size=1_000_000)
    await pop(actor.store, "limited", group="g", partitions=10, batch=100, auto_ack=True)
    return lambda: actor.store.push([batch("limited", partition=f"t{number}") for number in range(10)])


async def ack_in_a_limited_queue(actor: Actor) -> Call:
    await (await push_to_a_limited_queue(actor))()
    popped = await pop(actor.store, "limited", group="g", partitions=10, batch=100)
    return lambda: actor.store.ack([Ack(lease_id=popped.lease_id)])


async def pop_of_a_queue_with_a_window(actor: Actor) -> Call:
    await ten_lanes(actor, "windowed", window_seconds=1)
    await actor.sql(LONG_AGO, "windowed")
    await pop(actor.store, "windowed", batch=1, group="w", auto_ack=True)
    await actor.sql("update lockstep.cursor c set due_at = now() - interval '1 s' from lockstep.consumer_group g "
                    "where g.id = c.group_id and g.name = 'w' and c.due_at is not null")  # fmt: skip
    return lambda: pop(actor.store, "windowed", group="w", partitions=10, batch=100)


async def first_pop_of_a_group(actor: Actor) -> Call:
    await ten_lanes(actor, "small")
    return lambda: pop(actor.store, "small", group=f"g{uuid4()}", partitions=10, batch=100, auto_ack=True)


async def clear_of_a_small_queue(actor: Actor) -> Call:
    await ten_lanes(actor, "cleared")
    await pop(actor.store, "cleared", group="g", partitions=10, batch=100)
    return lambda: actor.store.clear("cleared")


async def clear_of_what_is_not_leased(actor: Actor) -> Call:
    await ten_lanes(actor, "cleared")
    await pop(actor.store, "cleared", group="g", partitions=5, batch=100)
    return lambda: actor.store.clear("cleared", scope="unleased")


async def deletion_of_a_small_queue(actor: Actor) -> Call:
    queue = f"gone-{uuid4()}"
    await ten_lanes(actor, queue)
    await pop(actor.store, queue, group="g", partitions=5, batch=100)
    return lambda: actor.store.delete_queue(queue)


async def retention(actor: Actor) -> Call:
    await ten_lanes(actor, "zkept", retention_enabled=True, retention_seconds=3600)
    await actor.sql(LONG_AGO, "zkept")
    return lambda: actor.store.prune("retention", after=Place("zkept"), limit=100)


async def completed_retention(actor: Actor) -> Call:
    await ten_lanes(actor, "zdone", retention_enabled=True, completed_retention_seconds=3600)
    await pop(actor.store, "zdone", group="g", partitions=10, batch=100, auto_ack=True)
    await actor.sql(LONG_AGO, "zdone")
    return lambda: actor.store.prune("completed_retention", after=Place("zdone"), limit=100)


async def eviction(actor: Actor) -> Call:
    await ten_lanes(actor, "zevicted", max_wait_seconds=3600)
    await actor.store.subscribe("zevicted", "g", Subscription())
    await actor.sql(LONG_AGO, "zevicted")
    return lambda: actor.store.prune("eviction", after=Place("zevicted"), limit=100)


async def removal_of_idle_partitions(actor: Actor) -> Call:
    queue = f"idle-{uuid4()}"
    await ten_lanes(actor, queue)
    await actor.store.clear(queue)
    await actor.store.prune_partitions(0, limit=100)
    return lambda: actor.store.prune_partitions(0, limit=100)


async def queueing_of_a_push(actor: Actor) -> Call:
    # Of partitions to which no other call pushes: what waits would hold those up.
    lanes = [batch("q", partition=f"p{7 + 9 * number}") for number in range(10)]
    await actor.store.apply_operations("push", by="test", limits=ApplyLimits())
    return lambda: actor.store.queue_operations([NewOperation(lanes)])


async def application_of_a_push(actor: Actor) -> Call:
    await (await queueing_of_a_push(actor))()
    return lambda: actor.store.apply_operations("push", by="test", limits=ApplyLimits())


async def deletion_of_dead_letters_by_ack(actor: Actor) -> Call:
    await ten_lanes(actor, "deadly")
    popped = await pop(actor.store, "deadly", group="g", partitions=10, batch=100)
    acks = [ack_of(one, lease_id=popped.lease_id, group="g", status="dlq") for one in popped.messages()]
    return lambda: actor.store.ack(acks)


async def scheduling_of_ten(actor: Actor) -> Call:
    waiting = batch("q", 10, partition="p50")
    waiting.schedule = NewSchedule(delay_seconds=3600)
    return lambda: actor.store.push([waiting])


async def balance_of_a_queue(actor: Actor) -> Call:
    await actor.store.configure("balanced", QueueOptions(partitions=10))
    return lambda: actor.store.balance("balanced")


async def push_a_page(actor: Actor) -> None:
    """What is newest is then the same in every database, whatever was called there before: pages of as many messages
    differ by what segments and runs they are in."""
    for _ in range(2):
        await actor.store.push([batch("q", partition=f"p{1 + 9 * number}") for number in range(10)])


async def newest_messages_of_a_queue(actor: Actor) -> Call:
    await push_a_page(actor)
    return lambda: actor.store.messages(MessageFilter(queue="q"), newest_first=True, limit=20)


async def newest_messages_of_all_queues(actor: Actor) -> Call:
    await push_a_page(actor)
    return lambda: actor.store.messages(MessageFilter(), newest_first=True, limit=20)


async def newest_messages_of_a_partition(actor: Actor) -> Call:
    where = MessageFilter(queue="deep", partition="d1")
    return lambda: actor.store.messages(where, newest_first=True, limit=20)


async def newest_messages_that_are_older(actor: Actor) -> Call:
    """None is, so the page is empty."""
    where = MessageFilter(queue="deep", partition="d1", to_at=datetime(2020, 1, 1, tzinfo=UTC))
    return lambda: actor.store.messages(where, newest_first=True, limit=20)


async def event_of_a_message(actor: Actor) -> NewTraceEvent:
    [receipt] = await actor.store.push([batch("q", partition="p50", transaction_ids=[f"t{uuid4()}"])])
    return NewTraceEvent(
        partition_id=receipt.partition_id, transaction_id=receipt.transaction_id, data=b"{}", names=("seen",)
    )


async def recording_of_a_trace_event(actor: Actor) -> Call:
    event = await event_of_a_message(actor)
    return lambda: actor.store.record_trace(event)


async def trace_events_of_a_message(actor: Actor) -> Call:
    event = await event_of_a_message(actor)
    await actor.store.record_trace(event)
    return lambda: actor.store.traces_of_message(event.partition_id, event.transaction_id)


async def trace_events_by_name(actor: Actor) -> Call:
    await (await recording_of_a_trace_event(actor))()
    return lambda: actor.store.traces_by_name("seen", limit=5)


async def a_stream(actor: Actor) -> tuple[int, int]:
    """The ids of a stream query, and of a partition."""
    [receipt] = await actor.store.push([batch("q", partition="p50")])
    asked = NewStreamQuery(name=f"stream{uuid4()}", source_queue="q", config_hash="1")
    return (await actor.store.register_stream_query(asked)).id, receipt.partition_id


async def registration_of_a_stream_query(actor: Actor) -> Call:
    asked = NewStreamQuery(name=f"stream{uuid4()}", source_queue="q", config_hash="1")
    await actor.store.register_stream_query(asked)
    return lambda: actor.store.register_stream_query(asked)


async def reset_of_a_stream_query(actor: Actor) -> Call:
    asked = NewStreamQuery(name=f"stream{uuid4()}", source_queue="q", config_hash="1")
    await actor.store.register_stream_query(asked)
    return lambda: actor.store.register_stream_query(replace(asked, config_hash="2", reset=True))


async def cycle_of_a_stream(actor: Actor) -> Call:
    query_id, partition_id = await a_stream(actor)
    ops = tuple(StateOp(type="upsert", key=f"k{number}", value=b'{"windowEnd":1}') for number in range(10))
    return lambda: actor.store.stream_cycle(
        StreamCycle(query_id=query_id, partition_id=partition_id, state_ops=ops), [batch("q", partition="p59")]
    )


async def state_of_a_stream(actor: Actor) -> Call:
    query_id, partition_id = await a_stream(actor)
    ops = tuple(StateOp(type="upsert", key=f"k{number}", value=b'{"windowEnd":1}') for number in range(10))
    await actor.store.stream_cycle(StreamCycle(query_id=query_id, partition_id=partition_id, state_ops=ops), [])
    wheres = [
        StateFilter(query_id=query_id, partition_id=partition_id),
        StateFilter(query_id=query_id, partition_id=partition_id, keys=("k1", "k2")),
        StateFilter(query_id=query_id, partition_id=partition_id, key_prefix="k"),
        StateFilter(query_id=query_id, partition_id=partition_id, ripe_at_or_before_ms=5),
    ]

    async def states() -> None:
        for where in wheres:
            assert await actor.store.stream_state(where)

    return states


async def a_cron(actor: Actor) -> None:
    new = NewCron(name="z", queue="q", partition="p50", payload=b"{}", expression="0 0 1 1 *")
    await actor.store.set_cron(new)


async def setting_of_a_cron(actor: Actor) -> Call:
    return lambda: a_cron(actor)


async def list_of_crons(actor: Actor) -> Call:
    await a_cron(actor)
    return lambda: actor.store.crons(after="y", limit=10)


async def push_of_a_cron(actor: Actor) -> Call:
    await a_cron(actor)
    await actor.sql("update lockstep.cron set next_at = now() - interval '1 s' where name = 'z'")
    return lambda: actor.store.promote(limit=10)


async def counts_of_operations(actor: Actor) -> Call:
    return actor.store.operation_counts


def list_of_operations(**where: Any) -> Callable[[Actor], Awaitable[Call]]:
    async def listed(actor: Actor) -> Call:
        return lambda: actor.store.operations(limit=20, **where)

    return listed


async def place_of_an_operation(actor: Actor) -> Call:
    [operation_id] = await actor.store.queue_operations([NewOperation([batch("placed")])])
    return lambda: actor.store.operation(operation_id)


_LOOKS = {
    "queues": "select * from lockstep.queues where queue = 'deep'",
    "partitions": "select * from lockstep.partitions where queue = 'deep'",
    "lag": "select * from lockstep.lag where queue = 'deep'",
    "groups": "select * from lockstep.groups where queue = 'deep'",
    "leases": "select * from lockstep.leases where queue = 'deep'",
    "stuck": "select * from lockstep.stuck_partitions where queue = 'deep'",
    "dead-letters": "select * from lockstep.dead_letters where queue = 'deep'",
    "messages": "select * from lockstep.messages where queue = 'deep' and partition = 'd1' limit 20",
}


def _look(query: str) -> Callable[[Actor], Awaitable[Call]]:
    async def look(actor: Actor) -> Call:
        return lambda: actor.sql(query)

    return look


# The figure is about twice what was measured.
MORE_SCENARIOS = [
    Scenario("messages-newest", newest_messages_of_a_queue, 700),
    Scenario("messages-newest-all", newest_messages_of_all_queues, 700),
    Scenario("messages-newest-deep", newest_messages_of_a_partition, 300),
    Scenario("messages-newest-older", newest_messages_that_are_older, 20_000),
    *[Scenario(f"view-{name}", _look(query), 1_000) for name, query in _LOOKS.items()],
    Scenario("push-limited", push_to_a_limited_queue, 450),
    Scenario("ack-limited", ack_in_a_limited_queue, 700),
    Scenario("pop-window", pop_of_a_queue_with_a_window, 2500),
    Scenario("pop-new-group", first_pop_of_a_group, 2000),
    Scenario("clear", clear_of_a_small_queue, 1500),
    Scenario("clear-unleased", clear_of_what_is_not_leased, 1500),
    Scenario("delete-queue", deletion_of_a_small_queue, 1500),
    Scenario("retention", retention, 1500),
    Scenario("completed-retention", completed_retention, 1500),
    Scenario("eviction", eviction, 2000),
    Scenario("idle-partitions", removal_of_idle_partitions, 1500),
    Scenario("queue-operation", queueing_of_a_push, 400),
    Scenario("apply-operation", application_of_a_push, 1000),
    Scenario("ack-dead", deletion_of_dead_letters_by_ack, 1200),
    Scenario("schedule", scheduling_of_ten, 300),
    Scenario("balance", balance_of_a_queue, 200),
    Scenario("record-trace", recording_of_a_trace_event, 80),
    Scenario("trace-events", trace_events_of_a_message, 60),
    Scenario("trace-events-by-name", trace_events_by_name, 600),
    Scenario("register-stream", registration_of_a_stream_query, 30),
    Scenario("reset-stream", reset_of_a_stream_query, 40),
    Scenario("stream-cycle", cycle_of_a_stream, 400),
    Scenario("stream-state", state_of_a_stream, 80),
    Scenario("set-cron", setting_of_a_cron, 60),
    Scenario("crons", list_of_crons, 60),
    Scenario("promote-cron", push_of_a_cron, 250),
    Scenario("operation-counts", counts_of_operations, 40),
    Scenario("operations", list_of_operations(), 200),
    Scenario("operations-pending", list_of_operations(status="pending"), 200),
    Scenario("operations-done", list_of_operations(status="done"), 200),
    Scenario("operations-failed", list_of_operations(status="failed"), 200),
    Scenario("operation-place", place_of_an_operation, 60),
]

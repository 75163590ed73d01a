"""Trace events, single messages and stream cycles against those who want the same at the same time."""

from __future__ import annotations

import asyncio

import pytest

from lockstep.core.messages import Receipt
from lockstep.core.records import DeadLetterFilter, Subscription
from lockstep.core.streams import NewStreamQuery, StateFilter, StateOp, StreamAck, StreamCycle
from lockstep.core.traces import NewTraceEvent
from lockstep.errors import Conflict, MessageNotFound, StreamQueryNotFound, TransactionRolledBack
from lockstep.storage.postgres.store import PostgresStore
from support.builders import batch, configure, dead_letter_by_dlq, pop, push_n, seqs
from support.sessions import Actor, Stage


async def trace(actor: Actor, receipt: Receipt) -> int:
    event = NewTraceEvent(
        partition_id=receipt.partition_id, transaction_id=receipt.transaction_id, data=b"1", names=("n",)
    )
    return await actor.store.record_trace(event)


async def remove(actor: Actor, receipt: Receipt) -> None:
    await actor.store.remove_message(receipt.partition_id, receipt.transaction_id)


# --- Trace events against removals ------------------------------------------------------------------------


@pytest.mark.parametrize("removal", ["clear", "message", "queue"])
async def test_event_that_is_told_while_its_message_is_removed_goes_with_it(stage: Stage, removal: str) -> None:
    """A records and holds on; B removes the message and waits; A commits: B removes the event, too."""
    a, b = await stage.actors(2)
    first, _ = await push_n(a.store, "q", 2)
    await a.begin()
    await trace(a, first)
    steps = {"clear": b.store.clear("q"), "queue": b.store.delete_queue("q"), "message": remove(b, first)}
    step = steps.pop(removal)
    for other in steps.values():
        other.close()
    waiting = await stage.blocked(step, b, by=a)
    await a.commit()
    await waiting
    assert await b.sql("select count(*) from lockstep.trace_event") == 0
    assert await b.sql("select count(*) from lockstep.trace_name") == 0


async def test_event_of_a_message_that_is_being_removed_is_refused(stage: Stage) -> None:
    """B removes the message and holds on; A records and waits; B commits: there is no such message."""
    a, b = await stage.actors(2)
    _, second, _ = await push_n(a.store, "q", 3)
    await b.begin()
    await remove(b, second)
    waiting = await stage.blocked(trace(a, second), a, by=b)
    await b.commit()
    with pytest.raises(MessageNotFound):
        await waiting


@pytest.mark.parametrize("neighbour", [0, 1])
async def test_event_of_a_message_whose_run_is_being_cut_is_recorded(stage: Stage, neighbour: int) -> None:
    """B removes a neighbour, which cuts the run, and holds on; A records and waits; B commits."""
    a, b = await stage.actors(2)
    receipts = await push_n(a.store, "q", 3)
    await b.begin()
    await remove(b, receipts[neighbour])
    waiting = await stage.blocked(trace(a, receipts[2]), a, by=b)
    await b.commit()
    await waiting
    assert len(await a.store.traces_of_message(receipts[2].partition_id, receipts[2].message_id)) == 1


async def test_event_does_not_wait_for_pushes_and_acks(stage: Stage) -> None:
    a, b = await stage.actors(2)
    [receipt] = await push_n(a.store, "q")
    await b.begin()
    await push_n(b.store, "q", start=2)
    await pop(b.store, "q", auto_ack=True)
    assert await trace(a, receipt)
    await b.commit()


# --- Single messages --------------------------------------------------------------------------------------


async def test_pop_does_not_lease_what_is_being_removed(stage: Stage) -> None:
    """A removes and holds on; B pops and finds the cursor taken; A commits."""
    a, b = await stage.actors(2)
    first, _ = await push_n(a.store, "q", 2)
    await b.store.subscribe("q", "g", Subscription())
    await a.begin()
    await remove(a, first)
    assert not await pop(b.store, "q", group="g")
    await a.commit()
    assert seqs(await pop(b.store, "q", group="g", batch=5)) == [2]


async def test_two_who_retry_the_same_dead_letter_do_it_one_after_the_other(stage: Stage) -> None:
    """A retries and holds on; B retries and waits; A commits: B finds no dead letter, but a completed message."""
    a, b = await stage.actors(2)
    [dead] = await dead_letter_by_dlq(a.store, "q", 1)
    await a.begin()
    await a.store.retry_message(dead.partition_id, dead.id)
    waiting = await stage.blocked(b.store.retry_message(dead.partition_id, dead.id), b, by=a)
    await a.commit()
    assert (await waiting).seq == 3
    assert (await b.store.dead_letters(DeadLetterFilter())).total == 0


async def test_dead_letter_that_is_being_redriven_is_not_retried(stage: Stage) -> None:
    """A locks the dead letter to redrive it; B retries the message, does not wait and is refused."""
    a, b = await stage.actors(2)
    [dead] = await dead_letter_by_dlq(a.store, "q", 1)
    await a.begin()
    await a.sql("select id from lockstep.dead_letter for update")
    with pytest.raises(Conflict, match="redriven"):
        await b.store.retry_message(dead.partition_id, dead.id)
    await a.commit()


async def test_limited_queue_stays_counted_while_messages_are_removed_and_acknowledged(dsn: str) -> None:
    stores = [PostgresStore(dsn) for _ in range(4)]
    await configure(stores[0], "q", max_size=1000)
    receipts = await push_n(stores[0], "q", 60)
    await pop(stores[0], "q", batch=1, auto_ack=True)

    async def work(index: int) -> None:
        for receipt in receipts[index + 1 :: 4]:
            if index % 2:
                await pop(stores[index], "q", batch=1, auto_ack=True)
            else:
                await stores[index].remove_message(receipt.partition_id, receipt.message_id)

    await asyncio.gather(*(work(index) for index in range(4)))
    assert await stores[0].verify() == []
    await asyncio.gather(*(store.close() for store in stores))


# --- Cycles -----------------------------------------------------------------------------------------------


async def query(actor: Actor, *, config_hash: str = "1", reset: bool = False) -> int:
    asked = NewStreamQuery(name="query", source_queue="in", config_hash=config_hash, reset=reset)
    return (await actor.store.register_stream_query(asked)).id


async def change(actor: Actor, query_id: int, partition_id: int, key: str = "k", value: bytes = b"1") -> None:
    ops = (StateOp(type="upsert", key=key, value=value),)
    await actor.store.stream_cycle(StreamCycle(query_id=query_id, partition_id=partition_id, state_ops=ops), [])


async def keys(actor: Actor, query_id: int, partition_id: int) -> list[str]:
    rows = await actor.store.stream_state(StateFilter(query_id=query_id, partition_id=partition_id))
    return [row.key for row in rows]


async def test_cycles_on_one_partition_come_one_after_the_other(stage: Stage) -> None:
    a, b, c = await stage.actors(3)
    here, there = await a.store.push([batch("in", partition="a"), batch("in", partition="b")])
    query_id = await query(a)
    await a.begin()
    await change(a, query_id, here.partition_id, "first")
    waiting = await stage.blocked(change(b, query_id, here.partition_id, "second"), b, by=a)
    await change(c, query_id, there.partition_id, "elsewhere")
    await a.commit()
    await waiting
    assert await keys(a, query_id, here.partition_id) == ["first", "second"]


async def test_two_cycles_for_one_delivery_apply_once(stage: Stage) -> None:
    """A's cycle holds on; B sends the same one and waits; A commits: B is refused, and changes nothing."""
    a, b = await stage.actors(2)
    await push_n(a.store, "in", 2)
    query_id = await query(a)
    popped = await pop(a.store, "in", batch=2)
    *_, last = popped.messages()
    ack = StreamAck(transaction_id=last.transaction_id, lease_id=popped.lease_id)
    step = StreamCycle(query_id=query_id, partition_id=last.partition_id, ack=ack)
    await a.begin()
    await a.store.stream_cycle(step, [batch("out")])
    waiting = await stage.blocked(b.store.stream_cycle(step, [batch("out")]), b, by=a)
    await a.commit()
    with pytest.raises(TransactionRolledBack):
        await waiting
    assert (await b.store.queue("out")).messages == 1


async def test_reset_waits_for_cycles_and_removes_what_they_wrote(stage: Stage) -> None:
    a, b = await stage.actors(2)
    [receipt] = await push_n(a.store, "in")
    query_id = await query(a)
    await a.begin()
    await change(a, query_id, receipt.partition_id)
    waiting = await stage.blocked(query(b, config_hash="2", reset=True), b, by=a)
    await a.commit()
    await waiting
    assert await keys(b, query_id, receipt.partition_id) == []


async def test_queue_that_is_deleted_takes_the_state_of_a_cycle_in_flight(stage: Stage) -> None:
    a, b = await stage.actors(2)
    [receipt] = await push_n(a.store, "in")
    query_id = await query(a)
    await a.begin()
    await change(a, query_id, receipt.partition_id)
    waiting = await stage.blocked(b.store.delete_queue("in"), b, by=a)
    await a.commit()
    assert await waiting
    assert await b.sql("select count(*) from lockstep.stream_state") == 0


async def test_two_who_register_a_query_at_once_get_the_same(stage: Stage) -> None:
    a, b = await stage.actors(2)
    await a.begin()
    first = await query(a)
    waiting = await stage.blocked(query(b), b, by=a)
    await a.commit()
    assert await waiting == first


async def test_query_whose_registration_is_rolled_back_is_unknown(stage: Stage) -> None:
    a, b = await stage.actors(2)
    [receipt] = await push_n(a.store, "in")
    await a.begin()
    query_id = await query(a)
    await a.rollback()
    with pytest.raises(StreamQueryNotFound):
        await change(b, query_id, receipt.partition_id)


async def test_cycles_that_push_to_each_others_partitions_do_not_deadlock(dsn: str) -> None:
    """Each of four stores reads its own partition and pushes to those of the others."""
    stores = [PostgresStore(dsn) for _ in range(4)]
    receipts = list(await stores[0].push([batch("in", 1, partition=f"p{index}") for index in range(4)]))
    asked = NewStreamQuery(name="query", source_queue="in", config_hash="1")
    query_id = (await stores[0].register_stream_query(asked)).id

    async def work(index: int) -> None:
        for number in range(15):
            while not (popped := await pop(stores[index], "in", group=f"g{index}", partition=f"p{index}", batch=1)):
                pass  # another cycle holds the partition
            [message] = popped.messages()
            step = StreamCycle(
                query_id=query_id,
                partition_id=receipts[index].partition_id,
                group=f"g{index}",
                state_ops=(StateOp(type="upsert", key=f"{number % 3}", value=b"1"),),
                ack=StreamAck(transaction_id=message.transaction_id, lease_id=popped.lease_id),
            )
            await stores[index].stream_cycle(step, [batch("in", partition=f"p{other}") for other in range(4)])

    await asyncio.gather(*(work(index) for index in range(4)))
    assert await stores[0].verify() == []
    assert (await stores[0].queue("in")).messages == 4 + 4 * 60
    await asyncio.gather(*(store.close() for store in stores))

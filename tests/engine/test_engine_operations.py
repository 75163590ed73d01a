"""Requests that a busy engine queues: what their senders see, and that nothing is lost, doubled or reordered."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from lockstep.config import load
from lockstep.core.messages import Batch, NewMessage, NewSchedule
from lockstep.core.operations import NewOperation
from lockstep.core.policy import QueueOptions
from lockstep.core.records import Ack, PopRequest
from lockstep.engine.engine import Engine
from lockstep.engine.load import Decision
from lockstep.errors import InvalidRequest, OperationNotFound, Overloaded, QueueFull, StillQueued
from lockstep.storage.base import Store
from lockstep.storage.postgres.store import PostgresStore
from support.builders import batch, numbers
from support.gate import Gate
from support.until import until


def config_of(**settings: Any) -> Any:
    return load({"operation_interval_seconds": 0.05, "operation_retry_seconds_max": 0.05, **settings}, environ={})


@asynccontextmanager
async def engine_on(store: Any, **settings: Any) -> AsyncIterator[Engine]:
    """An engine whose store the test opens and closes."""
    engine = Engine(store, config_of(**settings))
    try:
        yield engine
    finally:
        await engine._operations.stop()
        await engine._batching.close()
        await engine.stop_waiting()
        await engine._promotion.stop()


def busy(engine: Engine, answer: Decision = Decision.QUEUE) -> Engine:
    """As if its load were high."""
    engine._load.push = engine._load.ack = answer
    return engine


async def popped(engine: Engine, queue: str) -> list[int]:
    [found] = await engine.pop([PopRequest(queue=queue, batch=1000, partitions=100, auto_ack=True)])
    return numbers(found)


async def test_queued_push_answers_as_usual_once_it_is_applied(store: Store) -> None:
    async with engine_on(store) as engine:
        result = await busy(engine).push([batch("q", 2, partition="a"), batch("q", partition="b")])
        assert [(r.partition, r.seq, r.status, r.operation_id) for r in result] == [
            ("a", 1, "queued", None),
            ("a", 2, "queued", None),
            ("b", 1, "queued", None),
        ]
        assert await popped(engine, "q") == [1, 2, 1]


async def test_receipts_of_messages_given_one_by_one_are_in_their_order(store: Store) -> None:
    async with engine_on(store) as engine:
        messages = [NewMessage(queue="q", partition=name, payload=b"1") for name in "abab"]
        result = await busy(engine).push(messages)
        assert [(r.index, r.partition, r.seq) for r in result] == [(0, "a", 1), (1, "b", 1), (2, "a", 2), (3, "b", 2)]


async def test_queued_push_may_return_at_once_and_is_found_by_its_id(store: Store) -> None:
    async with engine_on(store) as engine:
        result = await busy(engine).push([batch("q", 2, transaction_ids=["x", None])], queued="return")
        assert result.operation is not None
        operation_id = result.operation.operation_id
        assert result.operation.reason == "system_busy"
        assert [(r.status, r.operation_id, r.message_id, r.transaction_id) for r in result] == [
            ("deferred", operation_id, "", "x"),
            ("deferred", operation_id, "", ""),
        ]
        info = await engine.operation(operation_id, wait_seconds=30)
        assert info.status == "done"
        assert info.outcome is not None
        assert [receipt.seq for receipt in info.outcome.pushed()] == [1, 2]


@pytest.mark.parametrize("gives_up_by", ["time", "cancelling"])
async def test_waiter_that_gives_up_does_not_end_the_wait_of_others(store: Store, gives_up_by: str) -> None:
    gate = Gate(store, "apply_operations")
    async with engine_on(gate) as engine:
        pushed = await busy(engine).push([batch("q")], queued="return")
        assert pushed.operation is not None
        operation_id = pushed.operation.operation_id
        impatient = asyncio.create_task(engine._operations.wait(operation_id, 0.01 if gives_up_by == "time" else 30.0))
        patient = [asyncio.create_task(engine._operations.wait(operation_id, 30.0)) for _ in range(2)]
        await asyncio.sleep(0)
        if gives_up_by == "cancelling":
            impatient.cancel()
        await asyncio.wait([impatient])
        also = asyncio.create_task(engine._operations.wait(operation_id, 30.0))
        await asyncio.sleep(0)
        gate.open()
        outcomes = await asyncio.gather(*patient, also)
        assert [outcome is not None and outcome.pushed()[0].seq for outcome in outcomes] == [1, 1, 1]
        await until(lambda: not engine._operations._awaited)


async def test_push_behind_an_operation_waits_for_it(store: Store) -> None:
    gate = Gate(store, "apply_operations")
    async with engine_on(gate) as engine:
        await busy(engine).push([batch("q", start=1)], queued="return")
        busy(engine, Decision.EXECUTE)
        behind = await engine.push([batch("q", start=2)], queued="return")
        beside = await engine.push([batch("q", partition="other", start=3)], queued="return")
        assert behind.operation is not None
        assert behind.operation.reason == "maintaining_order"
        assert beside.operation is None
        gate.open()
        await engine.operation(behind.operation.operation_id, wait_seconds=30)
        assert sorted(await popped(engine, "q")) == [1, 2, 3]


async def test_joined_push_queues_only_those_that_are_behind(store: Store) -> None:
    gate = Gate(store, "push")
    async with engine_on(gate, push_calls_max=1, call_patience_seconds=60) as engine:
        await store.queue_operations([_operation(batch("q", partition="held"))])
        tasks = [asyncio.create_task(engine.push([batch("q", partition="first")]))]
        await gate.arrived.wait()
        names = ["a", "held", "b", "held", "c"]
        tasks += [asyncio.create_task(engine.push([batch("q", partition=n, start=i)])) for i, n in enumerate(names)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        gate.open()
        results = await asyncio.gather(*tasks)
        # The two that wait came together, so either may be first.
        assert sorted([(r[0].partition, r[0].seq) for r in results]) == [
            ("a", 1),
            ("b", 1),
            ("c", 1),
            ("first", 1),
            ("held", 2),
            ("held", 3),
        ]
        # One for the first, one for all others, and one for those of them that need not wait.
        assert gate.calls["push"] == 3


def _operation(*batches: Batch) -> Any:
    return NewOperation(list(batches))


async def test_refused_push_says_when_to_come_again(store: Store) -> None:
    async with engine_on(store) as engine:
        busy(engine, Decision.REJECT)
        with pytest.raises(Overloaded) as refused:
            await engine.push([batch("q")])
        assert refused.value.details["retry_after_seconds"] >= 1
        with pytest.raises(Overloaded):
            engine.check_load("push")
        with pytest.raises(Overloaded):
            await engine.transaction([], [batch("q")])
        engine._load.pop = Decision.REJECT
        with pytest.raises(Overloaded):
            await engine.pop([PopRequest(queue="q")])


async def test_depth_limit_refuses_then_drains_then_accepts(store: Store) -> None:
    gate = Gate(store, "apply_operations")
    async with engine_on(gate, operation_push_depth_max=3) as engine:
        engine._load.manage()
        engine._load.note_crowd("push")
        engine._load.sample(store.counts())  # the process has time, so that they are queued
        queued = [await engine.push([batch("q", start=n)], queued="return") for n in range(1, 4)]
        with pytest.raises(Overloaded):
            await engine.push([batch("q", start=9)])
        gate.open()
        assert queued[-1].operation is not None
        await engine.operation(queued[-1].operation.operation_id, wait_seconds=30)
        await engine._operations.run_once()
        engine._load.sample(store.counts())
        assert engine._load.push is not Decision.REJECT
        await engine.push([batch("q", start=4)])
        assert await popped(engine, "q") == [1, 2, 3, 4]


async def test_queued_push_that_fails_raises_what_it_failed_with(store: Store) -> None:
    async with engine_on(store, operation_retries_max=0) as engine:
        await engine.configure("q", QueueOptions(max_size=1))
        await busy(engine).push([batch("q")])
        with pytest.raises(QueueFull) as refused:
            await engine.push([batch("q")])
        assert refused.value.details["queue"] == "q"


async def test_push_that_is_not_applied_in_time_says_so(store: Store) -> None:
    gate = Gate(store, "apply_operations")
    async with engine_on(gate, operation_wait_seconds_max=0.01) as engine:
        with pytest.raises(StillQueued) as late:
            await busy(engine).push([batch("q")])
        info = await engine.operation(late.value.details["operation_id"])
        assert (info.status, info.position) == ("pending", 1)
        gate.open()


async def test_delay_of_a_queued_push_counts_from_when_it_came(store: Store) -> None:
    async with engine_on(store) as engine:
        pushed = Batch("q", "Default", batch("q").columns, NewSchedule(delay_seconds=1000))
        result = await busy(engine).push([pushed])
        assert result[0].status == "scheduled"
        assert result[0].due_at is not None


async def test_queued_acks_tell_their_outcomes(store: Store) -> None:
    async with engine_on(store) as engine:
        await engine.push([batch("q", 3)])
        [held] = await engine.pop([PopRequest(queue="q", batch=3)])
        busy(engine)
        outcomes = await engine.ack([Ack(lease_id=held.lease_id)])
        assert [(o.success, o.messages, o.released) for o in outcomes] == [(True, 3, True)]
        [late] = await engine.ack([Ack(lease_id=held.lease_id)])
        assert late.error == "lease_lost"


async def test_ack_goes_behind_a_queued_one_of_the_same_lease(store: Store) -> None:
    gate = Gate(store, "apply_operations")
    async with engine_on(gate) as engine:
        await engine.push([batch("q", 4)])
        [held] = await engine.pop([PopRequest(queue="q", batch=4)])
        partition_id = held.partition_ids[0]
        busy(engine)
        first = asyncio.create_task(engine.ack([Ack(lease_id=held.lease_id, partition_id=partition_id, seq=2)]))
        await gate.arrived.wait()
        busy(engine, Decision.EXECUTE)
        second = asyncio.create_task(engine.ack([Ack(lease_id=held.lease_id)]))
        await asyncio.sleep(0)
        gate.open()
        assert [(await first)[0].messages, (await second)[0].messages] == [2, 2]


async def test_waiting_pop_is_woken_by_an_operation(store: Store) -> None:
    async with engine_on(store) as engine:
        await engine.configure("q")
        waiting = asyncio.create_task(engine.wait_pop(PopRequest(queue="q"), 30))
        await until(lambda: engine.counts.waiting.polls)
        await busy(engine).push([batch("q")])
        assert numbers(await waiting) == [1]


async def test_lookups_check_their_input(store: Store) -> None:
    async with engine_on(store) as engine:
        with pytest.raises(InvalidRequest):
            await engine.operation("nonsense")
        with pytest.raises(OperationNotFound):
            await engine.operation("0190a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2b")
        with pytest.raises(InvalidRequest):
            await engine.operations(status="lost")  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest):
            await engine.operations(limit=0)
        stats = await engine.operation_stats()
        assert [(one.kind, one.answer) for one in stats.load] == [
            ("push", "execute"),
            ("ack", "execute"),
            ("pop", "execute"),
        ]


async def test_failed_operation_is_shown_and_can_be_tried_again(store: Store) -> None:
    async with engine_on(store, operation_retries_max=0) as engine:
        await engine.configure("q", QueueOptions(max_size=1))
        await engine.push([batch("q")])
        with pytest.raises(QueueFull):
            await busy(engine).push([batch("q", start=2)])
        [failed] = (await engine.operations(status="failed")).items
        assert await popped(engine, "q") == [1]
        await engine.retry_operation(failed.id)
        assert (await engine.operation(failed.id, wait_seconds=30)).status == "done"
        assert await popped(engine, "q") == [2]


async def test_order_while_the_answer_flips(database_dsn: str) -> None:
    """Two engines on one database; each producer goes from one to the other, and each push may be executed, queued or
    refused: what was accepted arrives once, in its producer's order."""
    stores = [PostgresStore(database_dsn) for _ in range(2)]
    for store in stores:
        await store.open()
    chance = random.Random(7)
    async with engine_on(stores[0], operation_push_depth_max=40) as a, engine_on(stores[1]) as b:
        for engine in (a, b):
            engine.start_operations()
            engine._load.managed = False
        flipping = asyncio.create_task(_flip([a, b], chance))
        await asyncio.gather(*[_produce([a, b], f"p{n}", random.Random(n)) for n in range(12)])
        flipping.cancel()
        busy(a, Decision.EXECUTE)
        busy(b, Decision.EXECUTE)
        found: dict[str, list[int]] = {}
        while True:
            if (await a.operation_stats()).pending[1].operations == 0:
                [popped] = await a.pop([PopRequest(queue="q", batch=1000, partitions=100, auto_ack=True)])
                if not popped.runs:
                    break
                for message in popped.messages():
                    found.setdefault(message.partition, []).append(message.json()["n"])
            await asyncio.sleep(0)
        assert found == {f"p{n}": list(range(1, PUSHES + 1)) for n in range(12)}
        assert a.counts.operations_applied + b.counts.operations_applied > 0
        assert (await a.operation_stats()).failed == 0
    for store in stores:
        await store.close()


PUSHES = 60


async def _flip(engines: list[Engine], chance: random.Random) -> None:
    while True:
        busy(chance.choice(engines), chance.choice(list(Decision)))
        await asyncio.sleep(chance.uniform(0, 0.01))


async def _produce(engines: list[Engine], partition: str, chance: random.Random) -> None:
    for number in range(1, PUSHES + 1):
        while True:
            try:
                queued: Any = chance.choice(["wait", "return", "return"])
                await chance.choice(engines).push([batch("q", partition=partition, start=number)], queued=queued)
                break
            except Overloaded:
                await asyncio.sleep(0.001)

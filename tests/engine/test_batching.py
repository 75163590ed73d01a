"""Requests that come together become one call, and nobody notices."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from lockstep.config import Config, load
from lockstep.core.messages import Batch
from lockstep.core.policy import QueueOptions
from lockstep.core.records import Ack, PopRequest, Renewal, Subscription
from lockstep.engine.engine import Engine
from lockstep.engine.joiner import Joiner
from lockstep.engine.load import Decision
from lockstep.engine.pace import CallLimits
from lockstep.errors import LockTimeout, Overloaded, QueueFull, Unavailable
from lockstep.storage.base import Store
from lockstep.storage.postgres.store import PostgresStore
from support.gate import Gate
from support.until import until

QUEUE = "orders"


def one_call_at_a_time(**settings: Any) -> Config:
    """However slow the machine is: a call that takes long no longer holds up the next, unless there is patience."""
    one = {"push_calls_max": 1, "pop_calls_max": 1, "ack_calls_max": 1, "call_patience_seconds": 60}
    return load({**one, **settings}, environ={})


def batch(partition: str, *payloads: bytes, queue: str = QUEUE, **columns: Any) -> Batch:
    return Batch.of(queue, payloads, partition=partition, **columns)


async def asked_together(gate: Gate, first: Any, *others: Any) -> list[Any]:
    """The answers of calls of which the others come while the first is in flight."""
    tasks = [asyncio.create_task(first)]
    await gate.arrived.wait()
    tasks += [asyncio.create_task(other) for other in others]
    await asyncio.sleep(0)  # all of them have asked now
    await asyncio.sleep(0)
    gate.open()
    return await asyncio.gather(*tasks, return_exceptions=True)


async def test_lone_requests_go_alone(store: Store) -> None:
    engine = Engine(store, one_call_at_a_time())
    for number in range(3):
        await engine.push([batch("p", b"%d" % number)])
    counts = engine.counts.calls["push"]
    assert (counts.requests, counts.calls, counts.round_trips_saved) == (3, 3, 0)


async def test_pushes_that_come_together_are_one_call(store: Store) -> None:
    gate = Gate(store, "push")
    engine = Engine(gate, one_call_at_a_time())  # type: ignore[arg-type]
    pushes = [engine.push([batch(f"p{n % 3}", b"%d" % n, b"x")]) for n in range(10)]
    results = await asked_together(gate, *pushes)
    assert gate.calls["push"] == 2
    assert engine.counts.calls["push"].requests_max == 9
    assert engine.counts.calls["push"].round_trips_saved == 8
    for number, result in enumerate(results):
        assert [receipt.index for receipt in result] == [0, 1]
        for offset, receipt in enumerate(result):
            stored = await engine.message(receipt.message_id)
            assert stored.message.payload == (b"%d" % number if offset == 0 else b"x")
            assert (stored.message.seq, stored.message.partition) == (receipt.seq, f"p{number % 3}")


async def test_duplicates_between_joined_pushes_name_the_first(store: Store) -> None:
    gate = Gate(store, "push")
    engine = Engine(gate, one_call_at_a_time())  # type: ignore[arg-type]
    pushes = [engine.push([batch("p", b"%d" % n, transaction_ids=["same"])]) for n in range(4)]
    results = await asked_together(gate, *pushes)
    receipts = [result[0] for result in results]
    assert sorted(receipt.status for receipt in receipts) == ["duplicate"] * 3 + ["queued"]
    assert len({receipt.message_id for receipt in receipts}) == 1


async def test_a_full_queue_fails_only_those_who_push_to_it(store: Store) -> None:
    gate = Gate(store, "push")
    engine = Engine(gate, one_call_at_a_time())  # type: ignore[arg-type]
    await store.configure("small", QueueOptions(max_size=1))
    results = await asked_together(
        gate,
        engine.push([batch("p", b"0")]),
        engine.push([batch("p", b"1")]),
        engine.push([batch("p", b"2", b"3", queue="small")]),
        engine.push([batch("p", b"4")]),
        engine.push([batch("p", b"5", queue="small")]),
    )
    assert isinstance(results[2], QueueFull)
    assert [result[0].status for index, result in enumerate(results) if index != 2] == ["queued"] * 4
    assert engine.counts.calls["push"].retried_alone == 4


async def test_an_unreachable_store_fails_them_all(store: Store) -> None:
    class Unreachable:
        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

        async def push(self, _batches: Any, **_: Any) -> Any:
            raise Unavailable

    gate = Gate(Unreachable(), "push")  # type: ignore[arg-type]
    engine = Engine(gate, one_call_at_a_time())  # type: ignore[arg-type]
    results = await asked_together(gate, *[engine.push([batch("p", b"x")]) for _ in range(5)])
    assert [type(result) for result in results] == [Unavailable] * 5
    assert gate.calls["push"] == 2


async def test_a_joined_push_stays_within_its_limits(store: Store) -> None:
    gate = Gate(store, "push")
    engine = Engine(gate, one_call_at_a_time(call_messages_max=4))  # type: ignore[arg-type]
    await asked_together(gate, *[engine.push([batch("p", b"1", b"2")]) for _ in range(5)])
    assert gate.calls["push"] == 3  # 2, then 4 and 4


async def test_waiting_consumers_are_served_by_one_call_each_with_its_own_lease(store: Store) -> None:
    for number in range(5):
        await store.push([batch(f"p{number}", b"%d" % number)])
    gate = Gate(store, "pop")
    engine = Engine(gate, one_call_at_a_time())  # type: ignore[arg-type]
    results = await asked_together(gate, *[engine.pop([PopRequest(queue=QUEUE)]) for _ in range(7)])
    popped = [result[0] for result in results if result[0].runs]
    assert gate.calls["pop"] == 2
    assert len(popped) == 5
    assert len({one.lease_id for one in popped}) == 5
    assert len({one.runs[0].partition for one in popped}) == 5


async def test_pops_of_a_shared_group_are_joined_and_never_side_by_side(store: Store) -> None:
    await store.push([batch("p", *[b"%d" % number for number in range(9)])])
    gate = Gate(store, "pop")
    engine = Engine(gate, one_call_at_a_time(pop_calls_max=5, call_messages_min=1))  # type: ignore[arg-type]
    wanted = PopRequest(queue=QUEUE, group="g", mode="shared", batch=2)
    other = PopRequest(queue=QUEUE, group="other")
    results = await asked_together(gate, *[engine.pop([one]) for one in (wanted, wanted, wanted, other, wanted)])
    assert gate.calls["pop"] == 3  # the first, the other one beside it, and then those that gathered
    assert engine.counts.calls["pop"].requests_max == 3
    assert sorted(b"".join(result[0].payloads()) for result in results) == [b"0", b"01", b"23", b"45", b"67"]
    assert len({result[0].lease_id for result in results}) == 5


async def test_group_that_turns_out_to_be_shared_is_joined_from_then_on(store: Store) -> None:
    await store.push([batch("p", b"1", b"2", b"3")])
    await store.subscribe(QUEUE, "g", Subscription(), mode="shared")
    gate = Gate(store, "pop")
    engine = Engine(gate, one_call_at_a_time(pop_calls_max=5))  # type: ignore[arg-type]
    wanted = PopRequest(queue=QUEUE, group="g")
    gate.open()
    await engine.pop([wanted])
    assert gate.calls["pop"] == 1
    await asyncio.gather(*[engine.pop([wanted]) for _ in range(3)])
    assert gate.calls["pop"] == 3
    assert engine.counts.calls["pop"].requests_max == 2


async def test_a_named_partition_goes_to_one_of_those_who_ask(store: Store) -> None:
    await store.push([batch("p", b"1", b"2")])
    gate = Gate(store, "pop")
    engine = Engine(gate, one_call_at_a_time())  # type: ignore[arg-type]
    wanted = PopRequest(queue=QUEUE, partition="p")
    results = await asked_together(gate, *[engine.pop([wanted]) for _ in range(4)])
    assert [len(result[0]) for result in results] == [1, 0, 0, 0]


class LateAnswers(Gate):
    """Holds back the answers, not the calls."""

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self._store, name)
        if name not in self._held:
            return verb

        async def pass_on(*args: Any, **kwargs: Any) -> Any:
            answer = await verb(*args, **kwargs)
            self.arrived.set()
            await self._open.wait()
            return answer

        return pass_on


@pytest.mark.parametrize("batching", [True, False])
async def test_what_was_leased_for_somebody_who_just_went_is_released(store: Store, batching: bool) -> None:
    await store.push([batch("p", b"1")])
    late = LateAnswers(store, "pop")
    engine = Engine(late, one_call_at_a_time(batching=batching))  # type: ignore[arg-type]
    gone = asyncio.create_task(engine.pop([PopRequest(queue=QUEUE)]))
    await late.arrived.wait()
    assert len(await store.leases()) == 1
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    late.open()
    await engine._batching.close()
    assert await store.leases() == []


@pytest.mark.parametrize("batching", [True, False])
async def test_what_was_leased_for_somebody_who_goes_when_the_answer_comes_is_released(
    store: Store, batching: bool
) -> None:
    await store.push([batch("p", b"1")])
    late = LateAnswers(store, "pop")
    engine = Engine(late, one_call_at_a_time(batching=batching))  # type: ignore[arg-type]
    gone = asyncio.create_task(engine.pop([PopRequest(queue=QUEUE)]))
    await late.arrived.wait()
    late.open()
    await asyncio.sleep(0)  # it has its answer now, and has not looked at it
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    await engine._batching.close()
    assert await store.leases() == []


async def test_what_was_leased_for_somebody_who_went_is_released(store: Store) -> None:
    await store.push([batch("p", b"1")])
    gate = Gate(store, "pop")
    engine = Engine(gate, one_call_at_a_time())  # type: ignore[arg-type]
    gone = asyncio.create_task(engine.pop([PopRequest(queue=QUEUE)]))
    await gate.arrived.wait()
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    gate.open()
    await engine._batching.close()
    assert await store.leases() == []
    again = await store.pop([PopRequest(queue=QUEUE)])
    assert again[0].payloads() == [b"1"]
    assert again[0].runs[0].delivery.attempt == 1


async def test_a_request_that_nobody_waits_for_is_not_sent(store: Store) -> None:
    await store.push([batch("p", b"1")])
    gate = Gate(store, "pop")
    engine = Engine(gate, one_call_at_a_time())  # type: ignore[arg-type]
    first = asyncio.create_task(engine.pop([PopRequest(queue="other")]))
    await gate.arrived.wait()
    gone = asyncio.create_task(engine.pop([PopRequest(queue=QUEUE)]))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.sleep(0)
    gate.open()
    await first
    assert gate.calls["pop"] == 1


async def test_acks_of_one_cursor_never_share_a_call(store: Store) -> None:
    await store.push([batch("p", b"1", b"2", b"3"), batch("q", b"1")])
    popped = (await store.pop([PopRequest(queue=QUEUE, batch=10, partitions=2)]))[0]
    messages = {(m.partition, m.seq): m for m in popped.messages()}
    gate = Gate(store, "ack")
    engine = Engine(gate, one_call_at_a_time())  # type: ignore[arg-type]

    def ack(partition: str, seq: int, **more: Any) -> Any:
        message = messages[partition, seq]
        return engine.ack([Ack(partition_id=message.partition_id, transaction_id=message.transaction_id, **more)])

    # Joined, the failure would clamp what the second one completes.
    results = await asked_together(gate, ack("q", 1), ack("p", 1, status="retry"), ack("p", 2))
    assert [outcome[0].success for outcome in results] == [True, True, True]
    assert [outcome[0].index for outcome in results] == [0, 0, 0]
    assert gate.calls["ack"] == 3


async def test_acks_of_many_leases_are_one_call(store: Store) -> None:
    for number in range(6):
        await store.push([batch(f"p{number}", b"x")])
    popped = await store.pop([PopRequest(queue=QUEUE) for _ in range(6)])
    gate = Gate(store, "ack")
    engine = Engine(gate, one_call_at_a_time())  # type: ignore[arg-type]
    results = await asked_together(gate, *[engine.ack([Ack(lease_id=one.lease_id)]) for one in popped])
    assert gate.calls["ack"] == 2
    for one, outcomes in zip(popped, results, strict=True):
        assert [(o.index, o.success, o.messages, o.partition) for o in outcomes] == [
            (0, True, 1, one.runs[0].partition)
        ]


async def test_renewals_are_one_call(store: Store) -> None:
    for number in range(4):
        await store.push([batch(f"p{number}", b"x")])
    popped = await store.pop([PopRequest(queue=QUEUE) for _ in range(4)])
    gate = Gate(store, "renew")
    engine = Engine(gate, one_call_at_a_time())  # type: ignore[arg-type]
    renewals = [engine.renew([Renewal(lease_id=one.lease_id or "", seconds=600)]) for one in popped]
    results = await asked_together(gate, *renewals)
    assert gate.calls["renew"] == 2
    assert [result[0].lease_id for result in results] == [one.lease_id for one in popped]


async def test_switched_off_every_request_is_a_call(store: Store) -> None:
    gate = Gate(store, "push")
    engine = Engine(gate, one_call_at_a_time(batching=False))  # type: ignore[arg-type]
    results = await asked_together(gate, *[engine.push([batch("p", b"x")]) for _ in range(4)])
    assert gate.calls["push"] == 4
    assert sorted(result[0].seq for result in results) == [1, 2, 3, 4]


async def test_a_second_call_is_begun_once_enough_has_gathered(store: Store) -> None:
    gate = Gate(store, "push")
    engine = Engine(gate, load({"push_calls_max": 2, "call_messages_min": 4}, environ={}))  # type: ignore[arg-type]
    tasks = [asyncio.create_task(engine.push([batch("p", b"1")])) for _ in range(4)]
    for _ in range(3):
        await asyncio.sleep(0)
    assert gate.calls["push"] == 1  # three are too few
    tasks += [asyncio.create_task(engine.push([batch("p", b"1")])) for _ in range(2)]
    await until(lambda: gate.calls["push"] == 2)
    gate.open()
    results = await asyncio.gather(*tasks)
    assert sorted(result[0].seq for result in results) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(("consumed", "begun"), [(True, 4), (False, 5)])
async def test_large_pushes_wait_for_nobody_until_few_connections_are_left(
    store: Store, consumed: bool, begun: int
) -> None:
    gate = Gate(store, "push")
    # A call that waits longer for the lock of another one is repeated.
    config = one_call_at_a_time(call_messages_large=300, pool_connections_max=8, call_lock_seconds=60)
    engine = Engine(gate, config)  # type: ignore[arg-type]
    if consumed:
        await engine.pop([PopRequest(queue="q")])
    sizes = [300, 300, 300, 300, 300, 1, 299, 300, 2]
    tasks = [asyncio.create_task(engine.push([batch("p", *[b"x"] * size)])) for size in sizes]
    for _ in range(3):
        await asyncio.sleep(0)
    assert gate.calls["push"] == begun, "with consumers the other connections are theirs"
    gate.open()
    assert [len(result) for result in await asyncio.gather(*tasks)] == sizes
    assert gate.calls["push"] == 8, "only small ones went together"


async def test_large_push_to_many_partitions_is_joined_with_others(store: Store) -> None:
    gate = Gate(store, "push")
    engine = Engine(gate, one_call_at_a_time(call_messages_large=10))  # type: ignore[arg-type]
    spread = [batch(f"p{number}", b"x") for number in range(20)]
    await asked_together(gate, *[engine.push(spread) for _ in range(4)])
    assert gate.calls["push"] == 2


@pytest.mark.parametrize(("wait_seconds_max", "answer"), [(0.001, Decision.SHED), (3600, Decision.EXECUTE)])
async def test_many_messages_are_a_crowd_once_they_have_to_wait(
    store: Store, wait_seconds_max: float, answer: Decision
) -> None:
    gate = Gate(store, "push")
    settings = {"load_busy_messages_max": 5, "load_wait_seconds_max": wait_seconds_max}
    engine = Engine(gate, one_call_at_a_time(**settings))  # type: ignore[arg-type]
    engine._load.manage()
    tasks = [asyncio.create_task(engine.push([batch("p", b"0")]))]
    await gate.arrived.wait()
    tasks += [asyncio.create_task(engine.push([batch("p", b"x", b"x")])) for _ in range(4)]
    await asyncio.sleep(0.002)
    tasks.append(asyncio.create_task(engine.push([batch("p", b"x", b"x")])))
    await asyncio.sleep(0)
    assert engine._load.push is Decision.EXECUTE, "nobody knows yet how long that takes"
    engine._batching._push._pace.messages_per_second = 1.0
    tasks.append(asyncio.create_task(engine.push([batch("p", b"last")])))
    await asyncio.sleep(0.002)
    assert engine._load.push is answer
    gate.open()
    assert [len(result) for result in await asyncio.gather(*tasks)] == [1, 2, 2, 2, 2, 2, 1]


async def test_pushes_that_come_count_as_much_as_those_of_late(store: Store) -> None:
    gate = Gate(store, "push")
    engine = Engine(gate, one_call_at_a_time(load_busy_messages_max=1000))  # type: ignore[arg-type]
    assert engine._batching.has_time(999)
    assert not engine._batching.has_time(1000)
    tasks = [asyncio.create_task(engine.push([batch("p", *[b"x"] * 10)])) for _ in range(20)]
    await gate.arrived.wait()
    await asyncio.sleep(0)
    assert engine._batching.has_time(50)
    assert not engine._batching.has_time(200)
    gate.open()
    await asyncio.gather(*tasks)


async def test_while_all_calls_are_slow_none_is_begun_beside_another(store: Store) -> None:
    gate = Gate(store, "push")
    engine = Engine(gate, one_call_at_a_time(call_patience_seconds=0.001))  # type: ignore[arg-type]
    pace = engine._batching._push._pace
    pace.patience_seconds = 3000  # as after slow calls
    tasks = [asyncio.create_task(engine.push([batch("p", b"0")]))]
    await gate.arrived.wait()
    tasks.append(asyncio.create_task(engine.push([batch("p", b"1")])))
    await asyncio.sleep(0.01)
    assert gate.calls["push"] == 1
    pace.patience_seconds = 0
    tasks.append(asyncio.create_task(engine.push([batch("p", b"2")])))
    await until(lambda: gate.calls["push"] == 2)
    gate.open()
    await asyncio.gather(*tasks)


async def test_calls_that_take_long_hold_up_nobody(store: Store) -> None:
    gate = Gate(store, "push")
    engine = Engine(gate, one_call_at_a_time(call_patience_seconds=0.001))  # type: ignore[arg-type]
    tasks = [asyncio.create_task(engine.push([batch("p", b"1")]))]
    await gate.arrived.wait()
    tasks.append(asyncio.create_task(engine.push([batch("q", b"1")])))
    await until(lambda: gate.calls["push"] == 2)
    gate.open()
    await asyncio.gather(*tasks)


async def test_one_call_that_was_held_up_does_not_make_all_seem_slow(store: Store) -> None:
    engine = Engine(store, one_call_at_a_time(call_patience_seconds=0.05))
    pace = engine._batching._push._pace
    began = asyncio.get_running_loop().time() - 10
    pace.note_ended(began, 1)
    assert pace.patience_seconds < 0.1
    for _ in range(50):
        pace.note_ended(began, 1)
    assert pace.patience_seconds > 10


@asynccontextmanager
async def held_partition(dsn: str, partition: str) -> AsyncIterator[None]:
    """Somebody has pushed to it, in a transaction that is still open."""
    connection = await asyncpg.connect(dsn)
    try:
        async with connection.transaction():
            await connection.execute("select 1 from lockstep.partition where name = $1 for no key update", partition)
            yield
    finally:
        await connection.close()


async def test_a_partition_that_somebody_holds_holds_up_no_other(database_dsn: str) -> None:
    config = one_call_at_a_time(call_patience_seconds=0.01, call_lock_seconds=0.05)
    async with Engine(PostgresStore(database_dsn, config=config), config) as engine:
        for name in ("held", "free"):
            await engine.push([batch(name, b"0")])
        async with held_partition(database_dsn, "held"):
            # The first waits alone; of the others, which are joined, half name the held partition.
            waiting = [asyncio.create_task(engine.push([batch("held", b"1")])) for _ in range(3)]
            passing = [asyncio.create_task(engine.push([batch("free", b"1")])) for _ in range(3)]
            receipts = [result[0] for result in await asyncio.gather(*passing)]
            assert sorted(receipt.seq for receipt in receipts) == [2, 3, 4]
            assert not any([task.done() for task in waiting])
        assert sorted(result[0].seq for result in await asyncio.gather(*waiting)) == [2, 3, 4]
        assert engine.counts.calls["push"].retried_alone > 0


async def test_many_who_need_a_held_partition_hold_up_no_other(database_dsn: str) -> None:
    """However many they are, and in however many calls they came."""
    config = load({"call_lock_seconds": 0.05, "pool_connections_max": 4, "load_refuse_seconds": 3600}, environ={})
    async with Engine(PostgresStore(database_dsn, config=config), config) as engine:
        for name in ("held", "free"):
            await engine.push([batch(name, b"0")])
        async with held_partition(database_dsn, "held"):
            waiting = []
            for number in range(12):
                waiting.append(asyncio.create_task(engine.push([batch("held", b"1")])))
                result = await engine.push([batch("free", b"1")])
                assert result[0].seq == number + 2
            joiner = engine._batching._push
            await until(lambda: len(joiner._late) + len(joiner._alone_next) == 12 and not joiner._in_flight)
            assert joiner.crowd().oldest_seconds == 0.0
            assert not any([task.done() for task in waiting])
        assert sorted([result[0].seq for result in await asyncio.gather(*waiting)]) == list(range(2, 14))


async def test_while_somebody_holds_a_partition_a_lone_push_to_another_goes_at_once(database_dsn: str) -> None:
    """It does not wait for patience with the call before it, which has ended."""
    config = one_call_at_a_time()
    async with Engine(PostgresStore(database_dsn, config=config), config) as engine:
        for name in ("held", "free"):
            await engine.push([batch(name, b"0")])
        async with held_partition(database_dsn, "held"):
            waiting = asyncio.create_task(engine.push([batch("held", b"1")]))
            await asyncio.sleep(0)
            joiner = engine._batching._push
            [call] = joiner._in_flight
            joiner._in_flight[call] -= joiner._pace.patience_seconds  # it has waited for as long as there is patience
            for seq in (2, 3, 4):
                result = await engine.push([batch("free", b"1")])
                assert result[0].seq == seq
            assert not waiting.done()
        await waiting


@pytest.mark.parametrize("whole", [True, False], ids=["lease", "seq"])
async def test_a_partition_that_somebody_holds_holds_up_no_ack_of_another(database_dsn: str, whole: bool) -> None:
    """An ack that leaves nothing ahead waits for who pushes to its partition."""
    config = one_call_at_a_time(call_patience_seconds=0.01, call_lock_seconds=0.05)
    async with Engine(PostgresStore(database_dsn, config=config), config) as engine:

        async def leased(queue: str, partition: str) -> Ack:
            await engine.push([Batch.of(queue, [b"1"], partition=partition)])
            [popped] = await engine.pop([PopRequest(queue=queue, partition=partition)])
            place = {} if whole else {"partition_id": popped.partition_ids[0], "seq": 1}
            return Ack(lease_id=popped.lease_id, **place)  # type: ignore[arg-type]

        held = [await leased(queue, "held") for queue in "abc"]
        free = [await leased(queue, "free") for queue in "abc"]
        async with held_partition(database_dsn, "held"):
            waiting = [asyncio.create_task(engine.ack([ack])) for ack in held]
            passing = [asyncio.create_task(engine.ack([ack])) for ack in free]
            assert [outcome.success for [outcome] in await asyncio.gather(*passing)] == [True] * 3
            assert not any([task.done() for task in waiting])
        assert [outcome.messages for [outcome] in await asyncio.gather(*waiting)] == [1] * 3
        assert engine.counts.calls["ack_leases" if whole else "ack"].retried_alone > 0


class Stalled:
    """A store whose pushes end when the test says so, and the time that it says it is."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
        self.now = 100.0
        self.calls: list[asyncio.Future[Any]] = []
        monkeypatch.setattr("lockstep.engine.joiner.time.monotonic", lambda: self.now)
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: self.now)
        limits = CallLimits.of(load({"call_messages_min": 1, **settings}, environ={}))
        self.joiner: Joiner[int, list[int]] = Joiner(
            "push", self.call, lambda found, start, stop: found[start:stop], calls_max=2, limits=limits, stalls=True
        )
        self.asked: list[asyncio.Task[list[int]]] = []

    async def call(self, items: list[int]) -> list[int]:
        future = asyncio.get_running_loop().create_future()
        self.calls.append(future)
        await future
        return items

    async def ask(self, *numbers: int) -> None:
        self.asked += [asyncio.create_task(self.joiner.ask([number], messages=1)) for number in numbers]
        for _ in range(5):
            await asyncio.sleep(0)

    async def end(self) -> list[int]:
        while not all(asked.done() for asked in self.asked):
            self.now += 1  # nobody has patience for so long
            for call in self.calls:
                if not call.done():
                    call.set_result(None)
            await asyncio.sleep(0)
        return [number for answer in await asyncio.gather(*self.asked) for number in answer]


async def test_calls_that_do_not_end_are_slow_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """However few of them there are, and although nobody waits for a call: all who ask are in flight."""
    stalled = Stalled(monkeypatch)
    assert stalled.joiner.crowd().fastest_seconds == 0
    await stalled.ask(1, 2, 3)
    assert len(stalled.calls) == 2
    for seconds in (1, 2, 3):
        stalled.now += 1
        crowd = stalled.joiner.crowd()
        assert crowd.fastest_seconds == pytest.approx(seconds)
    stalled.calls[0].set_result(None)
    await stalled.ask(4)
    assert stalled.joiner.crowd().fastest_seconds == pytest.approx(3), "that is what it took"
    stalled.now += 0.5
    assert stalled.joiner.crowd().fastest_seconds == pytest.approx(3), "and none has been faster since"
    await stalled.end()
    stalled.joiner.crowd()
    assert stalled.joiner.crowd().fastest_seconds == 0


async def test_lone_call_that_waits_for_what_somebody_holds_is_no_load(monkeypatch: pytest.MonkeyPatch) -> None:
    stalled = Stalled(monkeypatch)
    await stalled.ask(1)
    stalled.now += 10
    assert stalled.joiner.crowd().fastest_seconds == 0
    assert await stalled.end() == [1]


async def test_requests_that_have_waited_too_long_are_refused_and_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    stalled = Stalled(monkeypatch, call_requests_max=1, pool_connections_max=4)
    await stalled.ask(1, 2)
    stalled.now += 3
    await stalled.ask(3)
    stalled.now += 3
    await stalled.ask(4)
    assert len(stalled.calls) == 2
    stalled.joiner.refuse_waiting(3, lambda: Overloaded("busy"))
    refused, waiting = stalled.asked[2:]
    with pytest.raises(Overloaded):
        await refused
    assert not waiting.done()
    stalled.asked.remove(refused)
    assert await stalled.end() == [1, 2, 4]


async def test_requests_that_wait_to_be_tried_alone_are_refused_too(monkeypatch: pytest.MonkeyPatch) -> None:
    stalled = Stalled(monkeypatch, pool_connections_max=2, call_messages_min=1_000)
    await stalled.ask(1)
    await stalled.ask(2, 3, 4)
    stalled.calls[0].set_result(None)
    await stalled.ask()
    stalled.calls[1].set_exception(LockTimeout())
    await stalled.ask()
    assert len(stalled.calls) == 3, "one is tried alone"
    stalled.now += 6
    assert stalled.joiner.crowd().oldest_seconds == pytest.approx(6)
    stalled.joiner.refuse_waiting(5, lambda: Overloaded("busy"))
    stalled.calls[2].set_result(None)
    answers = await asyncio.gather(*stalled.asked, return_exceptions=True)
    assert answers[:2] == [[1], [2]]
    assert [type(answer) for answer in answers[2:]] == [Overloaded, Overloaded]
    assert len(stalled.calls) == 3

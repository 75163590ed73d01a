"""Work queues in the engine: balance, fair shares, expiry of single messages, and what is refused."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from lockstep.config import load
from lockstep.core.crons import NewCron
from lockstep.core.messages import Batch, Columns, NewMessage, NewSchedule
from lockstep.core.policy import queue_options
from lockstep.core.records import Ack, DeadLetterFilter, Popped, PopRequest
from lockstep.core.streams import NewStreamQuery, StreamCycle
from lockstep.engine.engine import Engine
from lockstep.engine.maintenance.eviction import Eviction
from lockstep.engine.push_within import push_within
from lockstep.engine.waiting import fair_shares
from lockstep.errors import InvalidName, InvalidOption, InvalidRequest
from lockstep.storage.base import Store
from lockstep.storage.postgres.store import PostgresStore
from support.builders import payloads
from support.clock import SetClock
from support.until import until

NEVER = {"pop_check_seconds_min": 3600.0, "pop_check_seconds_max": 3600.0}


def engine_on(store: Store, **settings: Any) -> Engine:
    return Engine(store, load(settings, environ={}))


# --- Balance ------------------------------------------------------------------------------------------------


async def test_push_without_a_partition_goes_to_a_numbered_one(store: Store) -> None:
    engine = engine_on(store)
    await engine.configure("q", queue_options(partitions=4))
    places = Counter([(await engine.push([Batch.of("q", [b"1"])]))[0].partition for _ in range(40)])
    assert set(places) == {"0", "1", "2", "3"}
    assert max(places.values()) - min(places.values()) <= 6  # of two choices the emptier one


async def test_cron_without_a_partition_gets_a_numbered_one_and_stays_there(store: Store) -> None:
    async with engine_on(store) as engine:
        await engine.configure("q", queue_options(partitions=3))
        cron = await engine.set_cron(NewCron(name="c", queue="q", expression="0 0 1 1 *", payload=b"1"))
        assert cron.partition in {"0", "1", "2"}
        named = await engine.set_cron(
            NewCron(name="d", queue="q", expression="0 0 1 1 *", payload=b"1", partition="mine")
        )
        assert named.partition == "mine"
        plain = await engine.set_cron(NewCron(name="e", queue="r", expression="0 0 1 1 *", payload=b"1"))
        assert plain.partition == "Default"


async def test_push_avoids_the_partition_that_is_full(store: Store) -> None:
    engine = engine_on(store)
    await engine.configure("q", queue_options(partitions=3))
    await engine.push([Batch.of("q", payloads(100), partition="1")])
    places = {(await engine.push([Batch.of("q", [b"1"])]))[0].partition for _ in range(30)}
    assert places == {"0", "2"}


async def test_named_partition_and_other_queues_are_left_alone(store: Store) -> None:
    engine = engine_on(store)
    await engine.configure("q", queue_options(partitions=3))
    assert (await engine.push([Batch.of("q", [b"1"], partition="mine")]))[0].partition == "mine"
    assert (await engine.push([Batch.of("other", [b"1"])]))[0].partition == "Default"


async def test_messages_of_one_push_stay_together_and_in_order(store: Store) -> None:
    engine = engine_on(store)
    await engine.configure("q", queue_options(partitions=5))
    receipts = await engine.push([NewMessage(queue="q", payload=payload) for payload in payloads(10)])
    assert len({receipt.partition for receipt in receipts}) == 1
    assert [receipt.seq for receipt in receipts] == list(range(1, 11))


async def test_transaction_spreads_too(store: Store) -> None:
    engine = engine_on(store)
    await engine.configure("q", queue_options(partitions=2))
    result = await engine.transaction([], [Batch.of("q", [b"1"])])
    assert result.pushed[0].partition in {"0", "1"}


async def test_cycle_of_a_stream_spreads_too(store: Store) -> None:
    async with engine_on(store) as engine:
        await engine.configure("sink", queue_options(partitions=2))
        await engine.push([Batch.of("in", [b"1"])])
        (popped,) = await engine.pop([PopRequest(queue="in")])
        query = await engine.register_stream_query(
            NewStreamQuery(name="s", source_queue="in", sink_queue="sink", config_hash="1")
        )
        cycle = StreamCycle(query_id=query.id, partition_id=popped.partition_ids[0])
        result = await engine.stream_cycle(cycle, [Batch.of("sink", [b"1"])])
        assert result.pushed[0].partition in {"0", "1"}


async def test_new_number_of_partitions_holds_at_once(store: Store) -> None:
    engine = engine_on(store, balance_interval_seconds=3600)
    await engine.configure("q", queue_options(partitions=2))
    await engine.push([Batch.of("q", [b"1"])])
    for partitions, expected in ((1, {"0"}), (5, {"1", "2", "3", "4"})):  # by then the first one is the fullest
        await engine.update_queue("q", {"partitions": partitions})
        places = {(await engine.push([Batch.of("q", [b"1"])]))[0].partition for _ in range(60)}
        assert places == expected
    await engine.update_queue("q", {"partitions": 0})
    assert (await engine.push([Batch.of("q", [b"1"])]))[0].partition == "Default"


async def test_new_number_of_partitions_is_heard_elsewhere(database_dsn: str) -> None:
    config = load({"balance_interval_seconds": 3600}, environ={})
    store = PostgresStore(database_dsn, config=config)
    async with Engine(store, config) as here, Engine(PostgresStore(database_dsn), load(environ={})) as elsewhere:
        await here.listen()
        await here.configure("q", queue_options(partitions=2))
        assert (await here.push([Batch.of("q", [b"1"])]))[0].partition in {"0", "1"}
        await elsewhere.update_queue("q", {"partitions": 1})
        await until(lambda: store.context.names.get("q") is None)
        assert {(await here.push([Batch.of("q", [b"1"])]))[0].partition for _ in range(20)} == {"0"}


async def test_push_in_the_transaction_of_the_caller_spreads_too(database_dsn: str) -> None:
    async with engine_on(PostgresStore(database_dsn)) as engine:
        await engine.configure("q", queue_options(partitions=3))
        await engine.push([Batch.of("q", payloads(50), partition="1")])
        with psycopg.connect(database_dsn) as connection:
            receipts = [push_within(connection, [NewMessage(queue="q", payload=b"1")])[0] for _ in range(20)]
            named = push_within(connection, [Batch.of("q", [b"1"], partition="mine"), Batch.of("r", [b"1"])])
            for _ in range(20):
                connection.execute("select lockstep.push('q', 'Default', '1')")
        assert {receipt.partition for receipt in receipts} == {"0", "2"}
        assert [receipt.partition for receipt in named] == ["mine", "Default"]
        stored = {stats.partition: stats.total for stats in await engine.stats("q")}
        assert stored["Default"] == 0
        assert sorted([stored["0"], stored["2"]])[0] >= 15


async def test_repeated_push_to_a_balanced_queue_is_a_duplicate(store: Store) -> None:
    engine = engine_on(store)
    await engine.configure("q", queue_options(partitions=64))
    for number in range(20):
        batch = Batch.of("q", payloads(2), transaction_ids=[None, f"order-{number}"])
        first, again = [(await engine.push([batch]))[1] for _ in range(2)]
        assert (again.status, again.partition, again.message_id) == ("duplicate", first.partition, first.message_id)
    unused = Batch.of("q", payloads(1), transaction_ids=[None])
    assert len({(await engine.push([unused]))[0].partition for _ in range(40)}) > 1


async def test_repeated_push_to_a_balanced_queue_is_a_duplicate_wherever_it_comes_from(database_dsn: str) -> None:
    async with engine_on(PostgresStore(database_dsn)) as engine:
        await engine.configure("q", queue_options(partitions=64))
        for number in range(20):
            name = f"order-{number}-ü"
            first = (await engine.push([Batch.of("q", [b"1"], transaction_ids=[name])]))[0]
            with psycopg.connect(database_dsn) as connection:
                [again] = push_within(connection, [NewMessage(queue="q", payload=b"1", transaction_id=name)])
                row = connection.execute("select lockstep.push('q', 'Default', '1', %s)", [name]).fetchone()
            assert (again.status, again.partition) == ("duplicate", first.partition)
            assert row is not None
            assert str(row[0]) == first.message_id


async def test_balance_is_known_again_after_an_update(store: Store) -> None:
    engine = engine_on(store, balance_interval_seconds=0.01)
    assert (await engine.push([Batch.of("q", [b"1"])]))[0].partition == "Default"
    await engine.update_queue("q", {"partitions": 1})
    assert (await engine.push([Batch.of("q", [b"1"])]))[0].partition == "0"


# --- Fair shares --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "there", "shares"),
    [
        ([20, 6, 1], 23, [16, 6, 1]),
        ([20, 6, 1], 5, [2, 2, 1]),
        ([20, 6, 1], 100, [20, 6, 1]),
        ([5, 5], 0, [0, 0]),
        ([3, 3, 3], 2, [1, 1, 0]),
        ([], 7, []),
    ],
)
def test_fair_shares(wanted: list[int], there: int, shares: list[int]) -> None:
    assert sorted(fair_shares(wanted, there)) == sorted(shares)
    assert sum(fair_shares(wanted, there)) == min(sum(wanted), there)


def lying_still(engine: Engine, *, shared: bool = True) -> int:
    """How many polls, of shared groups or of all, have looked once, and wait; 0 while a check is to come, which would
    wake one of them, too."""
    queues = engine._waiting._queues.values()
    if engine._waiting._checking is not None or any([queue.check_at < time.monotonic() + 60 for queue in queues]):
        return 0
    return sum([poll.looked for queue in queues if queue.shared or not shared for poll in queue.polls])


@pytest.mark.parametrize("by_queue", [True, False])
async def test_waiting_pops_of_a_shared_group_each_get_some(store: Store, by_queue: bool) -> None:
    async with engine_on(store, **NEVER) as engine:
        await engine.configure("q", queue_options(group_mode="shared" if by_queue else "ordered"))
        mode = None if by_queue else "shared"
        polls = [
            asyncio.create_task(engine.wait_pop(PopRequest(queue="q", group="g", batch=batch, mode=mode), 60.0))
            for batch in (20, 6, 1)
        ]
        await until(lambda: lying_still(engine) == 3)
        await engine.push([Batch.of("q", payloads(23))])
        popped: list[Popped] = await asyncio.gather(*polls)
        assert [len(one) for one in popped] == [16, 6, 1]
        seqs = sorted(message.seq for one in popped for message in one.messages())
        assert seqs == list(range(1, 24))
        assert lying_still(engine) == 0


async def shared_polls(engine: Engine, *batches: int, **request: Any) -> list[asyncio.Task[Popped]]:
    """Polls of one shared group that lie still."""
    where = request or {"queue": "q"}
    requests = [PopRequest(**where, group="g", batch=batch, mode="shared") for batch in batches]
    polls = [asyncio.create_task(engine.wait_pop(request, 60.0)) for request in requests]
    await until(lambda: lying_still(engine) == len(batches))
    return polls


@pytest.mark.parametrize("where", [{"queue": "q", "partition": "p"}, {"namespace": "q"}, {"queue": "q"}])
@pytest.mark.parametrize("told", [True, False])
async def test_waiting_pops_share_whatever_they_wait_for(store: Store, where: dict[str, str], told: bool) -> None:
    """Told of a push, with how much it is; or only that something may be there."""
    async with engine_on(store, **NEVER) as engine:
        await engine.push([Batch.of("q", payloads(1), partition="p")])
        await engine.pop([PopRequest(queue="q", group="g", mode="shared", auto_ack=True)])
        polls = await shared_polls(engine, 20, 6, 1, **where)
        await (engine if told else store).push([Batch.of("q", payloads(23), partition="p")])
        engine._waiting.stirred("q")
        assert [len(one) for one in await asyncio.gather(*polls)] == [16, 6, 1]


async def test_waiting_pops_share_what_is_promoted(store: Store, clock: SetClock) -> None:
    async with engine_on(store, **NEVER) as engine:
        await engine.configure("q")
        polls = await shared_polls(engine, 20, 6, 1)
        await engine.push([Batch("q", "p", Columns(payloads(23)), NewSchedule(delay_seconds=60.0))])
        clock.advance(60)
        await engine._promotion.run_once()
        assert [len(one) for one in await asyncio.gather(*polls)] == [16, 6, 1]


async def test_waiting_pops_share_what_another_process_pushed(database_dsn: str) -> None:
    here, elsewhere = PostgresStore(database_dsn), PostgresStore(database_dsn)
    async with engine_on(here, **NEVER) as engine, engine_on(elsewhere, **NEVER) as other:
        await engine.configure("q")
        polls = await shared_polls(engine, 20, 6, 1)
        await other.push([Batch.of("q", payloads(23))])
        assert [len(one) for one in await asyncio.gather(*polls)] == [16, 6, 1]


async def in_wait(engine: Engine, count: int, **request: Any) -> list[asyncio.Task[Popped]]:
    """Polls that have looked once, whatever their group is."""
    polls = [
        asyncio.create_task(engine.wait_pop(PopRequest(group="g", batch=10, **request), 60.0)) for _ in range(count)
    ]
    await until(lambda: lying_still(engine, shared=False) == count)
    return polls


@pytest.mark.parametrize("partition", [None, "p"])
async def test_waiting_pops_share_what_creates_their_queue(store: Store, partition: str | None) -> None:
    async with engine_on(store, **NEVER) as engine:
        polls = await in_wait(engine, 5, queue="q", partition=partition, mode="shared")
        await engine.push([Batch.of("q", payloads(10), partition="p")])
        assert [len(one) for one in await asyncio.gather(*polls)] == [2] * 5


async def test_waiting_pops_share_what_creates_their_partition(store: Store) -> None:
    async with engine_on(store, **NEVER) as engine:
        await engine.configure("q", queue_options(group_mode="shared"))
        polls = await in_wait(engine, 5, queue="q", partition="p")
        await engine.push([Batch.of("q", payloads(10), partition="p")])
        assert [len(one) for one in await asyncio.gather(*polls)] == [2] * 5


async def test_waiting_pops_share_what_comes_to_a_queue_that_was_made_shared_meanwhile(store: Store) -> None:
    async with engine_on(store, **NEVER) as engine:
        polls = await in_wait(engine, 5, queue="q")
        await engine.configure("q", queue_options(group_mode="shared"))
        await until(lambda: lying_still(engine) == 5)
        await engine.push([Batch.of("q", payloads(10))])
        assert [len(one) for one in await asyncio.gather(*polls)] == [2] * 5


async def test_waiting_pops_share_what_creates_their_queue_elsewhere(database_dsn: str) -> None:
    async with (
        engine_on(PostgresStore(database_dsn), **NEVER) as engine,
        engine_on(PostgresStore(database_dsn), **NEVER) as other,
    ):
        await engine.listen()
        await other.listen()
        polls = await in_wait(engine, 5, queue="q", mode="shared")
        await other.push([Batch.of("q", payloads(10))])
        assert [len(one) for one in await asyncio.gather(*polls)] == [2] * 5


# --- Dead queues and who waits for them -----------------------------------------------------------------------


async def dying(engine: Engine, count: int) -> Popped:
    """Messages of a queue with a dead queue, leased."""
    await engine.configure("q")
    await engine.configure("work", queue_options(dead_queue="q", retry_limit=0, lease_seconds=10))
    await engine.push([Batch.of("work", payloads(count))])
    [popped] = await engine.pop([PopRequest(queue="work", batch=count)])
    return popped


async def test_pop_that_waits_on_a_dead_queue_is_woken(store: Store) -> None:
    async with engine_on(store, **NEVER) as engine:
        popped = await dying(engine, 1)
        poll = asyncio.create_task(engine.wait_pop(PopRequest(queue="q"), 60.0))
        await until(lambda: engine.counts.calls["pop"].requests == 2)
        await engine.ack([Ack(lease_id=popped.lease_id, status="dlq")])
        assert [message.json()["n"] for message in (await poll).messages()] == [1]


async def test_pops_that_wait_on_a_dead_queue_share_what_a_transaction_buries(store: Store) -> None:
    async with engine_on(store, **NEVER) as engine:
        popped = await dying(engine, 3)
        polls = await shared_polls(engine, 5, 5)
        acks = [Ack(lease_id=popped.lease_id, seq=message.seq, status="dlq") for message in popped.messages()]
        await engine.transaction(acks, [])
        assert sorted(len(one) for one in await asyncio.gather(*polls)) == [1, 2]


async def test_pop_elsewhere_that_waits_on_a_dead_queue_is_woken(database_dsn: str) -> None:
    here, elsewhere = PostgresStore(database_dsn), PostgresStore(database_dsn)
    async with engine_on(here, **NEVER) as engine, engine_on(elsewhere, **NEVER) as other:
        await engine.configure("q")
        [poll] = await shared_polls(engine, 1)
        popped = await dying(other, 1)
        await other.ack([Ack(lease_id=popped.lease_id, status="dlq")])
        assert len(await poll) == 1


async def test_pops_that_wait_are_woken_by_a_redrive(store: Store) -> None:
    async with engine_on(store, **NEVER) as engine:
        popped = await dying(engine, 2)
        acks = [Ack(lease_id=popped.lease_id, seq=message.seq, status="dlq") for message in popped.messages()]
        await engine.transaction(acks, [])
        for redrive in (engine.redrive(DeadLetterFilter(), limit=1), engine.redrive_queue("q")):
            asked = engine.counts.calls["pop"].requests
            poll = asyncio.create_task(engine.wait_pop(PopRequest(queue="work", auto_ack=True), 60.0))
            await until(lambda asked=asked: engine.counts.calls["pop"].requests == asked + 1)  # type: ignore[misc]
            assert await redrive == 1
            assert len(await poll) == 1


# --- Expiry of single messages ------------------------------------------------------------------------------


async def test_expire_seconds_count_from_now(store: Store) -> None:
    engine = engine_on(store)
    before = datetime.now(UTC)
    await engine.push([NewMessage(queue="q", payload=b"1", expire_seconds=3600)])
    [popped] = await engine.pop([PopRequest(queue="q")])
    [message] = popped.messages()
    assert message.expires_at is not None
    assert timedelta(0) <= message.expires_at - before - timedelta(hours=1) < timedelta(minutes=1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"expire_seconds": -1},
        {"expire_seconds": "1"},
        {"expires_at": datetime(2030, 1, 1)},  # noqa: DTZ001
        {"expires_at": "2030-01-01"},
        {"expires_at": datetime(2030, 1, 1, tzinfo=UTC), "expire_seconds": 5},
    ],
)
async def test_expiry_that_is_none_is_refused(guarded: Engine, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        await guarded.push([NewMessage(queue="q", payload=b"1", **wrong)])


async def test_column_of_expiries_is_checked(guarded: Engine) -> None:
    with pytest.raises(InvalidRequest):
        await guarded.push([Batch("q", "p", Columns([b"1"], expires_at=["soon"]))])  # type: ignore[list-item]


async def test_eviction_passes_what_expired(store: Store, clock: SetClock) -> None:
    engine = engine_on(store)
    await engine.configure("q", queue_options(expire_seconds=60, lease_seconds=10))
    await engine.pop([PopRequest(queue="q")])
    await engine.push([Batch.of("q", payloads(3), partition="p")])
    clock.advance(60)
    report = await Eviction(store, load(environ={})).run_once()
    assert report.effect == {"eviction": 0, "expiry": 3}
    assert not report.more


# --- What is refused ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"expire_seconds": 600}, {"partitions": 2}, {"group_mode": "shared"}])
async def test_name_of_a_work_queue_has_no_whitespace(store: Store, options: dict[str, Any]) -> None:
    engine = engine_on(store)
    for name in ("a b", "a\u00a0b", " a"):
        with pytest.raises(InvalidName):
            await engine.configure(name, queue_options(**options))
        await engine.configure(name)  # as it always was
        with pytest.raises(InvalidName):
            await engine.update_queue(name, options)
        for shared in (engine.pop([PopRequest(queue=name, mode="shared")]), engine.subscribe(name, "g", mode="shared")):
            with pytest.raises(InvalidName):
                await shared
    allowed = engine_on(store, names_allow_whitespace=True)
    assert (await allowed.configure("a b", queue_options(**options))).name == "a b"


@pytest.mark.parametrize(
    "changes",
    [
        {"nonsense": 1},
        {"lease_seconds": 0},
        {"retry_limit": 65_537},
        {"retry_limit": -2},
        {"partitions": 1001},
        {"on_expired": "explode"},
        {"dead_queue": ""},
        {"dead_queue": 5},
        "lease_seconds",
    ],
)
async def test_bad_changes_are_refused(guarded: Engine, changes: Any) -> None:
    with pytest.raises(InvalidOption):
        await guarded.update_queue("q", changes)


def test_lease_must_not_outlast_expiry() -> None:
    with pytest.raises(InvalidOption):
        queue_options(lease_seconds=60, expire_seconds=59)
    assert queue_options(lease_seconds=60, expire_seconds=60).expire_seconds == 60

"""Operations and pushes that meet: who is queued, who applies, and processors that are killed or hang."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest
import pytest_asyncio

from lockstep.core.applying import ApplyLimits
from lockstep.core.messages import Batch, NewSchedule
from lockstep.core.operations import NewOperation
from lockstep.core.sealing import Keyring
from lockstep.errors import EncryptionUnavailable, LockstepError, OperationPending, Overloaded
from lockstep.storage.postgres.encryption import Encryption
from lockstep.storage.postgres.store import PostgresStore
from support.builders import batch, configure, numbers, pop_all, push_n
from support.sessions import Actor, Stage

LIMITS = ApplyLimits(retry_seconds_min=0.001, retry_seconds_max=0.001)


# Sums that are not those of the bundles.
_MISCOUNTED = """
select * from (
    select s.kind, sum(s.operations), sum(s.messages), sum(s.bytes), sum(s.failed)
    from lockstep.operation_sum s group by s.kind
) s except select * from (
    select o.kind, coalesce(sum(o.request_count) filter (where o.pending), 0),
           coalesce(sum(o.message_count) filter (where o.pending), 0),
           coalesce(sum(o.bytes) filter (where o.pending), 0), sum(o.failed_count)
    from lockstep.operation o group by o.kind
) o
"""


@pytest_asyncio.fixture(autouse=True)
async def sums(stage: Stage) -> AsyncIterator[None]:
    """Whatever happened, the sums are those of the bundles."""
    yield
    assert await stage.observer.fetch(_MISCOUNTED) == []


async def queue(actor: Actor, *numbers: int, partition: str = "p") -> list[str]:
    pushes = [[batch("q", partition=partition, start=number)] for number in numbers]
    return await actor.store.queue_operations([NewOperation(push) for push in pushes])


async def apply(actor: Actor, **limits: Any) -> int:
    given = {name: getattr(LIMITS, name) for name in LIMITS.__struct_fields__} | limits
    return (await actor.store.apply_operations("push", by="test", limits=ApplyLimits(**given))).operations


async def test_push_waits_for_the_processor_and_follows_what_it_applies(stage: Stage) -> None:
    a, b = await stage.actors(2)
    await push_n(b.store, "q", partition="p", start=1)
    await queue(a, 2)
    await a.begin()
    assert await apply(a) == 1
    waiting = await stage.blocked(push_n(b.store, "q", partition="p", start=3), b, by=a)
    await a.commit()
    await waiting
    assert numbers(await pop_all(b.store, "q")) == [1, 2, 3]


async def test_push_is_refused_if_the_processor_rolled_back(stage: Stage) -> None:
    a, b = await stage.actors(2)
    await push_n(b.store, "q", partition="p", start=1)
    await queue(a, 2)
    await a.begin()
    assert await apply(a) == 1
    waiting = await stage.blocked(push_n(b.store, "q", partition="p", start=3), b, by=a)
    await a.rollback()
    with pytest.raises(OperationPending):
        await waiting
    assert await apply(b) == 1


async def test_operations_that_a_processor_holds_are_left_to_it_with_all_behind_them(stage: Stage) -> None:
    a, b = await stage.actors(2)
    await queue(a, 1)
    await queue(a, 2)
    await queue(a, 3, partition="other")
    await a.begin()
    assert await apply(a, messages_max=1) == 1
    assert await apply(b) == 1, "only what is for another partition"
    await a.commit()
    assert await apply(b) == 1
    assert numbers(await pop_all(b.store, "q", partition="p")) == [1, 2]


async def test_bundle_that_commits_late_does_not_hold_up_those_that_others_were_told_of(stage: Stage) -> None:
    a, b = await stage.actors(2)
    await push_n(a.store, "q", partition="p", start=0)
    await push_n(b.store, "q", partition="p", start=0)
    await a.begin()
    await queue(a, 1)
    await queue(b, 2)
    assert await apply(b) == 1
    await a.commit()
    assert await apply(b) == 1
    assert numbers(await pop_all(b.store, "q")) == [0, 0, 2, 1]


async def test_push_from_sql_and_in_a_foreign_transaction_is_refused_while_an_operation_waits(
    stage: Stage, dsn: str
) -> None:
    import psycopg

    from lockstep import push_within

    actor = await stage.actor()
    await queue(actor, 1)
    with psycopg.connect(dsn) as connection:
        with pytest.raises(psycopg.errors.Error) as refused:
            connection.execute("select lockstep.push('q', 'p', '1'::jsonb)")
        assert refused.value.sqlstate == "LS008"
        connection.rollback()
        with pytest.raises(Overloaded):
            push_within(connection, [Batch.of("q", [b"1"], partition="p")])
        connection.rollback()
    await apply(actor)


async def test_killed_processor_has_applied_nothing_and_another_applies_it_once(stage: Stage) -> None:
    victim, other = await stage.actors(2)
    await queue(victim, 1, 2)
    await victim.begin()
    assert await apply(victim) == 2
    assert await apply(other) == 0
    await other.sql("select pg_terminate_backend($1)", victim.pid)
    while not await apply(other):  # noqa: ASYNC110 - its locks end a moment later
        await asyncio.sleep(0.001)
    assert numbers(await pop_all(other.store, "q")) == [1, 2]


async def test_processor_that_fails_between_any_two_calls_has_applied_nothing(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it has just made a partition, whose id it must forget, and where one bundle is tried alone."""
    a, b = await stage.actors(2)
    await configure(a.store, "full", max_size=1)
    await push_n(a.store, "full")
    on, left, failed = a.store.database.on, 0, 0

    async def failing(*call: Any) -> Any:
        nonlocal left, failed
        left -= 1
        if left < 0:
            failed += 1
            raise ConnectionResetError("lost")
        return await on(*call)

    for calls in range(40):
        await a.store.queue_operations([NewOperation([batch("q", partition=f"p{calls}", start=1), batch("full")])])
        await queue(a, 2, partition=f"p{calls}")
        await b.store.delete_queue("q")
        left, before = calls, failed
        monkeypatch.setattr(a.store.database, "on", failing)
        with suppress(LockstepError, ConnectionResetError):
            await apply(a, retries_max=0)
        monkeypatch.undo()
        await apply(b, retries_max=0)
        assert (await b.store.operation_counts()).depth("push").operations == 0
        assert numbers(await pop_all(b.store, "q", partition=f"p{calls}")) == [2], f"after {calls} calls"
        if failed == before:
            break
    assert failed > 5


async def test_processor_that_hangs_loses_what_it_has_claimed(stage: Stage) -> None:
    hanging, other = await stage.actors(2)
    await queue(hanging, 1)
    await hanging.begin()
    assert await apply(hanging, timeout_seconds=7) == 1
    assert await hanging.sql("show idle_in_transaction_session_timeout") == "7s"
    await hanging.sql("select set_config('idle_in_transaction_session_timeout', '1ms', true)")
    while not await apply(other):  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    assert numbers(await pop_all(other.store, "q")) == [1]


async def test_partition_that_somebody_holds_holds_up_no_other(stage: Stage) -> None:
    a, holder = await stage.actors(2)
    await push_n(a.store, "q", partition="p", start=0)
    ids = await queue(a, 1)
    await queue(a, 2, partition="other")
    await holder.begin()
    await holder.sql("select 1 from lockstep.partition where name = 'p' for no key update")
    assert await apply(a, lock_seconds=0.001) == 1
    waiting = await a.store.operation(ids[0])
    assert (waiting.status, waiting.retries) == ("pending", 0), "it is no fault of its own"
    await holder.commit()
    while not await apply(a):  # noqa: ASYNC110 - it is due a moment later
        await asyncio.sleep(0.001)
    assert numbers(await pop_all(a.store, "q", partition="p")) == [0, 1]


async def test_operation_that_waits_for_a_held_partition_holds_up_its_others(stage: Stage) -> None:
    a, holder = await stage.actors(2)
    await push_n(a.store, "q", partition="p", start=0)
    await queue(a, 1)
    await a.store.queue_operations([NewOperation([batch("q", partition=name, start=2) for name in ("p", "other")])])
    await queue(a, 3, partition="other")
    await holder.begin()
    await holder.sql("select 1 from lockstep.partition where name = 'p' for no key update")
    assert await apply(a, lock_seconds=0.001) == 0
    await holder.commit()
    while (await a.store.operation_counts()).depth("push").operations:
        await apply(a)
    assert numbers(await pop_all(a.store, "q", partition="p")) == [0, 1, 2]
    assert numbers(await pop_all(a.store, "q", partition="other")) == [2, 3]


async def test_operations_of_an_encrypted_queue_are_sealed_and_wait_for_a_server_with_the_key(stage: Stage) -> None:
    knowing, other = await stage.actors(2)
    await configure(knowing.store, "secret", encryption=True)
    pushed = Batch.of("secret", [b'{"n":1,"text":"hidden"}'])
    with pytest.raises(EncryptionUnavailable):
        await other.store.queue_operations([NewOperation([pushed])])
    knowing.store.context.encryption = Encryption(Keyring((b"k" * 32,)))
    [operation_id] = await knowing.store.queue_operations([NewOperation([pushed])])
    assert b"hidden" not in await knowing.sql("select requests from lockstep.operation")
    await knowing.store.queue_operations([NewOperation([Batch.of("secret", [b'{"n":2}'])])])
    assert await apply(other) == 0
    assert (await other.store.operation(operation_id)).retries == 1
    while (await knowing.store.operation_counts()).depth("push").operations:
        await apply(knowing)
    assert numbers(await pop_all(knowing.store, "secret")) == [1, 2]


@pytest.mark.parametrize("known", [True, False])
async def test_operation_for_a_queue_that_was_deleted_elsewhere_creates_it_anew(stage: Stage, known: bool) -> None:
    busy, other = await stage.actors(2)
    await push_n(busy.store, "q", partition="p", start=1)
    await push_n(busy.store, "kept", partition="p", start=1)
    await other.store.delete_queue("q")
    pushed = [batch("q", partition="p" if known else "new", start=2), batch("kept", partition="p", start=2)]
    [operation_id] = await busy.store.queue_operations([NewOperation(pushed)])
    await apply(busy)
    assert (await busy.store.operation(operation_id)).status == "done"
    assert numbers(await pop_all(busy.store, "q")) == [2]
    assert numbers(await pop_all(busy.store, "kept")) == [1, 2]


async def test_operation_may_have_more_partitions_than_are_remembered(stage: Stage) -> None:
    actor = await stage.actor()
    actor.store.context.names.partitions_max = 1
    pushed = [batch(queue, partition=partition) for queue in "ab" for partition in "xy"]
    [operation_id] = await actor.store.queue_operations([NewOperation(pushed)])
    await apply(actor)
    assert (await actor.store.operation(operation_id)).status == "done"


async def test_scheduled_operation_of_an_encrypted_queue_that_is_not_known_is_sealed(stage: Stage) -> None:
    knowing, other = await stage.actors(2)
    await configure(other.store, "secret", encryption=True)
    knowing.store.context.encryption = Encryption(Keyring((b"k" * 32,)))
    later = Batch("secret", "p", batch("secret").columns, NewSchedule(delay_seconds=60))
    later.columns.payloads[0] = b'{"text":"hidden"}'
    await knowing.store.queue_operations([NewOperation([later])])
    requests = await knowing.sql("select requests from lockstep.operation")
    assert b"hidden" not in requests
    assert await apply(knowing) == 1


async def test_many_processors_and_producers_keep_every_order(dsn: str) -> None:
    """Producers that queue and push in turn, over common partitions, while four processors apply."""
    stores = [PostgresStore(dsn) for _ in range(4)]
    for store in stores:
        await store.open()
    done = asyncio.Event()

    async def process(store: PostgresStore) -> None:
        while not done.is_set():
            if not (await store.apply_operations("push", by="test", limits=LIMITS)).operations:
                await asyncio.sleep(0.001)

    async def produce(name: str) -> None:
        chance = random.Random(name)
        for number in range(1, 41):
            store = chance.choice(stores)
            pushed = [batch("q", partition=f"{name}-{part}", start=number) for part in range(2)]
            pushed.append(batch("q", partition="common", start=number))
            try:
                if chance.random() < 0.4:
                    await store.queue_operations([NewOperation(pushed)])
                else:
                    await store.push(pushed)
            except OperationPending:
                await store.queue_operations([NewOperation(pushed)])

    processors = [asyncio.create_task(process(store)) for store in stores]
    await asyncio.gather(*[produce(f"p{n}") for n in range(6)])
    while (await stores[0].operation_counts()).depth("push").operations:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    done.set()
    await asyncio.gather(*processors)
    found: dict[str, list[int]] = {}
    for message in await pop_all(stores[0], "q"):
        found.setdefault(message.partition, []).append(message.json()["n"])
    assert sorted(found.pop("common")) == sorted(list(range(1, 41)) * 6)
    assert found == {f"p{n}-{part}": list(range(1, 41)) for n in range(6) for part in range(2)}
    assert await stores[0].verify() == []
    for store in stores:
        await store.close()

"""Encrypted segments in the database: what is moved, exchanged, replayed or cut short is refused, and keys rotate."""

from __future__ import annotations

import asyncio
import os
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from lockstep.config import load
from lockstep.core import codec, layouts
from lockstep.core.applying import ApplyLimits
from lockstep.core.crons import NewCron
from lockstep.core.messages import Batch, NewSchedule
from lockstep.core.operations import NewOperation
from lockstep.core.policy import QueueOptions
from lockstep.core.records import Ack, EncryptionSlice
from lockstep.core.schedules import ScheduleFilter
from lockstep.core.sealing import key_id, key_id_of
from lockstep.errors import EncryptionUnavailable, InvalidOption, LockstepError, QueueNotFound, SealBroken
from lockstep.storage.postgres.store import PostgresStore
from support.builders import batch, configure, numbers, pop, push_n
from support.databases import Databases

OLD, NEW = bytes(range(32)), bytes(range(1, 33))
SECRET = b'{"secret":"%s"}' % (b"hidden words " * 200)
MakeStore = Callable[..., PostgresStore]


@pytest_asyncio.fixture
async def make_store(databases: Databases) -> AsyncIterator[MakeStore]:
    dsn = databases.emptied()
    made: list[PostgresStore] = []

    def make(*keys: bytes, **settings: Any) -> PostgresStore:
        given = {"encryption_key": ",".join(b64encode(key).decode() for key in keys)} if keys else {}
        made.append(PostgresStore(dsn, config=load(given | settings, environ={})))
        return made[-1]

    yield make
    for store in made:
        await store.close()


async def execute(store: PostgresStore, statement: str, *arguments: Any) -> list[Any]:
    async with store.database.connection() as connection:
        return await connection.fetch(statement, *arguments)  # type: ignore[no-any-return]


def waiting(queue: str) -> Batch:
    return Batch(queue, "Default", batch(queue).columns, NewSchedule(delay_seconds=60))


async def sealed_queues(store: PostgresStore, *queues: str) -> None:
    for queue in queues:
        await configure(store, queue, encryption=True)
        await push_n(store, queue, 3)


async def rotated(store: PostgresStore, *, limit: int = 2, count_only: bool = False) -> EncryptionSlice:
    """A whole walk, as one slice."""
    cursor, slices = None, []
    while not slices or cursor is not None:
        slices.append(await store.rotate_encryption(cursor=cursor, limit=limit, count_only=count_only))
        cursor = slices[-1].next_cursor
    found: dict[str, int] = {}
    for one in slices:
        for name, count in one.found.items():
            found[name] = found.get(name, 0) + count
    return EncryptionSlice(
        rotated=sum(one.rotated for one in slices),
        failed=sum(one.failed for one in slices),
        failures=[failure for one in slices for failure in one.failures],
        found=found,
        active_key=slices[-1].active_key,
    )


# --- Attacks by somebody who may write to the tables ---------------------------------------------------------------

# `one` and `two` are queues of one partition each, with messages of the same form: what can fit does.
ATTACKS: dict[str, str] = {
    "another queue's body": """
        update lockstep.segment s set body = o.body from lockstep.segment o
        where s.queue_id = (select id from lockstep.queue where name = 'one')
          and o.queue_id = (select id from lockstep.queue where name = 'two')""",
    "another queue's segment": """
        update lockstep.run r set segment_id = o.id from lockstep.segment o, lockstep.partition p
        where p.id = r.partition_id and p.queue_id = (select id from lockstep.queue where name = 'one')
          and o.queue_id = (select id from lockstep.queue where name = 'two')""",
    "another queue's segment, moved": """
        with gone as (
            delete from lockstep.segment where queue_id = (select id from lockstep.queue where name = 'one')
            returning *)
        update lockstep.segment s set id = g.id, queue_id = g.queue_id, partition_ids = g.partition_ids from gone g
        where s.queue_id = (select id from lockstep.queue where name = 'two')""",
    "a body of the same queue, replayed": """
        update lockstep.segment s set body = o.body from lockstep.segment o
        where s.queue_id = o.queue_id and s.id < o.id""",
    "a copy of a segment, replayed": """
        update lockstep.segment s set uuid = gen_random_uuid()
        where s.queue_id = (select id from lockstep.queue where name = 'one')""",
    "cut short": "update lockstep.segment set body = substr(body, 1, length(body) - 1)",
    "cut to nothing": "update lockstep.segment set body = ''",
    "another key's id": "update lockstep.segment set body = overlay(body placing '\\x0102030405060708' from 2)",
    "another version": "update lockstep.segment set body = overlay(body placing '\\x02' from 1)",
    "the old form": "update lockstep.segment set codec = 3",
    "said to be plain": "update lockstep.segment set codec = 1",
    "plain": "update lockstep.segment set codec = 0, body = null, payloads = array['1', '2', '3']::bytea[]",
    "other counts": "update lockstep.segment set counts = array[2, 1], partition_ids = partition_ids || partition_ids",
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=list(ATTACKS))
async def test_attack_on_segments_is_refused(make_store: MakeStore, attack: str) -> None:
    store = make_store(OLD)
    await sealed_queues(store, "one", "two")
    await push_n(store, "one", 3, start=4)
    await execute(store, attack)
    reader = make_store(OLD)
    with pytest.raises((SealBroken, EncryptionUnavailable)) as caught:
        await pop(reader, "one", batch=9)
    assert caught.value.status == 500
    assert await reader.leases() == []


async def test_old_form_in_place_of_the_new_is_refused(make_store: MakeStore) -> None:
    """Somebody kept a body of the old form, which is bound to nothing."""
    store = make_store(OLD)
    await sealed_queues(store, "one")
    nonce = os.urandom(12)
    body = nonce + AESGCM(OLD).encrypt(nonce, layouts.pack(codec.encode(batch("q", 3).columns)), None)
    await execute(store, "update lockstep.segment set codec = 3, body = $1", body)
    with pytest.raises(SealBroken):
        await pop(make_store(OLD), "one", batch=9)


async def test_run_that_is_given_to_another_partition_is_refused(make_store: MakeStore) -> None:
    store = make_store(OLD)
    await configure(store, "q", encryption=True)
    await store.push([batch("q", 2, partition="a"), batch("q", 2, partition="b", start=3)])
    await execute(store, "update lockstep.run set ordinal = 2 - ordinal")
    with pytest.raises(SealBroken, match="another partition"):
        await pop(make_store(OLD), "q", partition="a")


async def test_broken_segment_keeps_nobody_from_other_partitions(make_store: MakeStore) -> None:
    store = make_store(OLD)
    await configure(store, "q", encryption=True)
    await store.push([batch("q", 1, partition="a")])
    await store.push([batch("q", 1, partition="b", start=2)])
    await execute(store, "update lockstep.segment set body = '' where id = (select min(id) from lockstep.segment)")
    reader = make_store(OLD)
    assert numbers(await pop(reader, "q", partition="b")) == [2]
    with pytest.raises(SealBroken):
        await pop(reader, "q", partition="a")
    assert len(await reader.leases()) == 1


async def test_waiting_messages_are_bound_and_plain_ones_are_refused(make_store: MakeStore) -> None:
    store = make_store(OLD)
    for queue in ("one", "two"):
        await configure(store, queue, encryption=True)
        await store.push([waiting(queue)])
    page = await store.schedules(ScheduleFilter(), limit=10)
    assert len(page.items) == 2
    swap = "update lockstep.scheduled s set body = o.body from lockstep.scheduled o where o.id <> s.id"
    await execute(store, swap)
    with pytest.raises(SealBroken):
        await store.schedules(ScheduleFilter(), limit=10)
    await execute(store, swap)
    await store.schedules(ScheduleFilter(), limit=10)
    plain = layouts.pack(codec.encode(batch("q", 1).columns))
    await execute(store, "update lockstep.scheduled set codec = 1, body = $1", plain)
    with pytest.raises(SealBroken):
        await store.schedules(ScheduleFilter(), limit=10)
    await execute(store, "update lockstep.scheduled set due_at = now() - interval '1 second'")
    promoted = await store.promote(limit=10)
    assert set(promoted.postponed) == {"one", "two"}
    assert (await store.queue("one")).messages == 0


async def test_recurring_messages_are_bound(make_store: MakeStore) -> None:
    store = make_store(OLD)
    await configure(store, "q", encryption=True)
    for name in ("one", "two"):
        await store.set_cron(NewCron(name=name, queue="q", expression="0 0 1 1 *", payload=SECRET))
    [row, _] = await execute(store, "select body, codec from lockstep.cron")
    assert row["codec"] == 7
    await execute(store, "update lockstep.cron s set body = o.body from lockstep.cron o where o.name <> s.name")
    with pytest.raises(SealBroken):
        await store.cron("one")


async def test_operations_are_bound_to_their_bundle(make_store: MakeStore) -> None:
    store = make_store(OLD)
    await configure(store, "q", encryption=True)
    for count in (1, 2):
        await store.queue_operations([NewOperation(batches=[Batch.of("q", [SECRET])])] * count)
    rows = await execute(store, "select codec, requests from lockstep.operation")
    assert [(row["codec"], b"hidden" in row["requests"]) for row in rows] == [(7, False)] * 2
    swap = "update lockstep.operation s set requests = o.requests from lockstep.operation o where o.serial <> s.serial"
    await execute(store, swap)
    await store.apply_operations("push", by="test", limits=ApplyLimits(retries_max=0))
    infos = (await store.operations(limit=9)).items
    assert [(one.status, one.error_code) for one in infos] == [("failed", "seal_broken")] * 3


# --- Keys -----------------------------------------------------------------------------------------------------------


async def test_old_key_is_still_read_and_new_one_is_used(make_store: MakeStore) -> None:
    await sealed_queues(make_store(OLD), "q")
    store = make_store(NEW, OLD)
    await push_n(store, "q", 1, start=4)
    bodies = await execute(store, "select body from lockstep.segment order by id")
    assert [key_id_of(row["body"]) for row in bodies] == [key_id(OLD), key_id(NEW)]
    assert numbers(await pop(store, "q", batch=9)) == [1, 2, 3, 4]
    only_new = make_store(NEW)
    await store.ack([Ack(lease_id=lease.lease_id, status="released") for lease in await store.leases()])
    with pytest.raises(EncryptionUnavailable, match=key_id(OLD)) as caught:
        await pop(only_new, "q", batch=9)
    assert (caught.value.status, caught.value.code) == (500, "encryption_unavailable")
    assert await store.leases() == []


async def test_rotation_encrypts_everything_with_the_active_key(make_store: MakeStore) -> None:
    before = make_store(OLD)
    await push_n(before, "q", 2, transaction_ids=[str(uuid4()), "text"], trace_ids=[None, str(uuid4())])
    await before.push([Batch.of("q", [SECRET])])
    await configure(before, "q", encryption=True)
    await sealed_queues(before, "other")
    await before.push([waiting("q")])
    await before.set_cron(NewCron(name="c", queue="q", expression="0 0 1 1 *", payload=b"1"))
    await push_n(before, "open", 1)
    counted = await rotated(make_store(NEW, OLD), count_only=True)
    assert counted.found == {"plain": 2, key_id(OLD): 3}
    store = make_store(NEW, OLD)
    done = await rotated(store)
    assert (done.rotated, done.failed, done.active_key) == (5, 0, key_id(NEW))
    assert (await rotated(store)).rotated == 0
    reader = make_store(NEW)
    assert (await rotated(reader, count_only=True)).found == {key_id(NEW): 5}
    messages = list((await pop(reader, "q", batch=9)).messages())
    assert messages[1].transaction_id == "text"
    assert messages[2].payload == SECRET
    assert numbers(await pop(reader, "other", batch=9)) == [1, 2, 3]
    assert (await reader.cron("c")).payload == b"1"
    assert await reader.verify() == []


async def test_plain_segments_are_accepted_until_they_are_rotated(make_store: MakeStore) -> None:
    store = make_store(OLD)
    await push_n(store, "q", 2)
    await configure(store, "q", encryption=True)
    assert numbers(await pop(make_store(OLD), "q", batch=9)) == [1, 2]
    [row] = await execute(store, "select sealed_after from lockstep.queue where name = 'q'")
    assert row[0] > 0
    await rotated(store)
    [row] = await execute(store, "select sealed_after from lockstep.queue where name = 'q'")
    assert row[0] == 0
    await execute(store, "update lockstep.segment set codec = 0, body = null, payloads = array['1', '2']::bytea[]")
    await store.ack([Ack(lease_id=lease.lease_id, status="released") for lease in await store.leases()])
    with pytest.raises(SealBroken):
        await pop(make_store(OLD), "q", batch=9)


async def test_rotation_reads_the_old_form_and_leaves_what_it_cannot_read(make_store: MakeStore) -> None:
    store = make_store(OLD)
    await sealed_queues(store, "one", "two")
    nonce = os.urandom(12)
    body = nonce + AESGCM(OLD).encrypt(nonce, layouts.pack(codec.encode(batch("q", 3).columns)), None)
    await execute(store, "update lockstep.segment set codec = 3, body = $1", body)
    await execute(store, "update lockstep.queue set sealed_after = 1::bigint << 62 where name = 'one'")
    assert (await rotated(store, count_only=True)).found == {"unbound": 2}
    done = await rotated(store)
    assert (done.rotated, done.failed) == (1, 1), done.failures
    assert "segment" in done.failures[0]
    assert numbers(await pop(make_store(OLD), "one", batch=9)) == [1, 2, 3]
    with pytest.raises(SealBroken):
        await pop(make_store(OLD), "two", batch=9)


async def test_rotation_needs_a_key_and_counting_does_not(make_store: MakeStore) -> None:
    await sealed_queues(make_store(OLD), "q")
    with pytest.raises(EncryptionUnavailable):
        await rotated(make_store())
    assert (await rotated(make_store(), count_only=True)).found == {key_id(OLD): 1}
    with pytest.raises(LockstepError, match="cursor"):
        await make_store().rotate_encryption(cursor="elsewhere:1", count_only=True)


# --- Switching it on and off ----------------------------------------------------------------------------------------


async def test_encryption_stays_on_until_it_is_switched_off_by_name(make_store: MakeStore) -> None:
    store = make_store(OLD)
    await configure(store, "q", encryption=True)
    assert (await store.configure("q", QueueOptions(lease_seconds=7))).options.encryption
    with pytest.raises(InvalidOption, match="encryption off"):
        await store.update_queue("q", {"encryption": False})
    await push_n(store, "q", 1)
    info = await store.stop_encryption("q")
    assert (info.options.encryption, info.options.lease_seconds) == (False, 7)
    await push_n(store, "q", 1, start=2)
    codecs = [row["codec"] for row in await execute(store, "select codec from lockstep.segment order by id")]
    assert codecs == [7, 0]
    assert numbers(await pop(make_store(OLD), "q", batch=9)) == [1, 2]
    with pytest.raises(QueueNotFound):
        await store.stop_encryption("missing")


async def test_plain_is_accepted_where_plain_is_allowed(make_store: MakeStore) -> None:
    store = make_store(encryption_allow_plain=True)
    await configure(store, "q", encryption=True)
    await push_n(store, "q", 2)
    with pytest.raises(SealBroken):
        await pop(make_store(OLD), "q", batch=9)
    assert numbers(await pop(make_store(encryption_allow_plain=True), "q", batch=9)) == [1, 2]


async def test_push_of_a_server_that_does_not_know_of_encryption_is_not_plain(make_store: MakeStore) -> None:
    store, other = make_store(OLD), make_store(OLD)
    await push_n(other, "q", 1)
    await configure(store, "q", encryption=True)
    await push_n(other, "q", 1, start=2)
    codecs = [row["codec"] for row in await execute(store, "select codec from lockstep.segment order by id")]
    assert codecs == [0, 7]


async def test_push_that_is_under_way_when_encryption_begins_stays_readable(make_store: MakeStore) -> None:
    """The mark is set when no push is under way: what was written before it is accepted, whatever its id."""
    store = make_store(OLD)
    await push_n(store, "q", 1)
    async with store.database.connection() as connection:
        transaction = connection.transaction()
        await transaction.start()
        [row] = await connection.fetch("select queue_id, id from lockstep.partition where name = 'Default'")
        await connection.fetch(
            "select * from lockstep.push_run($1, $2, 0::smallint, 1, null, $3, false, null, null, false)",
            *row,
            [b"2"],
        )
        switching = asyncio.create_task(configure(store, "q", encryption=True))
        await asyncio.sleep(0)
        await transaction.commit()
        await switching
    assert len((await pop(make_store(OLD), "q", batch=9)).payloads()) == 2

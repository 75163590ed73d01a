"""lockstep.push: messages from psql, from triggers, from any transaction that is not ours."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import psycopg
import pytest
import pytest_asyncio

from lockstep.config import Config
from lockstep.core.messages import Message
from lockstep.core.names import QUEUE_MODE
from lockstep.core.records import Subscription
from lockstep.storage.postgres.store import PostgresStore
from support.builders import configure, numbers, pop, pop_all, push_n, push_tagged

TRACE = "0190a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2b"
Session = asyncpg.Connection


@pytest_asyncio.fixture
async def store(dsn: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(dsn)
    yield store
    assert await store.verify() == []
    await store.close()


@pytest_asyncio.fixture
async def session(dsn: str) -> AsyncIterator[Session[Any]]:
    """A session of a user, with PostgreSQL's own settings."""
    connection = await asyncpg.connect(dsn)
    yield connection
    await connection.close()


async def push(session: Session[Any], number: int = 1, *, partition: str = "p", **fields: Any) -> UUID:
    names = "".join(f", {name} => ${index}" for index, name in enumerate(fields, 3))
    query = f"select lockstep.push('q', $1, jsonb_build_object('n', $2::int){names})"
    identity: UUID = await session.fetchval(query, partition, number, *fields.values())
    return identity


async def popped(store: PostgresStore, queue: str = "q", **request: Any) -> list[Message]:
    return list((await pop(store, queue, batch=1000, partitions=100, **request)).messages())


# --- What arrives ---------------------------------------------------------------------------------------------


async def test_message_is_delivered_with_all_that_was_given(session: Session[Any], store: PostgresStore) -> None:
    identity = await push(
        session,
        7,
        transaction_id="order-7",
        trace_id=TRACE,
        kind="order.created",
        reference="https://example.org/7",
        headers='{"tenant": "müller"}',
    )
    [message] = await popped(store)
    assert (message.id, message.queue, message.partition, message.seq) == (str(identity), "q", "p", 1)
    assert message.json() == {"n": 7}
    assert (message.transaction_id, message.trace_id) == ("order-7", TRACE)
    assert (message.kind, message.reference) == ("order.created", "https://example.org/7")
    assert (message.headers, message.encoding, message.producer_sub) == ({"tenant": "müller"}, None, None)


async def test_message_without_a_transaction_id_has_its_own_id_as_one(
    session: Session[Any], store: PostgresStore
) -> None:
    identity = await push(session)
    [message] = await popped(store)
    assert message.id == message.transaction_id == str(identity)
    assert identity.version == 7


@pytest.mark.parametrize(
    "payload", ["null", "0", '"text"', "[]", '{"a": {"b": [1, 2.5, null, true]}}', '{"ключ": "日本🙂"}']
)
async def test_payload_may_be_any_json(session: Session[Any], store: PostgresStore, payload: str) -> None:
    await session.fetchval("select lockstep.push('q', 'p', $1::jsonb)", payload)
    [message] = await popped(store)
    assert message.payload.decode() == payload


async def test_large_payload(session: Session[Any], store: PostgresStore) -> None:
    await session.fetchval("select lockstep.push('q', 'p', to_jsonb(repeat('x', 2000000)))")
    [message] = await popped(store)
    assert message.json() == "x" * 2_000_000


async def test_names_may_be_long_and_in_any_script(session: Session[Any], store: PostgresStore) -> None:
    queue, partition = "очередь "[:5] * 51, "区画🙂" * 85
    await session.fetchval("select lockstep.push($1, $2, '{}')", queue, partition)
    [message] = await popped(store, queue)
    assert (message.queue, message.partition) == (queue, partition)


def test_push_from_a_session_of_psycopg(dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        query = "select lockstep.push(queue => %s, partition => %s, payload => %s)"
        for number in (1, 2):
            connection.execute(query, ("q", "p", psycopg.types.json.Jsonb({"n": number})))
    with psycopg.connect(dsn) as connection:
        found = connection.execute("select seq, payload::jsonb -> 'n' from lockstep.messages order by seq").fetchall()
    assert found == [(1, 1), (2, 2)]


# --- In a transaction -------------------------------------------------------------------------------------------


async def test_message_is_visible_after_commit_only(session: Session[Any], store: PostgresStore) -> None:
    await store.push([])
    async with session.transaction():
        await push(session)
        assert not await popped(store)
        assert await store.queues() == []
    assert numbers(await popped(store)) == [1]


async def test_roll_back_leaves_nothing(session: Session[Any], store: PostgresStore) -> None:
    transaction = session.transaction()
    await transaction.start()
    await push(session, transaction_id="t", trace_id=TRACE)
    await transaction.rollback()
    assert await store.queues() == []
    assert await store.trace(TRACE) == []
    [receipt] = await push_tagged(store, "q", "t", partition="p")
    assert (receipt.status, receipt.seq) == ("queued", 1)


async def test_savepoint_that_is_rolled_back_leaves_no_gap(session: Session[Any], store: PostgresStore) -> None:
    async with session.transaction():
        await push(session, 1)
        inner = session.transaction()
        await inner.start()
        await push(session, 2, transaction_id="t")
        await inner.rollback()
        await push(session, 3, transaction_id="t")
    assert [(m.seq, m.json()["n"]) for m in await popped(store)] == [(1, 1), (2, 3)]


async def test_pushes_of_one_transaction_are_in_order_and_together(session: Session[Any], store: PostgresStore) -> None:
    async with session.transaction():
        for number in range(1, 6):
            await push(session, number, partition="ab"[number % 2])
    assert numbers(await popped(store, partition="a")) == [2, 4]
    assert numbers(await popped(store, partition="b")) == [1, 3, 5]


async def test_pushes_from_sql_and_from_a_store_are_in_commit_order(
    session: Session[Any], store: PostgresStore
) -> None:
    for number in range(1, 10, 2):
        await push(session, number)
        await push_n(store, "q", partition="p", start=number + 1)
    messages = await popped(store)
    assert numbers(messages) == list(range(1, 11))
    assert [message.seq for message in messages] == list(range(1, 11))
    assert [message.id for message in messages] == sorted(message.id for message in messages)


async def test_many_sessions_at_once_number_densely(dsn: str, store: PostgresStore) -> None:
    async def work(index: int) -> None:
        connection = await asyncpg.connect(dsn)
        for turn in range(10):
            transaction = connection.transaction()
            await transaction.start()
            await push(connection, 100 * index + turn, partition=f"p{turn % 2}")
            await (transaction.rollback() if turn % 5 == 4 else transaction.commit())
        await connection.close()

    await asyncio.gather(*(work(index) for index in range(6)))
    for partition in ("p0", "p1"):
        messages = await popped(store, partition=partition)
        assert [message.seq for message in messages] == list(range(1, 25))
        for index in range(6):
            of_one = [n for n in numbers(messages) if n // 100 == index]
            assert of_one == sorted(of_one)


async def test_push_wakes_a_group_that_had_nothing_to_do(session: Session[Any], store: PostgresStore) -> None:
    await push(session, 1)
    assert numbers(await pop_all(store, "q", group="g")) == [1]
    await push(session, 2)
    assert numbers(await pop_all(store, "q", group="g")) == [2]


async def test_delay_of_the_queue_holds_for_a_push_from_sql(session: Session[Any], store: PostgresStore) -> None:
    await configure(store, "q", delay_seconds=3600)
    await store.subscribe("q", QUEUE_MODE, Subscription())
    await push(session, partition="Default")
    assert not await popped(store)
    [lag] = await store.lag("q")
    assert (lag.lag, lag.due_at is not None) == (1, True)


# --- Duplicates -------------------------------------------------------------------------------------------------

TRANSACTION_IDS = ["order-1", str(uuid4()), str(uuid4()).upper()]


@pytest.mark.parametrize("transaction_id", TRANSACTION_IDS, ids=["text", "uuid", "upper-case-uuid"])
async def test_duplicate_answers_with_the_first_message(
    session: Session[Any], store: PostgresStore, transaction_id: str
) -> None:
    first = await push(session, 1, transaction_id=transaction_id)
    assert await push(session, 2, transaction_id=transaction_id) == first
    assert await push(session, 3, transaction_id=transaction_id, partition="other") != first
    [receipt] = await push_tagged(store, "q", transaction_id, partition="p")
    assert (receipt.status, receipt.message_id) == ("duplicate", str(first))
    messages = await popped(store, partition="p")
    assert [(message.json()["n"], message.transaction_id) for message in messages] == [(1, transaction_id)]


@pytest.mark.parametrize("transaction_id", TRANSACTION_IDS, ids=["text", "uuid", "upper-case-uuid"])
async def test_duplicate_of_a_message_from_a_store(
    session: Session[Any], store: PostgresStore, transaction_id: str
) -> None:
    [_, second] = await push_tagged(store, "q", "something else", transaction_id, partition="p")
    assert str(await push(session, transaction_id=transaction_id)) == second.message_id


async def test_duplicate_within_one_transaction(session: Session[Any], store: PostgresStore) -> None:
    async with session.transaction():
        first = await push(session, 1, transaction_id="t")
        assert await push(session, 2, transaction_id="t") == first
    assert numbers(await popped(store)) == [1]


async def test_trace_is_found(session: Session[Any], store: PostgresStore) -> None:
    await push(session, 1, trace_id=TRACE)
    await push(session, 2, trace_id=TRACE, partition="other")
    assert numbers(await store.trace(TRACE)) == [1, 2]


# --- Refusals ---------------------------------------------------------------------------------------------------

PUSH = "select lockstep.push($1, $2, $3::jsonb, transaction_id => $4, headers => $5::jsonb)"
GOOD: dict[str, Any] = {
    "queue": "q",
    "partition": "p",
    "payload": "{}",
    "transaction_id": None,
    "headers": None,
}
BAD = [
    *(
        pytest.param({what: value}, what, id=f"{what}-{how}")
        for what in ("queue", "partition")
        for how, value in {
            "null": None,
            "empty": "",
            "long": "x" * 256,
            "newline": "a\nb",
            "delete": "a\x7fb",
            "c1": "a\x85b",
        }.items()
    ),
    *(
        pytest.param(
            {what: "a\u2028b"},
            what,
            id=f"{what}-separator",
        )
        for what in ("queue", "partition")
    ),
    pytest.param({"payload": None}, "payload must not be null", id="payload-null"),
    pytest.param({"transaction_id": ""}, "transaction_id", id="transaction_id-empty"),
    pytest.param({"transaction_id": "x" * 256}, "transaction_id", id="transaction_id-long"),
    pytest.param({"headers": '{"a": 1}'}, "headers", id="headers-number"),
    pytest.param({"headers": '{"a": null}'}, "headers", id="headers-null-value"),
    pytest.param({"headers": '{"a": {"b": "c"}}'}, "headers", id="headers-nested"),
    pytest.param({"headers": '["a"]'}, "headers", id="headers-array"),
    pytest.param({"headers": '"a"'}, "headers", id="headers-text"),
    pytest.param({"headers": "null"}, "headers", id="headers-json-null"),
]


@pytest.mark.parametrize(("bad", "told"), BAD)
async def test_bad_input_is_refused_and_changes_nothing(
    session: Session[Any], store: PostgresStore, bad: dict[str, Any], told: str
) -> None:
    with pytest.raises(asyncpg.PostgresError, match=told) as refused:
        await session.fetchval(PUSH, *(GOOD | bad).values())
    assert refused.value.sqlstate == "LS004"
    assert await store.queues() == []


_LIMITS = Config()


@pytest.mark.parametrize(
    ("field", "most"),
    [
        ("payload", _LIMITS.payload_bytes_max),
        ("kind", _LIMITS.kind_length_max),
        ("reference", _LIMITS.reference_length_max),
        ("headers", _LIMITS.headers_bytes_max),
    ],
)
async def test_sizes_are_limited_as_settings_do_by_default(
    session: Session[Any], store: PostgresStore, field: str, most: int
) -> None:
    # Without quotes, or with those of a JSON text, or of an object with one.
    frame = {"payload": '"{}"', "headers": '{{"a": "{}"}}'}.get(field, "{}")
    fits = frame.format("x" * (most - len(frame.format(""))))
    query = f"select lockstep.push('q', 'p', {{}}{field} => $1)".format("" if field == "payload" else "'1', ")
    with pytest.raises(asyncpg.PostgresError, match=f"{field} is too large: {most + 1} of at most {most}") as refused:
        await session.fetchval(query, frame.format("x" * (most + 1 - len(frame.format("")))))
    assert refused.value.sqlstate == "LS004"
    assert await store.queues() == []
    await session.fetchval(query, fits)
    assert len(await popped(store)) == 1


async def test_full_queue_is_told_and_nothing_is_stored(session: Session[Any], store: PostgresStore) -> None:
    await configure(store, "q", max_size=2)
    await push(session, 1)
    async with session.transaction():
        await push(session, 2)
        inner = session.transaction()
        await inner.start()
        with pytest.raises(asyncpg.PostgresError, match="queue 'q' holds 2 of at most 2 pending") as refused:
            await push(session, 3)
        await inner.rollback()
    assert refused.value.sqlstate == "LS003"
    assert numbers(await popped(store)) == [1, 2]


async def test_consumed_messages_make_room(session: Session[Any], store: PostgresStore) -> None:
    await configure(store, "q", max_size=1)
    await store.subscribe("q", QUEUE_MODE, Subscription())
    await push(session, 1)
    assert numbers(await pop_all(store, "q")) == [1]
    await push(session, 2)
    with pytest.raises(asyncpg.PostgresError, match="do not fit"):
        await push(session, 3)


async def test_encrypted_queue_is_refused(session: Session[Any], store: PostgresStore) -> None:
    """SQL has no key, and what it stored would be readable."""
    await configure(store, "q", encryption=True)
    with pytest.raises(asyncpg.PostgresError, match="encrypted; push to it through Lockstep") as refused:
        await push(session)
    assert refused.value.sqlstate == "LS004"
    assert (await store.queue("q")).messages == 0


# --- Outbox -----------------------------------------------------------------------------------------------------

OUTBOX = """
create table if not exists public.orders (id int primary key, customer text not null, total numeric not null);
truncate public.orders;
create or replace function public.tell_lockstep() returns trigger language plpgsql as $$
begin
    perform lockstep.push(
        'orders', new.customer, to_jsonb(new), transaction_id => 'order-' || new.id, kind => lower(tg_op)
    );
    return new;
end $$;
create or replace trigger tell_lockstep after insert or update on public.orders
for each row execute function public.tell_lockstep();
"""


@pytest_asyncio.fixture
async def outbox(session: Session[Any]) -> AsyncIterator[Session[Any]]:
    """A table of a user whose rows tell of themselves."""
    await session.execute(OUTBOX)
    yield session
    await session.execute("drop table public.orders; drop function public.tell_lockstep()")


async def test_rows_tell_of_themselves_when_they_are_committed(outbox: Session[Any], store: PostgresStore) -> None:
    async with outbox.transaction():
        await outbox.execute("insert into public.orders values (1, 'anna', 10), (2, 'ben', 20), (3, 'anna', 30)")
        assert not await popped(store, "orders")
    messages = await popped(store, "orders")
    assert sorted((m.partition, m.seq, m.json()["id"], m.kind) for m in messages) == [
        ("anna", 1, 1, "insert"),
        ("anna", 2, 3, "insert"),
        ("ben", 1, 2, "insert"),
    ]


async def test_rows_that_are_rolled_back_tell_nothing(outbox: Session[Any], store: PostgresStore) -> None:
    transaction = outbox.transaction()
    await transaction.start()
    await outbox.execute("insert into public.orders values (1, 'anna', 10)")
    await transaction.rollback()
    assert not await popped(store, "orders")
    await outbox.execute("insert into public.orders values (1, 'anna', 11)")
    assert [message.json()["total"] for message in await popped(store, "orders")] == [11]


async def test_refused_message_refuses_the_row(outbox: Session[Any], store: PostgresStore) -> None:
    await configure(store, "orders", max_size=1)
    await outbox.execute("insert into public.orders values (1, 'anna', 10)")
    with pytest.raises(asyncpg.PostgresError, match="do not fit"):
        await outbox.execute("insert into public.orders values (2, 'ben', 20)")
    assert await outbox.fetchval("select count(*) from public.orders") == 1


async def test_thousand_rows_of_one_statement_are_in_order(outbox: Session[Any], store: PostgresStore) -> None:
    await outbox.execute("insert into public.orders select n, 'anna', n from generate_series(1, 1000) n")
    messages = await popped(store, "orders")
    assert [message.json()["id"] for message in messages] == list(range(1, 1001))
    assert [message.seq for message in messages] == list(range(1, 1001))

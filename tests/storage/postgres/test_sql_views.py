"""lockstep.messages: stored messages for readers in SQL."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest
import pytest_asyncio

from lockstep.config import load
from lockstep.core.messages import Batch, Columns
from lockstep.core.policy import GroupMode
from lockstep.core.records import Subscription
from lockstep.storage.postgres.push.conversation import PLAIN_BYTES_MAX
from lockstep.storage.postgres.store import PostgresStore
from support.builders import batch, binary_payload, configure, pop, push_n

TRACE = "0190a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2b"
KEY = base64.b64encode(bytes(range(32))).decode()
LARGE = b'{"text":"%s"}' % (b"x" * PLAIN_BYTES_MAX)


@pytest_asyncio.fixture
async def store(dsn: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(dsn, config=load({"encryption_key": KEY}, environ={}))
    yield store
    await store.close()


@pytest_asyncio.fixture
async def session(dsn: str) -> AsyncIterator[asyncpg.Connection[Any]]:
    connection = await asyncpg.connect(dsn)
    yield connection
    await connection.close()


async def rows(session: asyncpg.Connection[Any], columns: str = "*") -> list[Any]:
    query = f"select {columns} from lockstep.messages order by queue, partition, seq"
    return [tuple(row) if columns != "*" else dict(row) for row in await session.fetch(query)]


async def test_small_push_is_readable_with_all_its_fields(
    store: PostgresStore, session: asyncpg.Connection[Any]
) -> None:
    columns = Columns(
        [b'{"n":1}', b'{"n":2}'],
        transaction_ids=["t1", None],
        trace_ids=[None, TRACE],
        kinds=["created", None],
        references=[None, "r2"],
        headers=[b'{"a":"b"}', None],
        producer_subs=["anna", None],
    )
    receipts = list(await store.push([Batch("q", "p", columns)]))
    first, second = await rows(session)
    assert first.pop("created_at") == second.pop("created_at")
    assert [str(row.pop("message_id")) for row in (first, second)] == [r.message_id for r in receipts]
    assert first == {
        "queue": "q",
        "partition": "p",
        "seq": 1,
        "readable": True,
        "payload": '{"n":1}',
        "transaction_id": "t1",
        "trace_id": None,
        "kind": "created",
        "reference": None,
        "encoding": None,
        "headers": '{"a": "b"}',
        "producer_sub": "anna",
    }
    assert (str(second["trace_id"]), second["reference"]) == (TRACE, "r2")
    assert (second["transaction_id"], second["kind"], second["headers"], second["producer_sub"]) == (None,) * 4


async def test_payloads_can_be_searched_as_json(store: PostgresStore, session: asyncpg.Connection[Any]) -> None:
    await push_n(store, "q", 5)
    found = await session.fetch("select seq from lockstep.messages where (payload::jsonb ->> 'n')::int > 3 order by 1")
    assert [row[0] for row in found] == [4, 5]


async def test_packed_push_shows_its_place_and_says_that_it_is_not_readable(
    store: PostgresStore, session: asyncpg.Connection[Any]
) -> None:
    columns = Columns([LARGE] * 2, kinds=["k"] * 2, headers=[b'{"a":"b"}'] * 2)
    receipts = list(await store.push([Batch("q", "p", columns)]))
    found = await rows(session, "seq, message_id::text, readable, payload, kind, headers")
    assert found == [(receipt.seq, receipt.message_id, False, None, None, None) for receipt in receipts]


async def test_queue_without_compression_is_readable_whatever_its_size(
    store: PostgresStore, session: asyncpg.Connection[Any]
) -> None:
    await configure(store, "q", compression="none")
    await store.push([Batch.of("q", [LARGE] * 50)])
    await push_n(store, "q")
    found = await rows(session, "readable, payload")
    assert found == [(True, LARGE.decode())] * 50 + [(True, '{"n":1}')]


async def test_encrypted_queue_is_not_readable(store: PostgresStore, session: asyncpg.Connection[Any]) -> None:
    await configure(store, "q", encryption=True, compression="none")
    await store.push([Batch.of("q", [b'{"secret":1}'], kinds=["secret"])])
    assert await rows(session, "readable, payload, kind") == [(False, None, None)]


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(b"\xff\xfe", id="not-utf8"),
        pytest.param(b"a\x00b", id="nul"),
        pytest.param(b"\xc3", id="cut-short"),
        pytest.param(b"\xed\xa0\x80", id="surrogate"),
        pytest.param(binary_payload(500), id="every-byte"),
    ],
)
async def test_payload_that_is_no_text_is_shown_in_base64(
    store: PostgresStore, session: asyncpg.Connection[Any], payload: bytes
) -> None:
    await store.push([Batch.of("q", [payload, b'{"n":1}'])])
    [(shown,), (text,)] = await rows(session, "payload")
    assert base64.b64decode(shown) == payload
    assert text == '{"n":1}'


async def test_payload_with_an_encoding_is_shown_in_base64(
    store: PostgresStore, session: asyncpg.Connection[Any]
) -> None:
    await store.push([Batch.of("q", [b"plain text", b"{}"], encodings=["avro", None])])
    found = await rows(session, "encoding, payload")
    assert found == [("avro", base64.b64encode(b"plain text").decode()), (None, "{}")]


async def test_empty_payload(store: PostgresStore, session: asyncpg.Connection[Any]) -> None:
    await store.push([Batch.of("q", [b""])])
    assert await rows(session, "readable, payload") == [(True, "")]


@pytest.mark.parametrize("compression", ["zstd", "none"])
async def test_every_message_of_a_wide_push_is_in_its_place(
    store: PostgresStore, session: asyncpg.Connection[Any], compression: str
) -> None:
    await configure(store, "q", compression=compression)
    lanes = [batch("q", number, partition=f"p{number}", start=100 * number) for number in range(1, 40)]
    receipts = [*await store.push(lanes), *await store.push(lanes)]
    found = await rows(session, "partition, seq, message_id::text")
    assert sorted(found) == sorted((r.partition, r.seq, r.message_id) for r in receipts)
    if compression == "none":
        numbers = [(row[0], json.loads(row[1])["n"]) for row in await rows(session, "partition, payload")]
        assert all(number // 100 == int(partition[1:]) for partition, number in numbers)


async def test_pushes_from_sql_are_readable(store: PostgresStore, session: asyncpg.Connection[Any]) -> None:
    await configure(store, "q")
    await session.fetchval("select lockstep.push('q', 'p', $1::jsonb)", LARGE.decode())
    [(readable, payload)] = await rows(session, "readable, payload")
    assert readable
    assert json.loads(payload) == json.loads(LARGE)


async def test_messages_that_were_removed_are_not_shown(store: PostgresStore, session: asyncpg.Connection[Any]) -> None:
    await store.push([batch("q", 4, partition="p"), batch("q", 2, partition="cleared")])
    await pop(store, "q", partition="p", batch=2)
    await store.clear("q", partition="cleared")
    await store.clear("q", partition="p", scope="unleased")
    assert await rows(session, "partition, seq") == [("p", 1), ("p", 2)]
    await store.delete_queue("q")
    assert await rows(session) == []


async def test_view_shows_what_is_committed(dsn: str, store: PostgresStore, session: asyncpg.Connection[Any]) -> None:
    await push_n(store, "q")
    async with session.transaction():
        await session.execute("select lockstep.push('q', 'p', '{}')")
        assert len(await rows(session)) == 2
        other = await asyncpg.connect(dsn)
        assert len(await rows(other)) == 1
        await other.close()


@pytest.mark.parametrize("mode", ["ordered", "shared"])
async def test_views_show_a_group_before_its_cursors_are_made(
    store: PostgresStore, session: asyncpg.Connection[Any], mode: GroupMode
) -> None:
    await store.push([batch("q", 2, partition=f"p{number}") for number in range(4)])
    store.context.limits.slice_partitions_max = 1
    store.context.limits.slices_seconds_max = 0
    await store.subscribe("q", "g", Subscription(), mode=mode)
    assert await session.fetchval("select count(*) from lockstep.cursor c where c.group_id > 0") < 4
    lags = await session.fetch(
        "select partition, acked, lag from lockstep.lag where group_name = 'g' order by partition"
    )
    assert [tuple(row) for row in lags] == [(f"p{number}", 0, 2) for number in range(4)]
    groups = await session.fetch("select lag, in_flight from lockstep.groups where group_name = 'g'")
    assert [tuple(row) for row in groups] == [(8, 0)]

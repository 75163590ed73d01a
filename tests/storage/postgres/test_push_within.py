"""Pushes in the caller's own transaction, with psycopg."""

from __future__ import annotations

from collections.abc import AsyncIterator

import psycopg
import pytest
import pytest_asyncio

from lockstep import NewMessage, push_within
from lockstep.engine.push_within import push_within_async
from lockstep.errors import InvalidPayload, InvalidRequest
from lockstep.storage.postgres.store import PostgresStore
from support.builders import pop


@pytest_asyncio.fixture
async def store(database_dsn: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(database_dsn)
    yield store
    assert await store.verify() == []
    await store.close()


def message(payload: bytes, **fields: str) -> NewMessage:
    return NewMessage(queue="q", payload=payload, **fields)  # type: ignore[arg-type]


async def test_messages_are_there_if_and_only_if_the_caller_commits(store: PostgresStore, database_dsn: str) -> None:
    with psycopg.connect(database_dsn) as connection:
        push_within(connection, [message(b'"never"')])
        connection.rollback()
        receipts = push_within(connection, [message(b"1"), message(b"2")])
        assert [receipt.seq for receipt in receipts] == [1, 2]
        assert not (await pop(store, "q")).runs
        connection.commit()
    assert (await pop(store, "q", batch=10)).payloads() == [b"1", b"2"]


async def test_async_connection(store: PostgresStore, database_dsn: str) -> None:
    async with await psycopg.AsyncConnection.connect(database_dsn) as connection:
        [receipt] = await push_within_async(connection, [message(b"1")])
    assert receipt.seq == 1
    assert (await pop(store, "q")).payloads() == [b"1"]


async def test_payload_that_is_not_json_needs_an_encoding(store: PostgresStore, database_dsn: str) -> None:
    with psycopg.connect(database_dsn) as connection:
        for bad in (b"{", b"hello", b"", b"\xff", b'"\xff"', b"1 2"):
            with pytest.raises(InvalidPayload, match=r"^message 1: the payload is not JSON, and has no encoding"):
                push_within(connection, [message(b"1"), message(bad)])
        push_within(connection, [message(b"\xff", encoding="application/octet-stream")])
    assert (await pop(store, "q")).payloads() == [b"\xff"]


async def test_connection_of_another_kind_is_refused(database_dsn: str) -> None:
    with (
        psycopg.connect(database_dsn) as connection,
        pytest.raises(InvalidRequest, match=r"expected psycopg.s AsyncConnection, not psycopg\.Connection"),
    ):
        await push_within_async(connection, [message(b"1")])  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match=r"expected psycopg.s Connection, not builtins\.str"):
        push_within(database_dsn, [message(b"1")])  # type: ignore[arg-type]

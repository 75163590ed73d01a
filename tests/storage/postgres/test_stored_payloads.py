"""Payloads in the database: sealed in a queue with encryption, readable with the key only, and told when damaged."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Callable
from uuid import uuid4

import pytest
import pytest_asyncio

from lockstep.config import load
from lockstep.core.messages import Batch
from lockstep.errors import CorruptSegment, EncryptionUnavailable
from lockstep.storage.postgres.store import PostgresStore
from support.builders import batch, configure, numbers, pop, push_n
from support.databases import Databases

KEY = bytes(range(32))
OTHER_KEY = bytes(range(1, 33))
MakeStore = Callable[[bytes | None], PostgresStore]
SECRET = b'{"secret":"%s"}' % (b"hidden words " * 200)


@pytest_asyncio.fixture
async def make_store(databases: Databases) -> AsyncIterator[MakeStore]:
    dsn = databases.emptied()
    made: list[PostgresStore] = []

    def make(key: bytes | None) -> PostgresStore:
        given = {} if key is None else {"encryption_key": base64.b64encode(key).decode()}
        made.append(PostgresStore(dsn, config=load(given, environ={})))
        return made[-1]

    yield make
    for store in made:
        await store.close()


async def stored(store: PostgresStore) -> bytes:
    """Everything that the segments hold, one after the other."""
    async with store.database.connection() as connection:
        rows = await connection.fetch("select * from lockstep.segment")
    found = [value for row in rows for column in row for value in (column if isinstance(column, list) else [column])]
    return b"".join(value if isinstance(value, bytes) else str(value).encode() for value in found)


@pytest.mark.parametrize("compression", ["zstd", "none"])
@pytest.mark.parametrize("payload", [b'{"secret":1}', SECRET], ids=["small", "large"])
async def test_payload_of_an_encrypted_queue_is_not_in_the_database(
    make_store: MakeStore, payload: bytes, compression: str
) -> None:
    store = make_store(KEY)
    await configure(store, "q", encryption=True, compression=compression)
    await store.push([Batch.of("q", [payload], kinds=["secret-kind"], headers=[b'{"a":"secret-header"}'])])
    assert b"secret" not in await stored(store)
    for reader, group in ((store, "here"), (make_store(KEY), "there")):
        [message] = (await pop(reader, "q", group=group)).messages()
        assert (message.payload, message.kind, message.headers) == (payload, "secret-kind", {"a": "secret-header"})


async def test_payload_of_a_plain_queue_is_in_the_database(make_store: MakeStore) -> None:
    """So the test above would notice."""
    store = make_store(None)
    await store.push([Batch.of("q", [b'{"secret":1}'])])
    assert b"secret" in await stored(store)


async def test_store_without_the_key_cannot_read(make_store: MakeStore) -> None:
    store = make_store(KEY)
    await configure(store, "q", encryption=True)
    [receipt] = await push_n(store, "q")
    blind, stranger = make_store(None), make_store(OTHER_KEY)
    with pytest.raises(EncryptionUnavailable, match="no encryption key"):
        await pop(blind, "q", group="blind")
    with pytest.raises(EncryptionUnavailable, match="not among those configured"):
        await pop(stranger, "q", group="stranger")
    with pytest.raises(EncryptionUnavailable):
        await blind.message(receipt.message_id)


async def test_store_without_the_key_does_not_push_in_the_clear(make_store: MakeStore) -> None:
    await configure(make_store(KEY), "q", encryption=True)
    with pytest.raises(EncryptionUnavailable):
        await push_n(make_store(None), "q")
    assert (await make_store(KEY).queue("q")).messages == 0


async def test_encryption_that_begins_later_leaves_older_messages_readable(make_store: MakeStore) -> None:
    store = make_store(KEY)
    await push_n(store, "q", 2)
    await configure(store, "q", encryption=True)
    await push_n(store, "q", 2, start=3)
    await configure(store, "q")
    await push_n(store, "q", 2, start=5)
    assert numbers(await pop(make_store(KEY), "q", batch=9)) == [1, 2, 3, 4, 5, 6]


async def test_pop_that_cannot_read_takes_no_lease(make_store: MakeStore) -> None:
    """A call that raises has changed nothing: or a server without the key would use up everybody's attempts."""
    store = make_store(KEY)
    await configure(store, "q", encryption=True)
    await push_n(store, "q")
    with pytest.raises(EncryptionUnavailable):
        await pop(make_store(None), "q")
    assert await store.leases() == []
    assert numbers(await pop(store, "q")) == [1]


@pytest.mark.parametrize("damage", ["substr(body, 1, length(body) - 5)", "'no frame'::bytea"], ids=["cut", "other"])
async def test_segment_that_is_damaged_in_the_database_is_told(make_store: MakeStore, damage: str) -> None:
    store = make_store(None)
    await store.push([batch("q", 500, kinds=["k"] * 500)])
    async with store.database.connection() as connection:
        await connection.execute(f"update lockstep.segment set body = {damage}")
    with pytest.raises(CorruptSegment):
        await pop(make_store(None), "q", batch=500)


async def test_connection_is_fine_after_a_damaged_segment(make_store: MakeStore) -> None:
    store = make_store(None)
    await store.push([batch("q", 500)])
    async with store.database.connection() as connection:
        await connection.execute("update lockstep.segment set body = 'no frame'::bytea")
    reader = make_store(None)
    with pytest.raises(CorruptSegment):
        await pop(reader, "q", batch=500)
    await push_n(reader, "other", transaction_ids=[str(uuid4())])
    assert numbers(await pop(reader, "other")) == [1]

"""Ids come from sequences of 32 bits for queues and groups: what changes nothing must not use them up."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from lockstep.core.policy import QueueOptions
from lockstep.core.records import Subscription
from lockstep.errors import Conflict
from lockstep.storage.postgres.store import PostgresStore
from support.builders import push_n

_LAST_IDS = """
select sequencename, last_value from pg_sequences
where schemaname = 'lockstep' and sequencename in ('queue_id_seq', 'consumer_group_id_seq', 'partition_id_seq')
"""


@pytest_asyncio.fixture
async def store(database_dsn: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(database_dsn)
    await store.open()
    yield store
    await store.close()


async def last_ids(store: PostgresStore) -> dict[str, int]:
    return {row[0]: row[1] for row in await store.database.fetch("last_ids", _LAST_IDS)}


async def test_calls_that_create_nothing_use_no_ids(store: PostgresStore) -> None:
    await store.configure("q", QueueOptions(partitions=3))
    await store.subscribe("q", "g", Subscription())
    await push_n(store, "q")
    before = await last_ids(store)
    for _ in range(3):
        await store.configure("q", QueueOptions(partitions=3))
        await store.update_queue("q", {"lease_seconds": 7})
        await store.subscribe("q", "g", Subscription())
        store.context.names.forget("q")
        await push_n(store, "q")
    assert await last_ids(store) == before


async def test_end_of_the_ids_is_an_error_in_words_and_only_for_what_is_new(store: PostgresStore) -> None:
    await store.configure("q", QueueOptions())
    await store.database.fetch("end", "select setval('lockstep.queue_id_seq', 2147483647)")
    await store.configure("q", QueueOptions(lease_seconds=7))
    await push_n(store, "q")
    with pytest.raises(Conflict, match="used up its ids"):
        await push_n(store, "new")
    with pytest.raises(Conflict, match="used up its ids"):
        await store.configure("new", QueueOptions())

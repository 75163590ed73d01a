"""The count of failed deliveries ends before its column does."""

from __future__ import annotations

import asyncpg
import pytest

from lockstep.core.policy import ATTEMPTS_MAX, UNLIMITED, GroupMode
from lockstep.core.records import Ack
from lockstep.storage.postgres.store import PostgresStore
from support.builders import attempts_of, configure, pop, push_n
from support.databases import Databases


@pytest.mark.parametrize("mode", ["ordered", "shared"])
async def test_message_that_failed_as_often_as_can_be_counted_is_delivered_again(
    databases: Databases, mode: GroupMode
) -> None:
    dsn = databases.emptied()
    store = PostgresStore(dsn)
    try:
        await configure(store, "q", retry_limit=UNLIMITED, retry_delay_ms=0, group_mode=mode, lease_seconds=1)
        await push_n(store, "q")
        popped = await pop(store, "q")
        connection = await asyncpg.connect(dsn)
        for table in ("cursor", "delivery"):
            await connection.execute(f"update lockstep.{table} set attempts = {ATTEMPTS_MAX - 1}")
        await connection.close()
        for _ in range(3):
            await store.ack([Ack(lease_id=popped.lease_id, status="failed")])
            popped = await pop(store, "q")
            assert attempts_of(popped) == [ATTEMPTS_MAX + 1]
    finally:
        await store.close()

"""An auto-ack has no lease that would hold its messages, so it counts only once they have been read."""

from __future__ import annotations

import os
from base64 import b64encode

import pytest

from lockstep.config import load
from lockstep.core.messages import Batch
from lockstep.core.policy import QueueOptions
from lockstep.core.records import PopRequest
from lockstep.errors import EncryptionUnavailable
from lockstep.storage.postgres.store import PostgresStore

QUEUE = "secrets"


async def test_messages_that_cannot_be_read_are_not_passed(database_dsn: str) -> None:
    key = b64encode(os.urandom(32)).decode()
    writer = PostgresStore(database_dsn, config=load({"encryption_key": key}, environ={}))
    reader = PostgresStore(database_dsn, config=load(environ={}))
    await writer.configure(QUEUE, QueueOptions(encryption=True))
    await writer.push([Batch.of(QUEUE, [b'"x"' * 1000])])
    request = PopRequest(queue=QUEUE, auto_ack=True)
    with pytest.raises(EncryptionUnavailable):
        await reader.pop([request])
    assert (await writer.pop([request]))[0].payloads() == [b'"x"' * 1000]
    await writer.close()
    await reader.close()


async def test_retention_between_the_pop_and_the_reading_takes_nothing(database_dsn: str) -> None:
    """The reading happens in the transaction of the pop: until it ends the messages count as not consumed."""
    names: list[str] = []
    store = PostgresStore(database_dsn, on_query=lambda name, _seconds, _error: names.append(name))
    await store.push([Batch.of(QUEUE, [b"1"])])
    fresh = PostgresStore(database_dsn, on_query=lambda name, _seconds, _error: names.append(name))
    transactions: list[int] = []
    transaction = fresh.database.transaction

    async def counted(*args: object, **kwargs: object) -> object:
        transactions.append(len(names))
        return await transaction(*args, **kwargs)  # type: ignore[arg-type]

    fresh.database.transaction = counted  # type: ignore[method-assign]
    [popped] = await fresh.pop([PopRequest(queue=QUEUE, auto_ack=True)])
    assert popped.payloads() == [b"1"]
    assert names[transactions[0] :] == ["pop", "segment_load"]
    await store.close()
    await fresh.close()

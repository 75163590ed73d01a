"""A push that is committed has succeeded: nothing is asked after it that could fail and make it look otherwise."""

from __future__ import annotations

from typing import Any

import pytest

from lockstep.core.messages import Batch, NewSchedule
from lockstep.core.policy import QueueOptions
from lockstep.errors import Unavailable
from lockstep.storage.base import Store
from lockstep.storage.postgres.calls import Call
from lockstep.storage.postgres.failures import unreachable
from lockstep.storage.postgres.store import PostgresStore
from support.builders import configure, pop_all

BIG = b'"' + b"x" * 2_000 + b'"'
FIRST = Batch.of("limited", [b"1", b"2"], transaction_ids=["t1", "t2"])
REPEATED = Batch.of("limited", [b"1"], transaction_ids=["t1"])
PUSHES = {
    "one": [Batch.of("q", [b"1"])],
    "packed": [Batch.of("q", [BIG] * 3)],
    "several partitions": [Batch.of("q", [BIG], partition=name) for name in "abc"],
    "new queue": [Batch.of("new", [b"1"])],
    "expiring": [Batch.of("q", [b"1"], expires_at=[None])],
    "limited": [Batch.of("limited", [b"3"])],
    "only duplicates in one queue": [REPEATED, Batch.of("q", [b"1"])],
    "duplicates in a push": [Batch.of("limited", [b"1", b"9"], transaction_ids=["t1", "t9"]), Batch.of("q", [b"1"])],
    "scheduled": [Batch("q", "later", FIRST.columns, NewSchedule(delay_seconds=60)), Batch.of("q", [b"1"])],
}

IN_TRANSACTIONS = {"scheduled", "new queue", "several partitions"}
"""What nothing can follow but the commit itself."""


@pytest.fixture
async def store(database_dsn: str) -> Any:
    store = PostgresStore(database_dsn)
    await store.open()
    await configure(store, "limited", max_size=100)
    await store.configure("q", QueueOptions())
    await store.push([FIRST, Batch.of("q", [b"0"])])
    yield store
    await store.close()


@pytest.mark.parametrize("kind", PUSHES)
async def test_database_that_goes_away_after_the_commit_fails_no_push(
    store: PostgresStore, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    on = store.database.on
    pushed: list[str] = []

    async def until_pushed(connection: Any, name: str, query: str, *arguments: Any) -> list[Any]:
        if pushed:
            raise unreachable(ConnectionRefusedError("PostgreSQL was stopped in this moment"))
        rows = await on(connection, name, query, *arguments)
        if name == "push" and rows[0][0] == "ok" and not connection.is_in_transaction():
            pushed.append(name)
        return rows

    monkeypatch.setattr(store.database, "on", until_pushed)
    result = await store.push(PUSHES[kind])
    assert pushed or kind in IN_TRANSACTIONS
    assert [receipt.status for receipt in result][-1] in ("queued", "duplicate")


async def test_push_that_fails_before_its_commit_has_pushed_nothing(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How full a queue is of which the push has only duplicates is asked first."""
    call = store.database.call

    async def without_occupancy(asked: Call[Any], *connection: Any) -> list[Any]:
        if asked.name == "occupancy":
            raise unreachable(ConnectionRefusedError("PostgreSQL was stopped in this moment"))
        return await call(asked, *connection)

    monkeypatch.setattr(store.database, "call", without_occupancy)
    with pytest.raises(Unavailable, match="PostgreSQL was stopped"):
        await store.push([REPEATED, Batch.of("q", [b"1"])])
    monkeypatch.undo()
    assert len(await pop_all(store, "q")) == 1


async def test_full_and_duplicate_queues_are_told_of_together(store: Store) -> None:
    duplicate, other = await store.push([REPEATED, Batch.of("q", [b"1"])])
    assert (duplicate.status, duplicate.depth, duplicate.remaining) == ("duplicate", 2, 98)
    assert (other.status, other.depth) == ("queued", None)

"""Packed pushes to several partitions of one queue, which have a procedure of their own (push_runs in push.sql)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest
import pytest_asyncio

from lockstep.core.messages import Batch, Columns, PushResult
from lockstep.core.names import QUEUE_MODE
from lockstep.core.operations import NewOperation
from lockstep.errors import EncryptionUnavailable, LockTimeout, OperationPending, QueueFull
from lockstep.storage.postgres.push.attempt import PushAttempt
from lockstep.storage.postgres.push.conversation import PLAIN_BYTES_MAX
from support.builders import configure, pop, pop_all
from support.databases import Databases
from support.sessions import Stage

PAYLOAD = b'"' + b"x" * PLAIN_BYTES_MAX + b'"'
SQL_PUSH = "select lockstep.push('q', $1, '0'::jsonb)"


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """By call of the procedure: over how many partitions."""
    made: list[int] = []
    arguments = PushAttempt.runs_arguments

    def noted(attempt: PushAttempt, *given: Any) -> list[Any]:
        made.append(len(attempt.portions))
        return arguments(attempt, *given)

    monkeypatch.setattr(PushAttempt, "runs_arguments", noted)
    return made


@pytest_asyncio.fixture
async def stage(databases: Databases, calls: list[int]) -> AsyncIterator[Stage]:
    async with Stage(databases.emptied()) as stage:
        yield stage
        assert await (await stage.actor()).store.verify() == []
    assert calls, "it was another procedure"


def lanes(*partitions: str, count: int = 2) -> list[Batch]:
    return [Batch("q", partition, Columns([PAYLOAD] * count)) for partition in partitions]


def seqs(pushed: PushResult) -> list[tuple[str, int]]:
    return [(receipt.partition, receipt.seq) for receipt in pushed]


async def test_seqs_are_dense_whoever_pushes(stage: Stage) -> None:
    a, b = await stage.actors(2)
    assert seqs(await a.store.push(lanes("x", "y"))) == [("x", 1), ("x", 2), ("y", 1), ("y", 2)]
    assert seqs(await b.store.push(lanes("y", "z"))) == [("y", 3), ("y", 4), ("z", 1), ("z", 2)]
    assert seqs(await a.store.push(lanes("y", count=1))) == [("y", 5)]
    assert seqs(await a.store.push(lanes("z", "y", count=1))) == [("z", 3), ("y", 6)]
    messages = await pop_all(a.store, "q")
    assert len(messages) == 11
    by_partition = [(message.partition, message.seq, message.id) for message in messages]
    for partition in "xyz":
        ids = [identity for name, _, identity in sorted(by_partition) if name == partition]
        assert ids == sorted(ids), "ids rise with the seqs"


@pytest.mark.parametrize("seen", [0, 10**9])
async def test_place_that_was_seen_need_not_be_there(stage: Stage, seen: int) -> None:
    """As after a push that was rolled back, or when the run that was seen was removed."""
    [a] = await stage.actors(1)
    await a.store.push(lanes("x", "y"))
    names = a.store.context.names.get("q")
    assert names is not None
    assert set(names.last_runs) == set(names.partitions.values())
    names.last_runs.update(dict.fromkeys(names.last_runs, seen))
    assert seqs(await a.store.push(lanes("x", "y", count=1))) == [("x", 3), ("y", 3)]


async def test_push_after_a_clear_goes_on_counting(stage: Stage) -> None:
    [a] = await stage.actors(1)
    await a.store.push(lanes("x", "y"))
    await a.store.push(lanes("x", "y"))
    await a.store.clear("q")
    assert seqs(await a.store.push(lanes("x", "y", count=1))) == [("x", 5), ("y", 5)]
    assert {message.seq for message in await pop_all(a.store, "q")} == {5}


async def test_push_waits_for_a_late_commit_and_follows_it(stage: Stage) -> None:
    """A pushes to y, B pushes to x and y and waits, A commits: A's message is before B's."""
    a, b = await stage.actors(2)
    await b.store.push(lanes("x", "y", count=1))
    await a.begin()
    await a.sql(SQL_PUSH, "y")
    waiting = await stage.blocked(b.store.push(lanes("x", "y", count=1)), b, by=a)
    await a.commit()
    assert seqs(await waiting) == [("x", 2), ("y", 3)]


async def test_pushes_that_name_partitions_in_another_order_do_not_deadlock(stage: Stage) -> None:
    a, b = await stage.actors(2)
    for actor in (a, b):
        await actor.store.push(lanes("x", "y", count=1))
    await a.begin()
    await a.store.push(lanes("x", "y", count=1))
    waiting = await stage.blocked(b.store.push(lanes("y", "x", count=1)), b, by=a)
    await a.commit()
    assert seqs(await waiting) == [("y", 4), ("x", 4)]


async def test_lock_is_waited_for_as_long_as_the_call_says(stage: Stage) -> None:
    a, b = await stage.actors(2)
    await b.store.push(lanes("x", "y", count=1))
    await a.begin()
    await a.sql(SQL_PUSH, "y")
    with pytest.raises(LockTimeout):
        await b.store.push(lanes("x", "y", count=1), lock_seconds=0.01)
    await a.rollback()
    assert seqs(await b.store.push(lanes("x", "y", count=1))) == [("x", 2), ("y", 2)]


async def test_push_wakes_the_groups_that_were_drained(stage: Stage) -> None:
    [a] = await stage.actors(1)
    await a.store.push(lanes("x", "y", count=1))
    for group in ("g", "h"):
        assert len(await pop_all(a.store, "q", group=group)) == 2
    await a.store.push(lanes("x", "y", count=1))
    for group in ("g", "h"):
        assert len(await pop(a.store, "q", group=group, batch=9, partitions=9)) == 2


async def test_queue_that_was_made_anew_is_found(stage: Stage) -> None:
    a, b = await stage.actors(2)
    await a.store.push(lanes("x", "y"))
    await b.store.delete_queue("q")
    assert seqs(await a.store.push(lanes("x", "y", count=1))) == [("x", 1), ("y", 1)]
    assert len(await pop_all(b.store, "q")) == 2


async def test_max_size_that_was_not_known_holds(stage: Stage) -> None:
    a, b = await stage.actors(2)
    await a.store.push(lanes("x", "y", count=1))
    await configure(b.store, "q", max_size=3)
    with pytest.raises(QueueFull):
        await a.store.push(lanes("x", "y", count=1))
    assert (await b.store.depth("q", QUEUE_MODE)).pending == 2


async def test_encryption_that_was_not_known_is_not_left_out(stage: Stage) -> None:
    a, b = await stage.actors(2)
    await a.store.push(lanes("x", "y", count=1))
    await b.sql("update lockstep.queue set encryption = true where name = 'q'")
    with pytest.raises(EncryptionUnavailable):
        await a.store.push(lanes("x", "y", count=1))
    await b.sql("update lockstep.queue set encryption = false where name = 'q'")


async def test_push_stays_behind_operations_that_wait(stage: Stage) -> None:
    [a] = await stage.actors(1)
    await a.store.push(lanes("x", "y", "z", count=1))
    await a.store.queue_operations([NewOperation(lanes("y", count=1))])
    with pytest.raises(OperationPending) as refused:
        await a.store.push(lanes("x", "y", "z", count=1))
    assert refused.value.details["batches"] == [1]
    assert seqs(await a.store.push(lanes("x", "z", count=1))) == [("x", 2), ("z", 2)]


async def test_transaction_that_does_not_see_what_commits_is_refused(stage: Stage) -> None:
    [a] = await stage.actors(1)
    await a.store.push(lanes("x", "y", count=1))
    await a.begin("repeatable_read")
    with pytest.raises(asyncpg.PostgresError, match="READ COMMITTED"):
        await a.sql(
            "select lockstep.push_runs(1, '{1,2}', '{0,0}', '{1,1}', '{0,1}', 1::smallint, '', true, null, null, false)"
        )
    await a.rollback()

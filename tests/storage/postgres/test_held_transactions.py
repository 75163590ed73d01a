"""Each cell of the table in docs/concepts/waiting.md: which call waits for which transaction that is held open."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import pytest_asyncio

from lockstep.config import Config
from lockstep.core.policy import QueueOptions
from lockstep.core.records import (
    Ack,
    DeadLetterFilter,
    MessageFilter,
    PendingRequest,
    Popped,
    Position,
    Renewal,
    Subscription,
)
from lockstep.errors import LockTimeout
from lockstep.storage.postgres.store import PostgresStore
from support.builders import batch, configure, pop, push_tagged

PAGE = Path(__file__).parents[3] / "docs/concepts/waiting.md"
WAITS, GOES_ON = "waits", "goes on"
LOCK_SECONDS = 2.0
"""Long enough to find out who holds what, also on a busy machine."""


@dataclass(frozen=True)
class Scene:
    """What a call works on: a queue of its own, and leases in its partition p."""

    store: PostgresStore
    queue: str
    whole: Popped
    """A lease of the group `whole` on all of the partition."""
    part: Popped
    """A lease of the group `part` on some of it."""


Call = Callable[[Scene], Awaitable[object]]
"""A verb of the store."""


async def _pop_other(scene: Scene) -> None:
    popped = await pop(scene.store, scene.queue, group="idle", partitions=9, batch=99)
    assert "other" in {run.partition for run in popped.runs}


async def _lists(scene: Scene) -> None:
    store, queue = scene.store, scene.queue
    await store.queues()
    await store.groups(queue=queue)
    await store.partitions(queue)
    await store.lag(queue)
    await store.messages(MessageFilter(queue=queue))
    await store.dead_letters(DeadLetterFilter(queue=queue))
    await store.leases(queue=queue)
    await store.overview()
    await store.has_pending([PendingRequest(queue=queue, group="idle")])


def _ack(popped: Popped, seq: int, status: Any = "completed") -> list[Ack]:
    partition_id = popped.runs[0].partition_id
    return [Ack(lease_id=popped.lease_id, partition_id=partition_id, seq=seq, status=status)]


CALLS: dict[str, Call] = {
    "push to the partition": lambda s: s.store.push([batch(s.queue, partition="p")]),
    "push to another partition": lambda s: s.store.push([batch(s.queue, partition="other")]),
    "push that creates a partition": lambda s: s.store.push([batch(s.queue, partition="new")]),
    "pop": _pop_other,
    "first pop of a group": lambda s: pop(s.store, s.queue, group="fresh"),
    "ack of a part": lambda s: s.store.ack(_ack(s.part, 1)),
    "ack of all that is there": lambda s: s.store.ack([Ack(lease_id=s.whole.lease_id)]),
    "failed, released": lambda s: s.store.ack(_ack(s.part, 1, "failed")),
    "dlq": lambda s: s.store.ack(_ack(s.part, 1, "dlq")),
    "renew": lambda s: s.store.renew([Renewal(lease_id=str(s.part.lease_id))]),
    "transaction with an ack and a push elsewhere": lambda s: s.store.transaction(
        _ack(s.part, 1), [batch(f"{s.queue}-out")]
    ),
    "redrive": lambda s: s.store.redrive(DeadLetterFilter(queue=s.queue)),
    "remove_message": lambda s: s.store.remove_message(s.part.runs[0].partition_id, f"{s.queue}-5"),
    "retry_message": lambda s: s.store.retry_message(s.part.runs[0].partition_id, f"{s.queue}-2"),
    "seek": lambda s: s.store.seek(s.queue, "idle", Position("end")),
    "clear": lambda s: s.store.clear(s.queue, scope="all"),
    "delete_group": lambda s: s.store.delete_group("idle", queue=s.queue),
    "configure": lambda s: s.store.configure(s.queue, QueueOptions(lease_seconds=7)),
    "delete_queue": lambda s: s.store.delete_queue(s.queue),
    "lists, lag, messages, has_pending": _lists,
}


Hold = Callable[[Any, Scene, Popped], Awaitable[object]]
"""What a transaction has done that stays open."""

ACK_WHOLE = "select * from lockstep.ack_leases(array[$1::text::uuid], null)"
ACK_PART = """
select * from lockstep.ack_items(
    array[$1::text::uuid], array[$2::bigint], array[1::bigint], array[null], array[null], array['completed'],
    array[null], array[null::timestamptz], null)
"""


def _push(partition: str) -> Hold:
    return lambda connection, scene, _: connection.execute("select lockstep.push($1, $2, '1')", scene.queue, partition)


HOLDS: dict[str, Hold] = {
    "push to the partition": _push("p"),
    "push that created a partition": _push("created"),
    "push, with `max_size`": _push("third"),
    "ack of a part": lambda held, _, lease: held.execute(ACK_PART, lease.lease_id, lease.runs[0].partition_id),
    "ack of all that is there": lambda held, _, lease: held.execute(ACK_WHOLE, lease.lease_id),
}


@pytest_asyncio.fixture
async def store(dsn: str) -> AsyncIterator[PostgresStore]:
    config = Config(lock_timeout_seconds=LOCK_SECONDS, lock_watch_seconds=0.1, pool_connections_max=len(CALLS))
    store = PostgresStore(dsn, config=config)
    yield store
    await store.close()


async def _scene(store: PostgresStore, queue: str, hold: str, call: str) -> tuple[Scene, Popped]:
    """A queue, and a lease of a group that only the transaction uses which is held open."""
    if "max_size" in hold:
        await configure(store, queue, max_size=1_000)
    await push_tagged(store, queue, *[f"{queue}-{number}" for number in range(1, 5)], partition="p")
    await store.push([batch(queue, partition="other"), batch(queue, partition="third"), batch(f"{queue}-out")])
    await store.subscribe(queue, "idle", Subscription())
    dead = await pop(store, queue, group="dead", partition="p", batch=9)
    await store.ack(_ack(dead, 2, "dlq"))
    whole = await pop(store, queue, group="whole", partition="p", batch=9)
    part = await pop(store, queue, group="part", partition="p", batch=3)
    drain = await pop(store, queue, group="drain", partition="p", batch=9)
    if call == "remove_message":
        await push_tagged(store, queue, f"{queue}-5", partition="p")  # one that nobody has leased
    return Scene(store, queue, whole, part), drain


async def _outcome(call: Awaitable[object]) -> str:
    try:
        await call
    except LockTimeout as error:
        return WAITS if error.details.get("holder_application") == "held" else f"names nobody: {error}"
    return GOES_ON


async def outcomes(store: PostgresStore, dsn: str, hold: str) -> dict[str, str]:
    """What becomes of each call while the transaction is open."""
    scenes = [await _scene(store, f"q{number}", hold, call) for number, call in enumerate(CALLS)]
    held = await asyncpg.connect(dsn, server_settings={"application_name": "held"})
    try:
        await held.execute("begin")
        for scene, lease in scenes:
            await HOLDS[hold](held, scene, lease)
        calls = [_outcome(call(scene)) for call, (scene, _) in zip(CALLS.values(), scenes, strict=True)]
        return dict(zip(CALLS, await asyncio.gather(*calls), strict=True))
    finally:
        await held.close()


def _table() -> dict[str, dict[str, str]]:
    """The table of the page, by what is held open and by call."""
    lines = [line for line in PAGE.read_text().splitlines() if re.match(r"\| (call|[a-z].*\| (waits|goes on))", line)]
    rows: Sequence[list[str]] = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    holds = rows[0][1:]
    return {hold: {row[0]: row[1 + place] for row in rows[1:]} for place, hold in enumerate(holds)}


@pytest.mark.parametrize("hold", HOLDS)
async def test_calls_wait_for_what_the_page_says(store: PostgresStore, dsn: str, hold: str) -> None:
    found = await outcomes(store, dsn, hold)
    assert found == _table()[hold]


BLOCKED = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"


async def blocked(store: PostgresStore, sessions: int) -> None:
    """Until so many sessions wait for locks."""
    async with asyncio.timeout(60):
        while (await store.database.fetch("blocked", BLOCKED))[0][0] < sessions:
            pass


async def test_push_that_waits_keeps_the_partitions_before_the_held_one_locked(dsn: str) -> None:
    store = PostgresStore(dsn, config=Config(lock_timeout_seconds=60))
    for partition in ("first", "held", "last"):
        await store.push([batch("q", partition=partition)])
    held = await asyncpg.connect(dsn)
    await held.execute("begin; select lockstep.push('q', 'held', '1')")
    wide = asyncio.create_task(store.push([batch("q", partition=one) for one in ("last", "held", "first")]))
    await blocked(store, 1)
    await store.push([batch("q", partition="last")])
    before = asyncio.create_task(store.push([batch("q", partition="first")]))
    await blocked(store, 2)
    await held.close()
    await asyncio.gather(wide, before)
    await store.close()


def test_page_tells_of_each_call_and_each_transaction() -> None:
    assert list(_table()) == list(HOLDS)
    assert all(list(calls) == list(CALLS) for calls in _table().values())

"""A standby takes over without the last second, or a backup is restored: nothing that a process remembers is used on
another timeline than the one on which it was learned."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from lockstep import Ack, Batch, Engine, NewMessage, PopRequest, open_engine
from lockstep.cli.checks.database import check_database
from lockstep.config import Config
from lockstep.errors import Unavailable
from lockstep.storage.postgres.failures import NotPrimary
from lockstep.storage.postgres.hosts import find_primary, hosts_of
from lockstep.storage.postgres.pool import PoolSettings, connect
from lockstep.storage.postgres.store import PostgresStore
from support.databases import scratch_directory
from support.replication import Pair
from support.until import until

PARTITIONS = 40


@pytest.fixture
def pair() -> Iterator[Pair]:
    with scratch_directory() as folder:
        pair = Pair(folder)
        yield pair
        pair.close()


@asynccontextmanager
async def engine_on(dsn: str) -> AsyncIterator[Engine]:
    async with open_engine(dsn, pool_connections_max=3) as engine:
        yield engine


async def push_each(engine: Engine, name: str) -> None:
    """A message in each of the partitions of this name, in one transaction each, so that ids rise."""
    for number in range(PARTITIONS):
        batch = Batch.of("q", [f"{name}-{number}".encode()], partition=f"{name}-{number}")
        await persistent(lambda batch=batch: engine.push([batch]))


async def persistent(call: Any) -> Any:
    """What clients do when the database is away: ask again."""
    for _ in range(50):
        try:
            return await call()
        except Unavailable:
            await asyncio.sleep(0.05)
    return await call()


async def drained(engine: Engine) -> list[tuple[str, str]]:
    """Partition and payload of all that there is."""
    found = []
    while True:
        [popped] = await persistent(lambda: engine.pop([PopRequest(queue="q", batch=1000, partitions=1000)]))
        if not popped.runs:
            return found
        found += [(run.partition, bytes(payload).decode()) for run in popped.runs for payload in run.columns.payloads]
        await engine.ack([Ack(lease_id=popped.lease_id)])


def misplaced(found: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Messages that are not in the partition after which their payload is named."""
    return [(partition, payload) for partition, payload in found if payload.removeprefix("again-") != partition]


@pytest.mark.parametrize("listens", [False, True])
async def test_process_that_lived_through_a_failover_mixes_nothing_up(pair: Pair, *, listens: bool) -> None:
    async with engine_on(pair.dsn) as old:
        await old.push([Batch.of("q", [b"base"], partition="base")])
        await drained(old)
        if listens:
            await old.wait_pop(PopRequest(queue="q"), 0.01)
        pair.cut()
        await push_each(old, "lost")
        await asyncio.to_thread(pair.fail_over)
        async with engine_on(pair.dsn) as new:
            await push_each(new, "new")
        for number in reversed(range(PARTITIONS)):
            batch = Batch.of("q", [f"again-lost-{number}".encode()], partition=f"lost-{number}")
            await persistent(lambda b=batch: old.push([b]))
        found = await drained(old)
    assert misplaced(found) == []
    assert len(found) == 2 * PARTITIONS


async def test_process_that_lived_through_a_restore_on_the_same_timeline_mixes_nothing_up(pair: Pair) -> None:
    async with engine_on(pair.primary.dsn) as old:
        await old.push([Batch.of("q", [b"base"], partition="base")])
        await drained(old)
        backup = pair.back_up()
        await push_each(old, "lost")
        await asyncio.to_thread(pair.restore, backup)
        async with engine_on(pair.primary.dsn) as new:
            await push_each(new, "new")
        await persistent(lambda: old.push([Batch.of("q", [b"again-lost-39"], partition="lost-39")]))
        found = await drained(old)
    assert misplaced(found) == []
    assert len(found) == PARTITIONS + 1


async def test_crash_that_loses_commits_is_another_timeline(pair: Pair) -> None:
    """With synchronous_commit = off a crash of one process of PostgreSQL takes what was committed last along."""
    store = PostgresStore(pair.primary.dsn)
    await store.open()
    await store.push([Batch.of("q", [b"1"])])
    before = store.context.remembered()
    [[pid]] = await store.database.fetch("pid", "select pg_backend_pid()")
    os.kill(pid, signal.SIGKILL)
    await persistent(store.ping)
    assert store.context.remembered() is not before
    assert store.context.names.get("q") is None
    await store.close()


async def test_connection_that_is_replaced_leaves_what_is_remembered(database_dsn: str) -> None:
    store = PostgresStore(database_dsn)
    await store.open()
    await store.push([Batch.of("q", [b"1"])])
    async with store.database.connection() as connection:
        connection.terminate()
    await store.ping()
    assert store.context.names.get("q") is not None
    await store.close()


async def test_call_that_began_before_the_failover_asks_nothing_after_it(pair: Pair) -> None:
    """The id that its first statement found is another's where its second one would use it."""
    store = PostgresStore(pair.dsn)
    await store.open()
    await store.push([Batch.of("q", [b"1"])])
    original = store.database.on

    async def on(connection: Any, name: str, query: str, *args: Any) -> list[Any]:
        rows = await original(connection, name, query, *args)
        if name == "queue_find":
            await asyncio.to_thread(pair.fail_over)
        return rows

    store.database.on = on  # type: ignore[method-assign]
    with pytest.raises(Unavailable, match="took over during the call"):
        await persistent_until_asked(store)
    store.database.on = original  # type: ignore[method-assign]
    assert [one.name for one in await store.groups(queue="q")] == []
    await store.close()


async def persistent_until_asked(store: PostgresStore) -> None:
    while True:
        try:
            await store.groups(queue="q")
            return
        except Unavailable as error:
            if "took over" in error.message:
                raise


async def test_standby_is_refused_in_words(pair: Pair) -> None:
    async with open_engine(pair.primary.dsn):
        pass
    pair.wait_for_standby()
    with pytest.raises(NotPrimary, match="standby"):
        await connect(pair.standby.dsn, PoolSettings())
    with pytest.raises(Unavailable, match="the server is a standby, which takes no changes"):
        async with open_engine(pair.standby.dsn, connect_attempts_max=1):
            pass


async def test_primary_is_found_whichever_host_comes_first(pair: Pair) -> None:
    hosts = [pair.standby.sockets, pair.primary.sockets]
    for order in (hosts, hosts[::-1]):
        for attributes in ("", "&target_session_attrs=read-write", "&target_session_attrs=any"):
            dsn = f"postgresql://lockstep@/lockstep?host={','.join(map(str, order))}{attributes}"
            link = await connect(dsn, PoolSettings())
            assert link.timeline.number == 1
            await link.close()


def test_every_verb_of_a_store_keeps_to_one_timeline() -> None:
    verbs = PostgresStore("postgresql://nowhere").verbs
    assert {name for name, verb in vars(verbs).items() if not hasattr(verb, "__wrapped__")} == {"counts"}


@pytest.mark.parametrize(
    ("dsn", "hosts"),
    [
        ("postgresql://u:p@h1/db", []),
        ("postgresql://u@/db?host=/run/a", []),
        ("postgresql://u:p%2C@h1,h2:5433/db", [("h1", None), ("h2", 5433)]),
        ("postgresql://h1,h2/db?port=6000", [("h1", 6000), ("h2", 6000)]),
        ("postgresql://u@[::1]:5,h2/db", [("::1", 5), ("h2", None)]),
        ("postgresql://u@/db?host=/run/a,/run/b&port=5,6", [("/run/a", 5), ("/run/b", 6)]),
        ("postgresql://u@%2Frun%2Fa,h2/db", [("/run/a", None), ("h2", None)]),
    ],
)
def test_hosts_of_an_address(dsn: str, hosts: list[Any]) -> None:
    assert hosts_of(dsn) == hosts


@pytest.mark.parametrize("dsn", ["postgresql://h1,/db", "postgresql://h1,h2,h3/db?port=1,2", "postgresql://h1,h2:x/db"])
def test_hosts_that_are_none(dsn: str) -> None:
    with pytest.raises(ValueError, match=r"hosts|invalid|empty"):
        hosts_of(dsn)


async def test_host_that_says_nothing_does_not_keep_the_primary_waiting() -> None:
    abandoned: list[str] = []
    gone = asyncio.Event()

    async def attempt(host: Any) -> str:
        if host[0] == "gone":
            try:
                await gone.wait()
            except asyncio.CancelledError:
                return "too late"
        if host[0] == "standby":
            raise NotPrimary("a standby")
        return str(host[0])

    hosts = [("gone", None), ("standby", None), ("primary", None)]

    def find(hosts: Any) -> Any:
        return find_primary(
            hosts, attempt, number=len, is_newest=lambda _: True, search_seconds=60, abandon=abandoned.append
        )

    assert await find(hosts) == "primary"
    assert abandoned == ["too late"]
    with pytest.raises(NotPrimary):
        await find(hosts[1:2])


async def test_spool_of_which_a_part_went_with_the_old_primary_stops_until_that_is_accepted(
    pair: Pair, tmp_path: Path
) -> None:
    async with open_engine(pair.dsn, spool_dir=str(tmp_path)) as engine:
        await engine.start_buffering()
        await buffer_and_drain(engine, "1")
        pair.cut()
        await buffer_and_drain(engine, "lost")
        pair.fail_over()
        await persistent(engine.ping)
        await persistent(lambda: engine.set_maintenance_mode(push=True))
        await engine.push([NewMessage(queue="q", payload=b"2")])
        await engine.set_maintenance_mode(push=False)
        await until(lambda: engine.counts.buffer is not None and engine.counts.buffer.bytes_lost > 0)
        [receipt] = await engine.push([NewMessage(queue="q", payload=b"3")])
        assert receipt.status == "buffered"
        assert await engine.accept_buffer_loss() > 0
        await until(lambda: engine.counts.buffer is not None and engine.counts.buffer.messages == 0)
        assert [payload for _, payload in await drained(engine)] == ["1", "2", "3"]


async def test_spool_that_is_ahead_is_told_of_before_anything_is_buffered_again(pair: Pair, tmp_path: Path) -> None:
    async with open_engine(pair.dsn, spool_dir=str(tmp_path)) as engine:
        await engine.start_buffering()
        pair.cut()
        await buffer_and_drain(engine, "lost")
        pair.fail_over()
        await persistent(engine.ping)
        await until(lambda: engine.counts.buffer is not None and engine.counts.buffer.bytes_lost > 0)
        assert await engine.accept_buffer_loss() > 0
        await until(lambda: engine.counts.buffer is not None and engine.counts.buffer.bytes_lost == 0)
        await engine.push([NewMessage(queue="q", payload=b"new")])
        assert [payload for _, payload in await drained(engine)] == ["new"]


def test_doctor_looks_at_the_primary_of_several_servers(pair: Pair) -> None:
    address = "postgresql://lockstep@/lockstep?host="
    both = f"{address}{pair.standby.sockets},{pair.primary.sockets}"
    assert writable(both) == [("ok", "yes")]
    assert writable(f"{address}{pair.standby.sockets}") == [("fail", "read-only")]


def writable(dsn: str) -> list[tuple[str, str]]:
    return [(found.level, found.text) for found in check_database(dsn, Config()) if found.subject == "writable"]


async def buffer_and_drain(engine: Engine, payload: str) -> None:
    await engine.set_maintenance_mode(push=True)
    await engine.push([NewMessage(queue="q", payload=payload.encode())])
    await engine.set_maintenance_mode(push=False)
    await until(lambda: engine.counts.buffer is not None and engine.counts.buffer.messages == 0)

"""A standby takes over without the last second, or a backup is restored: no id is given out a second time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import psycopg
import pytest

from lockstep import Ack, Batch, Engine, PopRequest, open_engine
from lockstep.core.records import DeadLetterFilter
from lockstep.errors import Unavailable
from lockstep.storage.postgres.pool import Pool, PoolSettings
from lockstep.storage.postgres.timelines import find_timeline
from support.databases import Databases, scratch_directory
from support.replication import Pair

SEQUENCES = "select sequencename, data_type::text, last_value from pg_sequences where schemaname = 'lockstep'"
JSON_EXACT_MAX = 2**53
INT_MAX = 2**31 - 1


@pytest.fixture
def pair() -> Iterator[Pair]:
    with scratch_directory() as folder:
        pair = Pair(folder)
        yield pair
        pair.close()


@asynccontextmanager
async def connected(dsn: str) -> AsyncIterator[asyncpg.Connection[Any]]:
    connection = await asyncpg.connect(dsn)
    yield connection
    await connection.close()


async def sequences(dsn: str) -> dict[str, int | None]:
    async with connected(dsn) as connection:
        return {name: last for name, _, last in await connection.fetch(SEQUENCES)}


async def ids_of(engine: Engine, name: str) -> dict[str, set[int]]:
    """The ids that a new queue, its partition, a group of it and a dead letter get."""
    await engine.push([Batch.of(name, [b"1"], partition=name)])
    [popped] = await engine.pop([PopRequest(queue=name, group=name)])
    await engine.ack([Ack(lease_id=popped.lease_id, partition_id=popped.runs[0].partition_id, seq=1, status="dlq")])
    [dead] = (await engine.dead_letters(DeadLetterFilter(queue=name))).items
    return {"partition": {popped.runs[0].partition_id}, "dead_letter": {dead.id}}


async def persistent_ids_of(engine: Engine, name: str) -> dict[str, set[int]]:
    """As soon as there is a primary."""
    while True:
        try:
            return await ids_of(engine, name)
        except Unavailable:
            await asyncio.sleep(0.05)


def moved(before: dict[str, int | None], after: dict[str, int | None]) -> set[str]:
    return {name for name in before if before[name] != after[name]}


async def test_failover_gives_no_id_out_again(pair: Pair) -> None:
    async with open_engine(pair.dsn, pool_connections_max=3) as survivor:
        await ids_of(survivor, "base")
        pair.cut()
        lost = await ids_of(survivor, "lost")
        numbers = await sequences(pair.primary.dsn)
        await asyncio.to_thread(pair.fail_over)
        new = await persistent_ids_of(survivor, "new")
        after = await sequences(pair.primary.dsn)
    assert all(min(new[kind]) > max(lost[kind]) for kind in lost)
    assert all((after[name] or 0) > (number or 0) for name, number in numbers.items())


async def test_restored_backup_gives_no_id_out_again(pair: Pair) -> None:
    async with open_engine(pair.primary.dsn, pool_connections_max=3) as survivor:
        await ids_of(survivor, "base")
        backup = pair.back_up()
        lost = await ids_of(survivor, "lost")
        await asyncio.to_thread(pair.restore, backup)
        new = await persistent_ids_of(survivor, "new")
    assert all(min(new[kind]) > max(lost[kind]) for kind in lost)


async def test_second_failover_that_loses_the_first_step_gives_no_id_out_again(database_dsn: str) -> None:
    """The second new primary knows nothing of the first one's step, and takes one from the same place."""
    async with connected(database_dsn) as connection:
        await connection.execute("select lockstep.provide_ids('1')")
        steps = []
        for timeline in ("2", "3"):
            await connection.execute("update lockstep.system set timeline = '1'")
            for name in await sequences(database_dsn):
                await connection.execute(f"alter sequence lockstep.{name} restart")
            assert await connection.fetchval("select lockstep.provide_ids($1)", timeline)
            steps.append(await sequences(database_dsn))
    assert all(first != second for first, second in zip(steps[0].values(), steps[1].values(), strict=True))


async def test_one_of_many_who_meet_a_new_timeline_moves_the_ids(database_dsn: str) -> None:
    async with connected(database_dsn) as connection:
        await connection.execute("select lockstep.provide_ids('another')")
    before = await sequences(database_dsn)
    pools = [Pool(database_dsn, PoolSettings()) for _ in range(5)]
    links = await asyncio.gather(*(pool.acquire() for pool in pools for _ in range(2)))
    after = await sequences(database_dsn)
    step_max = {name: 2 * 65_536 if name.startswith(("queue", "consumer_group")) else 2e12 for name in after}
    assert all(0 < (after[name] or 0) - (before[name] or 0) <= step_max[name] for name in after)
    for index, link in enumerate(links):
        pools[index // 2].release(link)
    for pool in pools:
        await pool.close()


async def test_database_that_was_always_there_keeps_its_ids(database_dsn: str) -> None:
    async with open_engine(database_dsn) as engine:
        first = await ids_of(engine, "q")
        before = await sequences(database_dsn)
    async with open_engine(database_dsn) as engine:
        await engine.ping()
        assert moved(before, await sequences(database_dsn)) == set()
    assert first == {"partition": {1}, "dead_letter": {1}}


async def test_process_without_a_schema_yet_gets_its_connections(databases: Databases) -> None:
    dsn = databases.create()
    pool = Pool(dsn, PoolSettings())
    pool.release(await pool.acquire())
    await pool.close()
    async with open_engine(dsn) as engine:
        await ids_of(engine, "q")
    async with connected(dsn) as connection:
        assert await connection.fetchval("select timeline from lockstep.system") is not None
    databases.drop(dsn)


async def test_application_role_that_comes_first_moves_the_ids(database_dsn: str) -> None:
    """It has the rights of docs/guides/embedded.md, which are none on sequences."""
    role = "lockstep_test_ids"
    with psycopg.connect(database_dsn, autocommit=True) as owner:
        owner.execute("select lockstep.provide_ids('another')")
        owner.execute(f"drop role if exists {role}")
        owner.execute(f"create role {role} login")
        try:
            owner.execute(f"grant lockstep_server to {role}")
            before = await sequences(database_dsn)
            owner.execute(f"set role {role}")
            owner.execute("select lockstep.provide_ids('new')")
            owner.execute("reset role")
            assert moved(before, await sequences(database_dsn)) == set(before)
        finally:
            owner.execute("reset role")
            owner.execute(f"drop role {role}")


async def test_role_that_may_not_use_the_schema_gets_its_connection(database_dsn: str) -> None:
    with psycopg.connect(database_dsn, autocommit=True) as owner:
        owner.execute("create role lockstep_test_no_ids login password 'x'")
        parts = urlsplit(database_dsn)
        netloc = "lockstep_test_no_ids:x@" + parts.netloc.rpartition("@")[2]
        pool = Pool(urlunsplit(parts._replace(netloc=netloc)), PoolSettings())
        try:
            pool.release(await pool.acquire())
            await pool.close()
        finally:
            owner.execute("drop role lockstep_test_no_ids")


async def test_no_number_of_restarts_uses_up_a_sequence(database_dsn: str) -> None:
    async with connected(database_dsn) as connection:
        await connection.execute("select lockstep.provide_ids('0')")
        for name, kind, _ in await connection.fetch(SEQUENCES):
            close = (INT_MAX if kind == "integer" else JSON_EXACT_MAX) - 10_000
            await connection.execute(f"select setval('lockstep.{name}', {close})")
        for number in range(1, 200):
            await connection.execute("select lockstep.provide_ids($1)", str(number))
        after = await connection.fetch(SEQUENCES)
    assert all(last < (INT_MAX if kind == "integer" else JSON_EXACT_MAX) - 5_000 for _, kind, last in after)


async def test_time_zone_of_a_session_makes_no_other_timeline(database_dsn: str) -> None:
    async with connected(database_dsn) as connection:
        found = []
        for zone in ("UTC", "Asia/Tokyo"):
            await connection.execute(f"set timezone = '{zone}'")
            found.append(await find_timeline(connection))
    assert found[0] == found[1]

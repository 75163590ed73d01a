"""A standby has taken over, and the old primary is started again without being fenced: two servers take changes. A
process that knows the new one never uses the old one, and one that does not finds the newest of those that answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from lockstep import Engine, NewMessage, PopRequest, open_engine
from lockstep.cli.checks.database import check_database
from lockstep.config import Config
from lockstep.errors import TimelineBehind, Unavailable
from lockstep.spark.database import Access
from lockstep.storage.postgres.hosts import find_primary
from lockstep.storage.postgres.pool import Pool, PoolSettings
from support.databases import scratch_directory
from support.replication import Node, Pair
from support.until import until

SILENT = "192.0.2.1"
"""An address for documentation: no machine has it."""


@pytest.fixture
def pair() -> Iterator[Pair]:
    with scratch_directory() as folder:
        pair = Pair(folder)
        yield pair
        pair.close()


@pytest.fixture
async def split(pair: Pair) -> Pair:
    """Both servers take changes: `primary` on timeline 2, and `standby`, the old primary, on timeline 1."""
    async with engine_on(pair.primary.dsn) as engine:
        await engine.push([NewMessage(queue="q", payload=b"before")])
    pair.wait_for_standby()
    await asyncio.to_thread(pair.fail_over)
    await asyncio.to_thread(pair.standby.start)
    assert [node.query("select pg_is_in_recovery()") for node in (pair.primary, pair.standby)] == [[(False,)]] * 2
    return pair


@asynccontextmanager
async def engine_on(dsn: str, **settings: Any) -> AsyncIterator[Engine]:
    given = {"pool_connections_max": 3, "connect_attempts_max": 1, **settings}
    async with open_engine(dsn, **given) as engine:
        yield engine


def address(*nodes: Node) -> str:
    return "postgresql://postgres@/lockstep?host=" + ",".join(str(node.sockets) for node in nodes)


def orders(pair: Pair) -> list[str]:
    return [address(pair.primary, pair.standby), address(pair.standby, pair.primary)]


def stored(node: Node) -> int:
    [[count]] = node.query("select count(*) from lockstep.segment")
    return int(count)


async def persistent(call: Any) -> Any:
    for _ in range(200):
        try:
            return await call()
        except Unavailable:
            await asyncio.sleep(0.05)
    return await call()


async def test_process_that_knows_the_new_primary_never_goes_back(pair: Pair) -> None:
    dsn = address(pair.primary, pair.standby)
    async with engine_on(dsn) as engine:
        await engine.push([NewMessage(queue="q", payload=b"1")])
        pair.wait_for_standby()
        await asyncio.to_thread(pair.fail_over)
        await persistent(lambda: engine.push([NewMessage(queue="q", payload=b"2")]))
        await asyncio.to_thread(pair.standby.start)
        before = stored(pair.standby)
        await asyncio.to_thread(pair.primary.stop)
        for _ in range(3):
            with pytest.raises(TimelineBehind, match="timeline 1 of the database") as caught:
                await engine.push([NewMessage(queue="q", payload=b"3")])
        assert caught.value.details["timeline"] == 1
        assert caught.value.details["timeline_seen"] == 2
        await asyncio.to_thread(pair.primary.start)
        await persistent(lambda: engine.push([NewMessage(queue="q", payload=b"4")]))
        assert stored(pair.standby) == before


async def test_another_engine_of_the_process_knows_it_too(split: Pair) -> None:
    """Also after the first one was closed."""
    dsn = address(split.standby, split.primary)
    async with engine_on(dsn):
        pass
    await asyncio.to_thread(split.primary.stop)
    with pytest.raises(TimelineBehind):
        async with engine_on(dsn):
            pass


async def test_idle_connection_is_not_lent_once_the_process_knows_a_later_timeline(split: Pair) -> None:
    """Two pools at one address: one learns what the other does not ask."""
    dsn = address(split.standby, split.primary)
    await asyncio.to_thread(split.primary.stop)
    first, second = Pool(dsn, PoolSettings()), Pool(dsn, PoolSettings(primary_check_seconds=0.01))
    link = await first.acquire()
    assert link.timeline.number == 1
    first.release(link)
    await asyncio.to_thread(split.primary.start)
    async with asyncio.timeout(30):
        while (newer := await second.acquire()).timeline.number == 1:
            second.release(newer)
            await asyncio.sleep(0.01)
    again = await first.acquire()
    assert again.timeline.number == 2
    for pool, used in ((first, again), (second, newer)):
        pool.release(used)
        await pool.close()


async def test_new_process_takes_the_primary_with_the_highest_timeline(split: Pair) -> None:
    for dsn in orders(split):
        async with engine_on(dsn) as engine:
            await engine.push([NewMessage(queue="q", payload=b"new")])
    assert stored(split.standby) == 1
    assert stored(split.primary) == 3


async def test_new_process_waits_for_a_silent_host_only_for_the_time_of_the_setting() -> None:
    """The search ends with the best of those that have answered."""
    abandoned: list[int] = []
    silent = asyncio.Event()

    async def connect(host: Any) -> int:
        if host[0] == SILENT:
            await silent.wait()
        return int(host[0])

    hosts = [(SILENT, None), ("1", None), ("3", None), ("2", None)]

    async def find(*, is_newest: bool, search_seconds: float) -> int:
        return await find_primary(
            hosts,
            connect,
            number=int,
            is_newest=lambda _: is_newest,
            search_seconds=search_seconds,
            abandon=abandoned.append,
        )

    assert await find(is_newest=False, search_seconds=0.01) == 3
    assert sorted(abandoned) == [1, 2]
    assert await find(is_newest=True, search_seconds=86_400) in (1, 2, 3)


async def test_process_that_found_only_the_old_primary_moves_when_the_new_one_is_back(split: Pair) -> None:
    """With it its connection for notifications."""
    dsn = address(split.standby, split.primary)
    await asyncio.to_thread(split.primary.stop)
    async with engine_on(dsn, primary_check_seconds=0.05) as engine:
        await engine.push([NewMessage(queue="q", payload=b"to the old one")])
        waiting = asyncio.ensure_future(persistent(lambda: engine.wait_pop(PopRequest(queue="later"), 60)))
        await asyncio.to_thread(split.primary.start)

        async def is_moved() -> bool:
            await engine.ping()
            return await listeners(split.primary) == 1

        async with asyncio.timeout(30):
            while not await persistent(is_moved):  # noqa: ASYNC110 - there is no event to wait for
                await asyncio.sleep(0.05)
        assert await listeners(split.standby) == 0
        # The process that pushes has nothing in common with the one that waits, other than the database.
        split.primary.query("select lockstep.push('later', 'p', '1')")
        popped = await waiting
        assert popped.runs
        await engine.push([NewMessage(queue="q", payload=b"to the new one")])
    assert stored(split.standby) == 2


async def listeners(node: Node) -> int:
    query = "select count(*) from pg_stat_activity where application_name = 'lockstep-listen'"
    [[count]] = await asyncio.to_thread(node.query, query)
    return int(count)


async def test_restored_backup_on_a_lower_timeline_is_used_by_a_new_process(split: Pair) -> None:
    """It is the only server there is, and nobody in the process knows better."""
    await asyncio.to_thread(split.primary.stop)
    for dsn in (address(split.standby), *orders(split)):
        async with engine_on(dsn) as engine:
            await engine.push([NewMessage(queue="q", payload=b"restored")])
    assert stored(split.standby) == 4


async def test_single_address_that_leads_back_to_the_old_primary_is_refused(split: Pair, tmp_path: Path) -> None:
    """A name or a virtual address of the primary."""
    name = tmp_path / "primary"
    dsn = f"postgresql://postgres@/lockstep?host={name}"
    name.symlink_to(split.primary.sockets)
    async with engine_on(dsn) as engine:
        await engine.push([NewMessage(queue="q", payload=b"1")])
        name.unlink()
        name.symlink_to(split.standby.sockets)
        split.primary.query(
            "select pg_terminate_backend(pid) from pg_stat_activity where application_name ~ 'lockstep'"
        )
        with pytest.raises(TimelineBehind):
            await persistent_but_behind(engine)
        with pytest.raises(TimelineBehind), Access(dsn).connect():
            pass
    assert stored(split.standby) == 1


async def persistent_but_behind(engine: Engine) -> None:
    while True:
        try:
            await engine.push([NewMessage(queue="q", payload=b"2")])
        except TimelineBehind:
            raise
        except Unavailable:
            await asyncio.sleep(0.01)


async def test_server_buffers_while_only_the_old_primary_answers(split: Pair, tmp_path: Path) -> None:
    dsn = address(split.standby, split.primary)
    async with engine_on(dsn, spool_dir=str(tmp_path), breaker_open_seconds=0.05) as engine:
        await engine.start_buffering()
        await asyncio.to_thread(split.primary.stop)
        receipts: list[Any] = []
        while not receipts or receipts[0].status != "buffered":
            receipts = await persistent(lambda: engine.push([NewMessage(queue="q", payload=b"kept")]))
        await asyncio.to_thread(split.primary.start)
        await until(lambda: engine.counts.buffer is not None and engine.counts.buffer.messages == 0)
    assert stored(split.standby) == 1
    assert stored(split.primary) == 2


def test_connections_of_spark_go_to_the_newest_primary(split: Pair) -> None:
    for dsn in orders(split):
        with Access(dsn).connect() as connection:
            assert timeline_of(connection) == 2
        split.primary.stop()
        with pytest.raises(TimelineBehind, match="timeline 1 of the database"), Access(dsn).connect():
            pass
        split.primary.start()


def timeline_of(connection: Any) -> int:
    [number] = connection.execute("select left(pg_walfile_name(pg_current_wal_lsn()), 8)").fetchone()
    return int(number, 16)


def test_doctor_looks_at_the_newest_primary_and_names_the_old_one(split: Pair) -> None:
    for dsn in orders(split):
        found = {one.subject: one for one in check_database(dsn, Config())}
        assert found["primary"].level == "fail"
        assert f"{split.standby.sockets} on timeline 1" in found["primary"].text
        assert f"{split.primary.sockets} on timeline 2" in found["primary"].text
        assert "ence" in (found["primary"].advice or "")
    split.standby.stop()
    levels = {one.subject: one.level for one in check_database(orders(split)[1], Config())}
    assert levels["primary"] == "ok"

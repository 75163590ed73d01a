"""Pools: opened late, shared, closed by the last; and what becomes of errors, time-outs and lost connections."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import psycopg
import pytest
import pytest_asyncio

from lockstep.config import load
from lockstep.errors import InvalidRequest, SchemaTooNew, Unavailable
from lockstep.storage.postgres import pool
from lockstep.storage.postgres.database import ISOLATION_LEVELS, Database
from lockstep.storage.postgres.pool import PoolSettings
from lockstep.storage.postgres.store import PostgresStore
from support.builders import numbers, pop, push_n
from support.databases import Databases, scratch_directory, with_database
from support.relay import Carrier, relay, through

PID = "select pg_backend_pid()"
SESSIONS = """
select count(*) from pg_stat_activity where datname = current_database() and application_name = 'lockstep'
"""


@pytest_asyncio.fixture
async def observer(dsn: str) -> AsyncIterator[asyncpg.Connection[Any]]:
    connection = await asyncpg.connect(dsn)
    yield connection
    await connection.close()


@pytest.fixture
def database(dsn: str) -> Database:
    return Database(dsn)


@pytest.fixture(autouse=True)
def no_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "backoff_seconds", lambda _attempt: 0)


async def ask(database: Database, query: str = PID, *args: Any) -> Any:
    return (await database.fetch("question", query, *args))[0][0]


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(10):
        while not await condition():
            pass


async def until_sessions(observer: asyncpg.Connection[Any], count: int) -> None:
    async def reached() -> bool:
        return bool(await observer.fetchval(SESSIONS) == count)

    await until(reached)


# --- Opening, sharing, closing ------------------------------------------------------------------------------


async def test_pool_is_opened_by_its_first_use(database: Database, observer: asyncpg.Connection[Any]) -> None:
    assert await observer.fetchval(SESSIONS) == 0
    await ask(database)
    assert await observer.fetchval(SESSIONS) == 1
    await database.close()


async def test_database_that_was_never_used_is_closed_without_connecting() -> None:
    await Database("postgresql://nobody@nowhere.invalid/none").close()


async def test_address_may_name_the_database_as_a_parameter(dsn: str) -> None:
    """As libpq does. Without this asyncpg takes the database of the user's name, and psycopg the right one."""
    parts = urlsplit(dsn)
    query = f"{parts.query}&dbname={parts.path[1:]}".lstrip("&")
    for path in ("/", ""):
        address = urlunsplit(parts._replace(path=path, query=query, netloc=parts.netloc or "postgres@"))
        with psycopg.connect(address) as connection:
            assert connection.info.dbname == parts.path[1:]
        link = await pool.connect(address, PoolSettings())
        try:
            assert await link.fetchval("select current_database()") == parts.path[1:]
        finally:
            await link.close()


async def test_two_users_share_one_pool(dsn: str, observer: asyncpg.Connection[Any]) -> None:
    first, second = Database(dsn), Database(dsn)
    assert await ask(first) == await ask(second)
    assert await observer.fetchval(SESSIONS) == 1
    await first.close()
    await second.close()


async def test_users_with_other_settings_have_a_pool_of_their_own(dsn: str) -> None:
    first, second = Database(dsn), Database(dsn, PoolSettings(lock_timeout_seconds=3))
    assert await ask(first) != await ask(second)
    assert [await ask(d, "show lock_timeout") for d in (first, second)] == ["10s", "3s"]
    await first.close()
    await second.close()


async def test_last_user_closes_the_pool(dsn: str, observer: asyncpg.Connection[Any]) -> None:
    first, second = Database(dsn), Database(dsn)
    await ask(first)
    pid = await ask(second)
    await first.close()
    await first.close()  # Closed twice, it counts once.
    assert await ask(second) == pid
    await second.close()
    await until_sessions(observer, 0)


async def test_closed_database_says_so(database: Database) -> None:
    await ask(database)
    await database.close()
    with pytest.raises(Unavailable, match="the store is closed"):
        await ask(database)


async def test_reopened_database_works(database: Database, observer: asyncpg.Connection[Any]) -> None:
    await ask(database)
    await database.close()
    await until_sessions(observer, 0)
    database.reopen()
    assert await observer.fetchval(SESSIONS) == 0
    await ask(database)
    assert await observer.fetchval(SESSIONS) == 1
    await database.close()


async def test_store_can_be_closed_and_opened_again(dsn: str) -> None:
    store = PostgresStore(dsn)
    await store.open()
    await push_n(store, "q")
    await store.close()
    with pytest.raises(Unavailable, match="closed"):
        await store.ping()
    await store.open()
    assert numbers(await pop(store, "q")) == [1]
    await store.close()


async def test_first_uses_at_once_open_one_pool(dsn: str, observer: asyncpg.Connection[Any]) -> None:
    users = [Database(dsn, PoolSettings(connections_max=2)) for _ in range(10)]
    await asyncio.gather(*(ask(user) for user in users))
    assert await observer.fetchval(SESSIONS) <= 2
    await asyncio.gather(*(user.close() for user in users))


async def test_connections_are_as_many_as_allowed(dsn: str) -> None:
    database = Database(dsn, PoolSettings(connections_max=3))
    pids = await asyncio.gather(*(ask(database, f"{PID} from pg_sleep(0.01)") for _ in range(12)))
    assert 1 <= len(set(pids)) <= 3
    await database.close()


async def test_pool_that_stays_exhausted_is_unavailable(dsn: str) -> None:
    database = Database(dsn, PoolSettings(connections_max=1, connect_timeout_seconds=0.1))
    async with database.connection():
        with pytest.raises(Unavailable) as failure:
            await ask(database)
    assert not failure.value.message.endswith(": ")
    await ask(database)
    await database.close()


# --- Connecting -----------------------------------------------------------------------------------------------


@pytest.fixture
def socket_directory() -> Iterator[Path]:
    with scratch_directory() as path:
        yield path


class Retries(logging.Handler):
    """Notes that a connection attempt failed and will be repeated."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.attempts: list[int] = []
        self.seen = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, "action", None) == "connect_retried":
            self.attempts.append(record.__dict__["attempt"])
            self.seen.set()


@pytest.fixture
def retries() -> Iterator[Retries]:
    handler = Retries()
    level = pool.logger.level
    pool.logger.setLevel(logging.INFO)
    pool.logger.addHandler(handler)
    yield handler
    pool.logger.removeHandler(handler)
    pool.logger.setLevel(level)


async def test_server_that_comes_up_later_is_waited_for(
    dsn: str, socket_directory: Path, retries: Retries, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "backoff_seconds", lambda _attempt: 0.01)
    settings = PoolSettings(connect_attempts_max=1000)
    database = Database(through(dsn, socket_directory), settings)
    asking = asyncio.ensure_future(ask(database))
    async with asyncio.timeout(10):
        await retries.seen.wait()
    async with relay(dsn, socket_directory):
        assert await asking > 0
        await database.close()


async def test_server_that_stays_away_is_unavailable_after_the_attempts(
    dsn: str, socket_directory: Path, retries: Retries
) -> None:
    database = Database(through(dsn, socket_directory), PoolSettings(connect_attempts_max=3))
    with pytest.raises(Unavailable, match="the database cannot be reached"):
        await ask(database)
    assert retries.attempts == [1, 2]
    await database.close()


async def test_database_that_failed_to_connect_connects_later(dsn: str, socket_directory: Path) -> None:
    database = Database(through(dsn, socket_directory), PoolSettings(connect_attempts_max=1))
    with pytest.raises(Unavailable):
        await ask(database)
    async with relay(dsn, socket_directory):
        assert await ask(database) > 0
        await database.close()


async def test_store_without_a_server_is_unavailable(dsn: str, socket_directory: Path) -> None:
    store = PostgresStore(through(dsn, socket_directory))
    with pytest.raises(Unavailable, match="the database cannot be reached"):
        await store.open()
    with pytest.raises(Unavailable, match="the database cannot be reached"):
        await store.ping()
    await store.close()


async def test_database_that_does_not_exist_is_unavailable_at_once(dsn: str, retries: Retries) -> None:
    database = Database(with_database(dsn, "no_such_database"))
    with pytest.raises(Unavailable, match="no_such_database"):
        await ask(database)
    assert retries.attempts == []
    await database.close()


# --- Time-outs ------------------------------------------------------------------------------------------------


async def test_statement_that_takes_too_long_is_unavailable(dsn: str) -> None:
    database = Database(dsn, PoolSettings(statement_timeout_seconds=0.05))
    with pytest.raises(Unavailable, match=r"did not answer in time \(statement_timeout_seconds\)"):
        await ask(database, "select pg_sleep(5)")
    assert await ask(database, "select 1") == 1
    await database.close()


async def test_transaction_has_its_own_statement_timeout(database: Database) -> None:
    async def work(connection: asyncpg.Connection[Any]) -> None:
        await database.on(connection, "nap", "select pg_sleep(5)")

    with pytest.raises(Unavailable, match="statement_timeout_seconds"):
        await database.transaction(work, statement_timeout_seconds=0.05)
    assert await ask(database, "show statement_timeout") == "30s"
    await database.close()


async def test_lock_that_is_not_to_be_had_is_unavailable(database: Database, observer: asyncpg.Connection[Any]) -> None:
    async def work(connection: asyncpg.Connection[Any]) -> None:
        await database.on(connection, "lock", "select pg_advisory_xact_lock(42)")

    async with observer.transaction():
        await observer.execute("select pg_advisory_xact_lock(42)")
        with pytest.raises(Unavailable, match=r"a lock could not be acquired in time \(lock_timeout_seconds\)"):
            await database.transaction(work, lock_timeout_seconds=0.05)
    await database.transaction(work, lock_timeout_seconds=0.05)
    assert await ask(database, "show lock_timeout") == "10s"
    await database.close()


# --- Transactions -----------------------------------------------------------------------------------------------


@pytest.fixture
def quick_deadlocks(database_dsn: str) -> str:
    """A database whose deadlocks are found after 20 ms instead of a second; it has a table of two rows."""
    with psycopg.connect(database_dsn, autocommit=True) as connection:
        name = connection.info.dbname
        connection.execute(f'alter database "{name}" set deadlock_timeout = 20'.encode())
        connection.execute("create table public.balance (id int primary key, amount int not null)")
        connection.execute("insert into public.balance values (1, 50), (2, 50)")
    return database_dsn


async def test_statements_are_read_committed_whatever_the_database_says(database_dsn: str) -> None:
    with psycopg.connect(database_dsn, autocommit=True) as connection:
        name = connection.info.dbname
        connection.execute(f'alter database "{name}" set default_transaction_isolation = serializable'.encode())
    database = Database(database_dsn)
    assert await ask(database, "show transaction_isolation") == "read committed"
    await database.close()


@pytest.mark.parametrize(
    "address", ["postgresql://app:pa:ss@w@rd@host:x/db", "postgresql://:::/", "postgresql://h/?sslmode=x"]
)
async def test_address_that_is_none_is_refused_without_repeating_it(address: str) -> None:
    database = Database(address)
    with pytest.raises(InvalidRequest, match="the address of the database is not like") as refused:
        await ask(database)
    assert "rd" not in refused.value.message.replace("word", "")
    await database.close()


async def test_unknown_isolation_level_is_an_invalid_request(database: Database) -> None:
    async def work(_connection: asyncpg.Connection[Any]) -> None:
        raise AssertionError("not called")

    with pytest.raises(InvalidRequest, match=r"isolation must be one of read_committed, .* not 'chaos'"):
        await database.transaction(work, isolation="chaos")


@pytest.mark.parametrize("isolation", ISOLATION_LEVELS)
async def test_transaction_runs_at_its_isolation_level(database: Database, isolation: str) -> None:
    async def work(connection: asyncpg.Connection[Any]) -> Any:
        return (await database.on(connection, "level", "show transaction_isolation"))[0][0]

    assert await database.transaction(work, isolation=isolation) == isolation.replace("_", " ")
    await database.close()


async def test_transaction_that_fails_changes_nothing_and_is_not_repeated(database: Database) -> None:
    attempts = 0

    async def work(connection: asyncpg.Connection[Any]) -> None:
        nonlocal attempts
        attempts += 1
        await database.on(connection, "table", "create table public.left_behind (n int)")
        raise ValueError("ours")

    with pytest.raises(ValueError, match="ours"):
        await database.transaction(work)
    assert attempts == 1
    assert await ask(database, "select to_regclass('public.left_behind')") is None
    await database.close()


async def test_deadlock_is_retried(quick_deadlocks: str) -> None:
    """A takes row 1, B takes row 2; A wants row 2, B wants row 1: one is told of the deadlock, and does it again."""
    database = Database(quick_deadlocks, PoolSettings(transaction_attempts_max=100))
    both_hold_one = asyncio.Barrier(2)
    errors: list[BaseException] = []
    attempts = {1: 0, 2: 0}

    async def take(connection: asyncpg.Connection[Any], row: int) -> None:
        await connection.execute("update public.balance set amount = amount + 1 where id = $1", row)

    async def cross(first: int, second: int) -> None:
        async def work(connection: asyncpg.Connection[Any]) -> None:
            attempts[first] += 1
            await take(connection, first)
            if attempts[first] == 1:
                await both_hold_one.wait()
            try:
                await take(connection, second)
            except asyncpg.DeadlockDetectedError as error:
                errors.append(error)
                raise

        await database.transaction(work)

    await asyncio.gather(cross(1, 2), cross(2, 1))
    # Without backoff the one that was told may be the first at its row again, and so collide again.
    assert len(errors) >= 1
    assert sum(attempts.values()) == 2 + len(errors)
    assert [row[0] for row in await database.fetch("q", "select amount from public.balance")] == [52, 52]
    await database.close()


async def test_serialization_failure_is_retried(quick_deadlocks: str) -> None:
    """Both see that there is enough, and both take from a different row: one of them has to look again."""
    database = Database(quick_deadlocks)
    both_have_looked = asyncio.Barrier(2)
    attempts = {1: 0, 2: 0}

    async def withdraw(row: int) -> bool:
        async def work(connection: asyncpg.Connection[Any]) -> bool:
            attempts[row] += 1
            total = await connection.fetchval("select sum(amount) from public.balance")
            if attempts[row] == 1:
                await both_have_looked.wait()
            if total < 100:
                return False
            await connection.execute("update public.balance set amount = amount - 60 where id = $1", row)
            return True

        return await database.transaction(work, isolation="serializable")

    assert sorted(await asyncio.gather(withdraw(1), withdraw(2))) == [False, True]
    assert sum(attempts.values()) >= 3
    await database.close()


@pytest.mark.parametrize("state", ["40001", "40P01"])
async def test_conflict_that_goes_on_is_unavailable_after_the_attempts(dsn: str, state: str) -> None:
    database = Database(dsn, PoolSettings(transaction_attempts_max=4))
    attempts = 0

    async def work(connection: asyncpg.Connection[Any]) -> None:
        nonlocal attempts
        attempts += 1
        await connection.execute(f"do $$ begin raise exception 'in the way' using errcode = '{state}'; end $$")

    with pytest.raises(Unavailable, match="kept conflicting with others: in the way"):
        await database.transaction(work)
    assert attempts == 4
    await database.close()


# --- The hook ---------------------------------------------------------------------------------------------------


async def test_hook_sees_name_duration_and_error_of_every_query(dsn: str) -> None:
    seen: list[tuple[str, float, BaseException | None]] = []
    database = Database(dsn, on_query=lambda *query: seen.append(query))

    async def work(connection: asyncpg.Connection[Any]) -> None:
        await database.on(connection, "inner", "select 1")

    await database.fetch("nap", "select pg_sleep(0.02)")
    await database.transaction(work)
    with pytest.raises(asyncpg.DivisionByZeroError):
        await database.fetch("broken", "select 1 / 0")
    assert [name for name, _, _ in seen] == ["nap", "inner", "broken"]
    assert 0.02 <= seen[0][1] < 10
    assert 0 < seen[1][1] < 10
    assert [type(error) for _, _, error in seen] == [type(None), type(None), asyncpg.DivisionByZeroError]
    await database.close()


async def test_hook_sees_every_attempt(dsn: str) -> None:
    seen: list[BaseException | None] = []
    database = Database(dsn, PoolSettings(transaction_attempts_max=3), on_query=lambda *query: seen.append(query[2]))
    with pytest.raises(Unavailable):
        await database.fetch("conflict", "do $$ begin raise exception 'x' using errcode = '40001'; end $$")
    assert [getattr(error, "sqlstate", None) for error in seen] == ["40001"] * 3
    await database.close()


async def test_hook_of_a_store_sees_its_queries_by_name(dsn: str) -> None:
    names: list[str] = []
    store = PostgresStore(dsn, on_query=lambda name, _seconds, _error: names.append(name))
    await push_n(store, "q")
    await pop(store, "q", auto_ack=True)
    await store.ping()
    assert {"push", "pop", "ping"} <= set(names)
    await store.close()


# --- Connections that end ---------------------------------------------------------------------------------------


async def end(observer: asyncpg.Connection[Any], pid: int) -> None:
    """Kill a session, and wait until it is gone."""
    assert await observer.fetchval("select pg_terminate_backend($1)", pid)

    async def gone() -> bool:
        return bool(await observer.fetchval("select count(*) = 0 from pg_stat_activity where pid = $1", pid))

    await until(gone)


async def test_idle_connection_that_was_killed_is_replaced(
    database: Database, observer: asyncpg.Connection[Any]
) -> None:
    pid = await ask(database)
    await end(observer, pid)
    assert await ask(database) != pid
    await database.close()


async def test_call_whose_connection_is_killed_is_unavailable_and_the_next_one_works(
    database: Database, observer: asyncpg.Connection[Any]
) -> None:
    pid = await ask(database)
    napping = asyncio.ensure_future(ask(database, "select pg_sleep(30)"))

    async def asleep() -> bool:
        return bool(await observer.fetchval("select wait_event = 'PgSleep' from pg_stat_activity where pid = $1", pid))

    await until(asleep)
    await end(observer, pid)
    with pytest.raises(Unavailable):
        await napping
    assert await ask(database) != pid
    await database.close()


async def test_transaction_whose_connection_is_killed_is_unavailable(
    database: Database, observer: asyncpg.Connection[Any]
) -> None:
    async def work(connection: asyncpg.Connection[Any]) -> None:
        await end(observer, await connection.fetchval(PID))
        await database.on(connection, "after", "select 1")

    with pytest.raises(Unavailable):
        await database.transaction(work)
    assert await ask(database, "select 1") == 1
    await database.close()


async def test_call_that_is_cancelled_leaves_the_pool_usable(dsn: str, observer: asyncpg.Connection[Any]) -> None:
    database = Database(dsn, PoolSettings(connections_max=1))
    pid = await ask(database)
    napping = asyncio.ensure_future(ask(database, "select pg_sleep(30)"))

    async def asleep() -> bool:
        return bool(await observer.fetchval("select wait_event = 'PgSleep' from pg_stat_activity where pid = $1", pid))

    await until(asleep)
    napping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await napping
    assert await ask(database, "select 1") == 1
    await database.close()


async def test_transaction_that_is_cancelled_holds_no_lock(dsn: str, observer: asyncpg.Connection[Any]) -> None:
    database = Database(dsn, PoolSettings(connections_max=1))
    inside = asyncio.Event()

    async def work(connection: asyncpg.Connection[Any]) -> None:
        await connection.execute("select pg_advisory_xact_lock(42)")
        inside.set()
        await asyncio.Event().wait()

    working = asyncio.ensure_future(database.transaction(work))
    await inside.wait()
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    async with observer.transaction():
        assert await observer.fetchval("select pg_try_advisory_xact_lock(42)")
    await database.close()


async def test_lost_call_says_that_it_may_have_been_applied(
    database: Database, observer: asyncpg.Connection[Any]
) -> None:
    async def work(connection: asyncpg.Connection[Any]) -> None:
        await end(observer, await connection.fetchval(PID))
        await database.on(connection, "after", "select 1")

    with pytest.raises(Unavailable) as caught:
        await database.transaction(work)
    assert caught.value.details == {"unreachable": True, "maybe_applied": True}
    with pytest.raises(Unavailable) as caught:
        await _too_slow(database)
    assert caught.value.details == {}
    await database.close()


async def _too_slow(database: Database) -> None:
    async def work(connection: asyncpg.Connection[Any]) -> None:
        await connection.fetch("select pg_sleep(30)")

    await database.transaction(work, statement_timeout_seconds=0.01)


async def test_connection_to_a_standby_is_given_up(database: Database) -> None:
    """After a failover a connection may lead to what was the primary."""
    pid = await ask(database)

    async def work(connection: asyncpg.Connection[Any]) -> None:
        await connection.execute("set transaction read only")
        await connection.execute("create table lockstep.never (n int)")

    with pytest.raises(Unavailable, match="standby") as caught:
        await database.transaction(work)
    assert caught.value.details["unreachable"]
    assert await ask(database) != pid
    await database.close()


# --- Breaker --------------------------------------------------------------------------------------------------

GUARDED = PoolSettings(breaker_failures_max=3, breaker_open_seconds=0.01, connections_max=2)


async def test_calls_fail_at_once_while_the_database_is_away_until_a_probe_finds_it(
    dsn: str, socket_directory: Path, retries: Retries
) -> None:
    told: list[bool] = []
    database = Database(through(dsn, socket_directory), GUARDED)
    database.watch(told.append)
    with pytest.raises(Unavailable, match="cannot be reached") as caught:
        await ask(database)
    assert caught.value.details == {"unreachable": True}
    assert (retries.attempts, told) == ([1, 2], [False])
    retries.attempts.clear()
    for _ in range(20):
        with pytest.raises(Unavailable):
            await ask(database)
    assert retries.attempts == [], "nobody but the probe tries"
    async with relay(dsn, socket_directory):

        async def back() -> bool:
            await asyncio.sleep(0.001)
            return told == [False, True]

        await until(back)
        assert await ask(database) > 0
        assert database.counts.open == 1, "the probe's connection is used"
        await database.close()


async def test_those_who_wait_for_a_connection_fail_when_the_database_is_away(dsn: str, socket_directory: Path) -> None:
    database = Database(through(dsn, socket_directory), GUARDED)
    outcomes = await asyncio.gather(*[ask(database) for _ in range(20)], return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {Unavailable}
    assert (database.counts.open, database.counts.waiters) == (0, 0)
    await database.close()


async def test_attempts_that_fail_now_and_then_open_no_breaker(dsn: str, socket_directory: Path) -> None:
    told: list[bool] = []
    database = Database(through(dsn, socket_directory), PoolSettings(breaker_failures_max=2, connect_attempts_max=1))
    database.watch(told.append)
    for _ in range(3):
        with pytest.raises(Unavailable):
            await ask(database)
        async with relay(dsn, socket_directory):
            await ask(database)
            await close_connections(database)
        (socket_directory / ".s.PGSQL.5432").unlink(missing_ok=True)
    assert told == []
    await database.close()


async def close_connections(database: Database) -> None:
    async with database.connection() as connection:
        connection.terminate()


async def test_server_without_a_free_connection_is_there(database_dsn: str) -> None:
    with psycopg.connect(database_dsn, autocommit=True) as connection:
        connection.execute("create role crowded login connection limit 0")
        try:
            parts = urlsplit(database_dsn)
            crowded = urlunsplit(parts._replace(netloc=f"crowded@{parts.netloc.rpartition('@')[2]}"))
            told: list[bool] = []
            settings = PoolSettings(breaker_failures_max=1, connect_attempts_max=2)
            database = Database(crowded, settings)
            database.watch(told.append)
            with pytest.raises(Unavailable):
                await ask(database)
            assert told == []
            await database.close()
        finally:
            connection.execute("drop role crowded")


async def test_closed_database_leaves_no_probe_behind(dsn: str, socket_directory: Path) -> None:
    database = Database(through(dsn, socket_directory), GUARDED)
    with pytest.raises(Unavailable):
        await ask(database)
    await database.close()
    assert [task for task in asyncio.all_tasks() if task.get_name() == "lockstep-probe"] == []


SILENT = PoolSettings(breaker_failures_max=2, breaker_open_seconds=0.01, breaker_silent_seconds=0.05, connections_max=2)


async def test_server_that_hangs_is_away_until_it_answers(dsn: str, socket_directory: Path) -> None:
    """Its sockets stay open, so that nothing fails by itself."""
    told: list[bool] = []
    awake = asyncio.Event()
    awake.set()
    database = Database(through(dsn, socket_directory), SILENT)
    database.watch(told.append)
    async with relay(dsn, socket_directory, awake=awake):
        await asyncio.gather(ask(database), ask(database))
        awake.clear()
        [lost, other] = await asyncio.gather(ask(database), ask(database), return_exceptions=True)
        for error in (lost, other):
            assert isinstance(error, Unavailable)
            assert error.details == {"unreachable": True, "maybe_applied": True}
        assert told == [False]
        with pytest.raises(Unavailable) as caught:
            await ask(database)
        assert caught.value.details == {"unreachable": True}, "it was not asked"
        awake.set()

        async def back() -> bool:
            await asyncio.sleep(0.001)
            return told == [False, True]

        await until(back)
        assert await ask(database) > 0
        await database.close()


async def test_who_waits_for_a_connection_learns_that_the_server_hangs(dsn: str, socket_directory: Path) -> None:
    """Though it takes longer to find that out than one waits for a connection: what was not asked may be buffered."""
    awake = asyncio.Event()
    awake.set()
    settings = replace(SILENT, connections_max=1, breaker_silent_seconds=0.1, connect_timeout_seconds=0.2)
    database = Database(through(dsn, socket_directory), settings)
    async with relay(dsn, socket_directory, awake=awake):
        await ask(database)
        awake.clear()
        [lost, waited] = await asyncio.gather(ask(database), ask(database), return_exceptions=True)
        assert isinstance(lost, Unavailable)
        assert isinstance(waited, Unavailable)
        assert waited.details == {"unreachable": True}
        awake.set()
        await database.close()


async def test_call_that_needs_a_connection_does_not_wait_out_the_attempt_at_a_server_that_hangs(
    dsn: str, socket_directory: Path
) -> None:
    awake = asyncio.Event()
    settings = replace(SILENT, connect_timeout_seconds=3600, breaker_failures_max=1000)
    database = Database(through(dsn, socket_directory), settings)
    async with relay(dsn, socket_directory, awake=awake), asyncio.timeout(30):
        with pytest.raises(Unavailable, match="breaker_silent_seconds") as caught:
            await ask(database)
        assert caught.value.details == {"unreachable": True}, "it was not asked"
        awake.set()
        await database.close()


async def test_calls_to_a_server_that_hangs_fail_without_a_breaker_too(dsn: str, socket_directory: Path) -> None:
    told: list[bool] = []
    awake = asyncio.Event()
    awake.set()
    settings = replace(SILENT, breaker_failures_max=0, connect_timeout_seconds=3600)
    database = Database(through(dsn, socket_directory), settings)
    database.watch(told.append)
    async with relay(dsn, socket_directory, awake=awake), asyncio.timeout(30):
        await ask(database)
        awake.clear()
        with pytest.raises(Unavailable) as caught:
            await ask(database)
        assert caught.value.details == {"unreachable": True, "maybe_applied": True}
        with pytest.raises(Unavailable) as caught:
            await ask(database)
        assert caught.value.details == {"unreachable": True}, "there was no connection to ask on"
        awake.set()
        assert await ask(database) > 0
        assert told == []
        await database.close()


@pytest.mark.parametrize("failures_max", [0, 2])
async def test_those_who_wait_for_a_connection_do_not_ask_a_server_that_hangs_one_after_the_other(
    dsn: str, socket_directory: Path, monkeypatch: pytest.MonkeyPatch, failures_max: int
) -> None:
    awake = asyncio.Event()
    awake.set()
    attempts: list[float] = []
    connect = pool.connect

    async def counted(given: str, settings: PoolSettings, **how: Any) -> Any:
        attempts.append(settings.connect_timeout_seconds)
        return await connect(given, settings, **how)

    settings = replace(SILENT, breaker_failures_max=failures_max, connections_max=1, breaker_open_seconds=3600)
    settings = replace(settings, breaker_silent_seconds=0.4, connect_timeout_seconds=3600)
    database = Database(through(dsn, socket_directory), settings)
    async with relay(dsn, socket_directory, awake=awake), asyncio.timeout(30):
        await ask(database)
        awake.clear()
        monkeypatch.setattr(pool, "connect", counted)
        lost, *waited = await asyncio.gather(*[ask(database) for _ in range(9)], return_exceptions=True)
        assert [getattr(error, "details", error) for error in waited] == [{"unreachable": True}] * 8
        assert isinstance(lost, Unavailable)
        assert len(attempts) == 1, "only the question whether it is there"
        assert database.counts.waiters == 0
        awake.set()
        await database.close()


def impatient(database: Database, settings: PoolSettings) -> pool.Pool:
    """Other settings for a pool that has its connection, however long that took."""
    found = database._join()
    found._settings = settings
    found._look()  # by the settings of before it would be too late
    return found


async def test_call_that_comes_while_a_server_is_found_to_hang_has_its_own_time(
    dsn: str, socket_directory: Path
) -> None:
    """It did not wait for long enough when the others failed, and asks once more."""
    awake = asyncio.Event()
    awake.set()
    settings = replace(SILENT, breaker_failures_max=0, breaker_silent_seconds=3600, connections_max=1)
    settings = replace(settings, connect_timeout_seconds=3600)
    database = Database(through(dsn, socket_directory), settings)
    async with relay(dsn, socket_directory, awake=awake), asyncio.timeout(60):
        await ask(database)
        awake.clear()
        found = impatient(database, replace(settings, breaker_silent_seconds=1))
        loop_time, now = found._time, found._time()
        found._time = lambda: now
        first = asyncio.ensure_future(ask(database))
        await until_counted(lambda: len(found._used))
        now += 0.6
        found._look()
        asked = found._asking
        assert asked is not None
        second = asyncio.ensure_future(ask(database))
        await until_counted(lambda: database.counts.waiters)
        now += 0.4
        await asyncio.wait((first,))
        found._time = loop_time
        outcomes = await asyncio.gather(first, second, return_exceptions=True)
        details = [getattr(error, "details", error) for error in outcomes]
        assert details == [{"unreachable": True, "maybe_applied": True}, {"unreachable": True}]
        assert found._asking is not asked
        awake.set()
        await database.close()


async def until_counted(count: Callable[[], int]) -> None:
    async def reached() -> bool:
        await asyncio.sleep(0.001)
        return count() == 1

    await until(reached)


async def hold_up(seconds: float) -> None:
    """Make every turn of the event loop late."""
    while True:
        time.sleep(seconds)  # noqa: ASYNC251
        await asyncio.sleep(0)


@pytest.mark.parametrize("late_seconds", [0, 0.03])
async def test_server_that_takes_no_connection_is_found_to_hang_after_its_own_time(
    dsn: str, socket_directory: Path, late_seconds: float
) -> None:
    """An attempt at a connection may have less time than an answer, and a process with much to do is late itself."""
    awake = asyncio.Event()
    awake.set()
    settings = replace(SILENT, breaker_failures_max=0, breaker_silent_seconds=3600)
    database = Database(through(dsn, socket_directory), settings)
    async with relay(dsn, socket_directory, awake=awake), asyncio.timeout(60):
        await ask(database)
        impatient(database, replace(settings, breaker_silent_seconds=0.2, connect_timeout_seconds=0.01))
        awake.clear()
        busy = asyncio.create_task(hold_up(late_seconds))
        try:
            with pytest.raises(Unavailable) as caught:
                await ask(database)
        finally:
            busy.cancel()
        assert caught.value.details["unreachable"]
        awake.set()
        await database.close()


async def test_server_that_answers_others_is_asked_nothing(dsn: str, observer: asyncpg.Connection[Any]) -> None:
    """One call that waits is no reason, as long as there are answers."""
    database = Database(dsn, replace(SILENT, breaker_silent_seconds=3600))
    await observer.execute("select pg_advisory_lock(43)")
    waiting = asyncio.ensure_future(ask(database, "select 7 from pg_advisory_xact_lock(43)"))
    await ask(database)
    found = database._join()
    now = found._time
    found._time = lambda: now() + 1799  # nearly half of the time
    await ask(database)
    found._time = lambda: now() + 2000
    found._look()
    assert found._asking is None, "it was heard 201 seconds ago"
    found._time = lambda: now() + 4000
    found._look()
    assert found._asking is not None
    await found._asking
    assert not found.is_away
    await observer.execute("select pg_advisory_unlock(43)")
    assert await waiting == 7
    await database.close()


async def test_idle_connection_that_answers_shows_that_the_server_is_there(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that is too busy to start a process for a new connection is not away."""
    database = Database(dsn, replace(SILENT, breaker_silent_seconds=3600))
    await asyncio.gather(*[ask(database, f"{PID} from pg_sleep(0.05)") for _ in range(2)])
    found = database._join()
    assert database.counts.idle == 2

    async def never(*_: object, **__: object) -> Any:
        await asyncio.Event().wait()

    monkeypatch.setattr(pool, "connect", never)
    found._find_out()
    assert found._asking is not None
    async with asyncio.timeout(30):
        await found._asking
    assert not found.is_away
    assert database.counts.idle == 2
    await database.close()


async def test_idle_connections_to_a_server_that_hangs_are_given_up(dsn: str, socket_directory: Path) -> None:
    awake = asyncio.Event()
    awake.set()
    database = Database(through(dsn, socket_directory), SILENT)
    async with relay(dsn, socket_directory, awake=awake):
        await asyncio.gather(ask(database), ask(database))
        awake.clear()
        with pytest.raises(Unavailable):
            await ask(database)
        with pytest.raises(Unavailable) as caught:
            await ask(database)
        assert "maybe_applied" not in caught.value.details, "the other connection was not used"
        awake.set()
        await database.close()


async def test_call_that_takes_long_is_no_outage(dsn: str, observer: asyncpg.Connection[Any]) -> None:
    told: list[bool] = []
    database = Database(dsn, SILENT)
    database.watch(told.append)
    await observer.execute("select pg_advisory_lock(43)")
    waiting = asyncio.ensure_future(ask(database, "select 7 from pg_advisory_xact_lock(43)"))
    attempts = "select count(*) from pg_stat_database where false"
    for _ in range(20):
        await asyncio.sleep(0.01)
        await observer.execute(attempts)
    await observer.execute("select pg_advisory_unlock(43)")
    assert await waiting == 7
    assert told == []
    await database.close()
    assert [task for task in asyncio.all_tasks() if task.get_name() == "lockstep-silence"] == []


# --- A server that comes later --------------------------------------------------------------------------------


async def test_store_with_a_breaker_is_opened_without_a_server_and_migrates_it_when_it_comes(
    databases: Databases, socket_directory: Path
) -> None:
    dsn = await asyncio.to_thread(databases.create)
    config = load({"breaker_open_seconds": 0.01}, environ={})
    store = PostgresStore(through(dsn, socket_directory), config=config, breaker=True)
    await store.open()
    told: list[bool] = []
    store.watch(there=told.append, changed=lambda: None)
    assert told == [False], "it is told at once"
    with pytest.raises(Unavailable):
        await store.system()
    async with relay(dsn, socket_directory):

        async def back() -> bool:
            await asyncio.sleep(0.001)
            return told == [False, True]

        await until(back)
        await store.ready()
        await push_n(store, "orders", 3)
        assert numbers(await pop(store, "orders", batch=3)) == [1, 2, 3]
        await store.close()
    await asyncio.to_thread(databases.drop, dsn)


async def test_store_with_a_breaker_does_not_wait_for_what_people_have_to_see_to(dsn: str) -> None:
    store = PostgresStore(with_database(dsn, "no_such_database"), breaker=True)
    with pytest.raises(Unavailable, match="no_such_database"):
        await store.open()
    await store.close()


async def test_server_that_comes_with_a_newer_schema_stays_away_and_says_why(
    database_dsn: str, socket_directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with psycopg.connect(database_dsn) as connection:
        connection.execute("insert into lockstep.migration (version, name) values (9999, 'from the future')")
    config = load({"breaker_open_seconds": 0.01}, environ={})
    store = PostgresStore(through(database_dsn, socket_directory), config=config, breaker=True)
    await store.open()
    async with relay(database_dsn, socket_directory):

        async def told() -> bool:
            await asyncio.sleep(0.001)
            return any("9999" in getattr(record, "error", "") for record in caplog.records)

        await until(told)
        with pytest.raises(SchemaTooNew):
            await store.ping()
        await store.close()


async def test_connection_to_a_machine_that_is_gone_ends_by_itself(dsn: str) -> None:
    carrier = Carrier(dsn)
    server = await asyncio.start_server(carrier, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    user = urlsplit(dsn).username
    database = Database(f"postgresql://{user}@{host}:{port}{urlsplit(dsn).path}?sslmode=disable")
    async with database.connection() as connection:
        opened = connection._transport.get_extra_info("socket")
        assert opened.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 10_000
    await database.close()
    await carrier.close(server)


# --- What went wrong ----------------------------------------------------------------------------------------


async def test_error_is_not_its_own_cause(database: Database) -> None:
    with pytest.raises(asyncpg.DivisionByZeroError) as caught:
        await ask(database, "select 1 / 0")
    assert caught.value.__cause__ is None


async def test_connection_that_the_server_ends_in_mid_transaction_is_lost(
    database: Database, observer: asyncpg.Connection[Any]
) -> None:
    """The server ends a transaction that is idle for too long, as it does to a processor that hangs."""

    async def work(connection: asyncpg.Connection[Any]) -> None:
        pid = await connection.fetchval(f"{PID} from set_config('idle_in_transaction_session_timeout', '1ms', true)")
        while await observer.fetchval("select 1 from pg_stat_activity where pid = $1", pid):
            pass
        await database.on(connection, "after", "select 1")

    with pytest.raises(Unavailable) as caught:
        await database.transaction(work)
    assert caught.value.details["maybe_applied"]
    assert database.counts.open == 0


async def test_connection_of_which_the_driver_has_lost_track_is_lost(database: Database) -> None:
    """asyncpg says so between the server's last word and the end of the connection."""

    async def work(_connection: asyncpg.Connection[Any]) -> None:
        raise asyncpg.InternalClientError("cannot switch to state 11; another operation (2) is in progress")

    with pytest.raises(Unavailable) as caught:
        await database.transaction(work)
    assert (caught.value.details["unreachable"], database.counts.open) == (True, 0)

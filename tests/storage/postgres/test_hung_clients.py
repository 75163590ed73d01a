"""Processes that hang: what they have locked is free again, and every connection asks for that."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest

from lockstep.config import Config
from lockstep.errors import LockTimeout, Unavailable
from lockstep.spark.database import Access
from lockstep.storage.postgres.database import Database
from lockstep.storage.postgres.pool import PoolSettings
from lockstep.storage.postgres.session import limits
from lockstep.storage.postgres.store import PostgresStore
from support.builders import numbers, pop, push_n
from support.embedded_tools import python_environment

CLIENT = Path(__file__).parents[2] / "support/hanging_client.py"
SETTINGS = (
    "statement_timeout",
    "lock_timeout",
    "idle_in_transaction_session_timeout",
    "client_connection_check_interval",
)
KEEPALIVES = ("tcp_keepalives_idle", "tcp_keepalives_interval", "tcp_keepalives_count", "tcp_user_timeout")

THERE = "select count(*) from pg_stat_activity where pid = %s"


@contextmanager
def hanging_client(dsn: str, *, idle_seconds: float) -> Iterator[int]:
    """A process that was stopped in the middle of a transaction which holds the partition p of q; its session."""
    command = [sys.executable, str(CLIENT), dsn, "q", "p", str(idle_seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=python_environment()) as process:
        try:
            assert process.stdout is not None
            session = int(process.stdout.readline())
            os.kill(process.pid, signal.SIGSTOP)
            yield session
        finally:
            process.kill()


async def test_partition_of_a_process_that_hangs_is_free_after_the_time_out(dsn: str) -> None:
    store = PostgresStore(dsn, config=Config(lock_timeout_seconds=60, statement_timeout_seconds=60))
    await push_n(store, "q", partition="p")
    with hanging_client(dsn, idle_seconds=0.2) as session:
        await push_n(store, "q", partition="p", start=2)
        there = "select count(*) from pg_stat_activity where pid = $1"
        assert await store.database.fetch("there", there, session) == [(0,)]
    assert numbers(await pop(store, "q", batch=10)) == [1, 2]
    await store.close()


async def test_partition_of_a_process_that_hangs_is_held_until_the_time_out(dsn: str) -> None:
    store = PostgresStore(dsn, config=Config(lock_timeout_seconds=0.1))
    await push_n(store, "q", partition="p")
    with hanging_client(dsn, idle_seconds=60), pytest.raises(LockTimeout):
        await push_n(store, "q", partition="p", start=2)
    await store.close()


async def test_sessions_of_a_store_have_limits(dsn: str) -> None:
    store = PostgresStore(
        dsn,
        config=Config(
            statement_timeout_seconds=20,
            lock_timeout_seconds=7,
            idle_transaction_timeout_seconds=6,
            client_check_seconds=3,
        ),
    )
    shown = [(await store.database.fetch("show", f"show {name}"))[0][0] for name in SETTINGS]
    assert shown == ["20s", "7s", "6s", "3s"]
    await store.close()


async def test_limits_of_sessions_have_defaults(dsn: str) -> None:
    store, database = PostgresStore(dsn), Database(dsn, PoolSettings())
    for one in (store.database, database):
        shown = [(await one.fetch("show", f"show {name}"))[0][0] for name in SETTINGS]
        assert shown == ["30s", "10s", "5s", "2s"]
    apart = await store.database.connect_apart("lockstep-listen")
    assert [await apart.fetchval(f"show {name}") for name in SETTINGS] == ["30s", "10s", "5s", "2s"]
    await apart.close()
    await database.close()
    await store.close()


def test_sessions_of_spark_have_limits(dsn: str) -> None:
    with Access(dsn=dsn).connect() as connection:
        shown = [connection.execute(f"show {name}").fetchone() for name in SETTINGS]  # type: ignore[call-overload]
    assert shown == [("5min",), ("1min",), ("1min",), ("2s",)]


async def test_server_looks_whether_the_machine_of_a_client_is_there(dsn: str) -> None:
    """Over TCP: a Unix socket has no such settings, and the server shows 0 for them."""
    database = Database(dsn, PoolSettings())
    rows = await database.fetch("sources", "select name from pg_settings where source = 'client'")
    assert {name for [name] in rows} >= set(KEEPALIVES)
    await database.close()
    with Access(dsn=dsn).connect() as connection:
        found = connection.execute("select name from pg_settings where source = 'session'").fetchall()
    assert {name for [name] in found} >= set(KEEPALIVES)


def test_machine_that_is_gone_is_noticed_within_the_keepalive_time() -> None:
    given = {"statement_timeout_seconds": 1, "lock_timeout_seconds": 1, "idle_transaction_timeout_seconds": 1}
    set_ = limits(**given, client_check_seconds=0, keepalive_seconds=12)
    assert [set_[name] for name in KEEPALIVES] == ["6", "2", "3", "12000"]
    assert set_["client_connection_check_interval"] == "0"
    assert not set(KEEPALIVES) & limits(**given, client_check_seconds=0, keepalive_seconds=0).keys()


async def test_process_that_hung_in_a_transaction_learns_that_it_was_ended(dsn: str) -> None:
    database = Database(dsn, PoolSettings(idle_transaction_timeout_seconds=0.05))
    observer = await asyncpg.connect(dsn)

    async def hang(connection: asyncpg.Connection[Any]) -> None:
        session = await connection.fetchval("select pg_backend_pid()")
        while await observer.fetchval("select count(*) from pg_stat_activity where pid = $1", session):
            pass
        await database.on(connection, "after", "select 1")

    with pytest.raises(Unavailable) as caught:
        await database.transaction(hang)
    assert caught.value.details["unreachable"]
    assert (await database.fetch("next", "select 1")) == [(1,)]
    await observer.close()
    await database.close()


LAST_WORD = b"SFATAL\0VFATAL\0C25P03\0Mterminating connection due to idle-in-transaction timeout\0\0"


async def test_call_between_the_last_word_of_the_server_and_the_end_of_its_connection_goes_to_another(dsn: str) -> None:
    """What asyncpg then raises tells of a mistake in itself. It has sent nothing."""
    database = Database(dsn, PoolSettings(connections_max=1))
    async with database.connection() as connection:
        connection._protocol.data_received(b"E" + (len(LAST_WORD) + 4).to_bytes(4, "big") + LAST_WORD)
        session = connection.get_server_pid()
    [(other,)] = await database.fetch("after", "select pg_backend_pid()")
    assert other != session
    await database.close()


def test_spark_process_that_hung_in_a_transaction_is_told_why(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKSTEP_SPARK_IDLE_TRANSACTION_TIMEOUT_SECONDS", "0.05")
    with pytest.raises(Unavailable, match="idle_transaction_timeout_seconds"):
        hang_on_spark(dsn)


def hang_on_spark(dsn: str) -> None:
    with (
        psycopg.connect(dsn, autocommit=True) as observer,
        Access(dsn=dsn).connect() as connection,
        connection.transaction(),
    ):
        session = connection.info.backend_pid
        while observer.execute(THERE, [session]).fetchone() != (0,):
            pass
        connection.execute("select 1")

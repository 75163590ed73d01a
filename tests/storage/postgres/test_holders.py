"""A call that waited for a lock in vain says who holds it, and what."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import asyncpg
import pytest
import pytest_asyncio

from lockstep.config import Config
from lockstep.core.records import Ack
from lockstep.errors import LockTimeout, Unavailable
from lockstep.storage.postgres.holders import Holders
from lockstep.storage.postgres.store import PostgresStore
from support.builders import batch, configure, pop, push_n
from support.databases import Databases

QUICK = Config(lock_timeout_seconds=0.3, lock_watch_seconds=0.02)
PUSH = "select lockstep.push($1, $2, '1')"


@pytest_asyncio.fixture
async def store(dsn: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(dsn, config=QUICK)
    await push_n(store, "q", partition="p")
    yield store
    await store.close()


@pytest_asyncio.fixture
async def holder(dsn: str) -> AsyncIterator[asyncpg.Connection[Any]]:
    """Somebody's session, in a transaction."""
    connection = await asyncpg.connect(dsn, server_settings={"application_name": "billing"})
    await connection.execute("begin")
    yield connection
    await connection.close()


async def timed_out(store: PostgresStore, *, queue: str = "q", partition: str = "p") -> LockTimeout:
    with pytest.raises(LockTimeout) as caught:
        await push_n(store, queue, partition=partition)
    return caught.value


async def test_push_names_the_session_that_holds_the_partition(
    store: PostgresStore, holder: asyncpg.Connection[Any]
) -> None:
    await holder.execute("select lockstep.push('q', 'p', '1')")
    error = await timed_out(store)
    user = await holder.fetchval("select current_user")
    assert (error.code, error.status) == ("lock_timeout", 503)
    assert error.details["held"] == "partition 'p' of queue 'q'"
    assert error.details["holder_pid"] == holder.get_server_pid()
    assert error.details["holder_application"] == "billing"
    assert error.details["holder_user"] == user
    assert error.details["holder_state"] == "idle in transaction"
    assert 0 <= error.details["holder_seconds"] < 60
    assert error.message.startswith(
        f"a lock could not be acquired in time (lock_timeout_seconds): session {holder.get_server_pid()} of user "
        f"{user} (billing) holds partition 'p' of queue 'q'; its transaction has been open for "
    )
    assert str(error) == error.message


async def test_last_statement_of_the_holder_is_shown(store: PostgresStore, holder: asyncpg.Connection[Any]) -> None:
    await holder.execute("select lockstep.push('q', 'p', '1')")
    await holder.execute(f"select 1 as {'x' * 60},\n  2 as {'y' * 60}, 3 as {'z' * 60}, 4 as {'w' * 60}")
    error = await timed_out(store)
    assert error.details["holder_statement"].startswith(f"select 1 as {'x' * 60}, 2 as {'y' * 60}")
    assert len(error.details["holder_statement"]) == 200


async def test_session_behind_others_is_told_who_is_at_the_front(
    dsn: str, store: PostgresStore, holder: asyncpg.Connection[Any]
) -> None:
    """The first to wait blocks the next: neither holds anything."""
    await holder.execute("select lockstep.push('q', 'p', '1')")
    patient = PostgresStore(dsn, config=Config(lock_timeout_seconds=60))
    waiting = asyncio.ensure_future(push_n(patient, "q", partition="p"))
    # Not on the holder's session: what a transaction has seen of pg_stat_activity it sees until it ends.
    blocked = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
    async with asyncio.timeout(30):
        while (await store.database.fetch("blocked", blocked))[0][0] == 0:
            pass
    errors = await asyncio.gather(timed_out(store), timed_out(store))
    assert [error.details["holder_pid"] for error in errors] == [holder.get_server_pid()] * 2
    assert [error.details["held"] for error in errors] == ["partition 'p' of queue 'q'"] * 2
    await holder.execute("rollback")
    await waiting
    await patient.close()


async def test_queue_with_a_limit_is_named(store: PostgresStore, holder: asyncpg.Connection[Any]) -> None:
    await configure(store, "limited", max_size=10)
    await push_n(store, "limited", partition="p")
    await holder.execute(PUSH.replace("$1", "'limited'").replace("$2", "'other'"))
    error = await timed_out(store, queue="limited")
    assert error.details["held"] == "queue 'limited'"


async def test_cursor_is_named(store: PostgresStore, holder: asyncpg.Connection[Any]) -> None:
    popped = await pop(store, "q", group="g")
    await holder.execute("select 1 from lockstep.cursor for update")
    with pytest.raises(LockTimeout) as caught:
        await store.ack([Ack(lease_id=popped.lease_id)])
    assert caught.value.details["held"] == "the cursor of group 'g' in partition 'p' of queue 'q'"


async def test_name_that_another_session_creates_is_waited_for(
    store: PostgresStore, holder: asyncpg.Connection[Any]
) -> None:
    await holder.execute("select lockstep.push('fresh', 'p', '1')")
    error = await timed_out(store, queue="fresh")
    assert error.details["held"] == "a name that it creates, or a row that it changes"
    assert error.details["holder_pid"] == holder.get_server_pid()


async def test_table_and_advisory_lock_are_named(store: PostgresStore, holder: asyncpg.Connection[Any]) -> None:
    await holder.execute("lock table lockstep.partition in access exclusive mode")
    assert (await timed_out(store)).details["held"] == "the table lockstep.partition"
    await holder.execute("rollback; begin; select pg_advisory_xact_lock(42)")
    with pytest.raises(LockTimeout) as caught:
        await store.database.fetch("lock", "select pg_advisory_xact_lock(42)")
    assert caught.value.details["held"] == "an advisory lock"


async def test_transaction_says_who_holds_what(store: PostgresStore, holder: asyncpg.Connection[Any]) -> None:
    popped = await pop(store, "q")
    await holder.execute("select lockstep.push('q', 'p', '1')")
    with pytest.raises(LockTimeout) as caught:
        await store.transaction([Ack(lease_id=popped.lease_id)], [batch("q", partition="p")])
    assert caught.value.details["holder_pid"] == holder.get_server_pid()


async def test_statement_that_waited_too_long_says_for_whom(dsn: str, holder: asyncpg.Connection[Any]) -> None:
    config = Config(lock_timeout_seconds=60, statement_timeout_seconds=0.3, lock_watch_seconds=0.02)
    store = PostgresStore(dsn, config=config)
    await push_n(store, "q", partition="p")
    await holder.execute("select lockstep.push('q', 'p', '1')")
    with pytest.raises(Unavailable, match=r"statement_timeout_seconds\): session") as caught:
        await push_n(store, "q", partition="p")
    assert caught.value.details["holder_pid"] == holder.get_server_pid()
    await store.close()


async def test_call_that_gets_no_connection_says_what_the_others_wait_for(
    dsn: str, holder: asyncpg.Connection[Any]
) -> None:
    config = Config(pool_connections_max=1, connect_timeout_seconds=0.3, lock_watch_seconds=0.02)
    store = PostgresStore(dsn, config=config)
    await push_n(store, "q", partition="p")
    await holder.execute("select lockstep.push('q', 'p', '1')")
    waiting = asyncio.ensure_future(push_n(store, "q", partition="p"))
    await asyncio.sleep(0)
    with pytest.raises(Unavailable, match=r"no connection .* became free .*: calls wait because session") as caught:
        await store.ping()
    assert caught.value.details["holder_pid"] == holder.get_server_pid()
    await holder.execute("rollback")
    await waiting
    await store.close()


async def test_holder_is_logged_once(
    store: PostgresStore, holder: asyncpg.Connection[Any], caplog: pytest.LogCaptureFixture
) -> None:
    await holder.execute("select lockstep.push('q', 'p', '1')")
    await asyncio.gather(timed_out(store), timed_out(store))
    held = [record for record in caplog.records if getattr(record, "action", None) == "lock_held"]
    assert [record.__dict__["holder_pid"] for record in held] == [holder.get_server_pid()]


async def test_call_that_takes_long_without_a_lock_is_told_nothing(store: PostgresStore) -> None:
    with pytest.raises(Unavailable) as caught:
        await store.database.transaction(
            lambda connection: connection.execute("select pg_sleep(5)"), statement_timeout_seconds=0.2
        )
    assert caught.value.details == {}


async def test_wait_that_is_over_is_forgotten(store: PostgresStore, holder: asyncpg.Connection[Any]) -> None:
    await holder.execute("select lockstep.push('q', 'p', '1')")
    await timed_out(store)
    assert store.database._join().holders.any() is None


@pytest_asyncio.fixture
async def stranger(databases: Databases) -> AsyncIterator[tuple[str, str]]:
    """A database, as a role that sees little of the sessions of others."""
    dsn = databases.clone()
    role = f"lockstep_test_{uuid4().hex[:12]}"
    owner = await asyncpg.connect(dsn)
    await owner.execute(
        f"create role {role} login password 'x';"
        f"grant usage on schema lockstep to {role};"
        f"grant all on all tables in schema lockstep to {role};"
        f"grant all on all sequences in schema lockstep to {role};"
        f"grant execute on all functions in schema lockstep to {role};"
    )
    yield dsn, role
    await owner.execute(f"drop owned by {role}; drop role {role}")
    await owner.close()
    databases.drop(dsn)


async def test_role_without_pg_read_all_stats_is_told_less(stranger: tuple[str, str]) -> None:
    dsn, role = stranger
    store = PostgresStore(dsn.replace("postgresql://postgres@", f"postgresql://{role}:x@"), config=QUICK)
    await push_n(store, "q", partition="p")
    assert (await store.database.fetch("user", "select current_user"))[0][0] == role
    holder = await asyncpg.connect(dsn, server_settings={"application_name": "billing"})
    await holder.execute("begin; select lockstep.push('q', 'p', '1')")
    error = await timed_out(store)
    assert error.details == {
        "held": "partition 'p' of queue 'q'",
        "holder_pid": holder.get_server_pid(),
        "holder_user": await holder.fetchval("select current_user"),
        "holder_application": "billing",
    }
    assert error.message.endswith("(billing) holds partition 'p' of queue 'q'")
    await holder.close()
    await store.close()


# --- Answers that come late -----------------------------------------------------------------------------------

HELD_ROW = (7, 99, "app", "billing", "idle in transaction", 1.0, "select 1", "advisory", None, None)
"""Session 7 waits for session 99."""


class LateAnswer:
    """The question who holds what, answered when the test says so."""

    def __init__(self) -> None:
        self.answered = asyncio.Event()
        self.holders = Holders(self)
        self.look = self.holders.look([7])

    async def __call__(self, *_: Any) -> list[Any]:
        await self.answered.wait()
        return [HELD_ROW]


async def test_call_that_gives_up_waits_for_an_answer_on_its_way() -> None:
    late = LateAnswer()
    asked = asyncio.create_task(late.holders.of(7))
    await asyncio.sleep(0)
    late.answered.set()
    holder = await asked
    assert holder is not None
    assert holder.application == "billing"


async def test_answer_about_a_call_that_has_ended_is_dropped() -> None:
    """The session may be in another call by then, which waits for nobody."""
    late = LateAnswer()
    late.holders.forget(7)
    late.answered.set()
    await late.look
    assert late.holders.any() is None
    assert await late.holders.of(7) is None

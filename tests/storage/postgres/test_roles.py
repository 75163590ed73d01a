"""The roles of a database server: what each of them reaches in the schema, and that it reaches nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import asyncpg
import psycopg
import pytest
import pytest_asyncio

from lockstep import push_within
from lockstep.core.messages import Batch, NewSchedule, Occupancy
from lockstep.core.records import Ack
from lockstep.storage.postgres import sql
from lockstep.storage.postgres.migrate import ROLES, missing_roles
from lockstep.storage.postgres.store import PostgresStore
from support.builders import batch, configure, numbers, pop, push_n
from support.databases import Databases

PRODUCERS_CALL = set(
    [
        "push",
        "resolve",
        "mark_expiring",
        "push_segments",
        "push_run",
        "push_runs",
        "schedule",
        "balanced_partition",
        "balanced_over",
        "partition_balance",
        "occupancy",
        "notify_pushed",
        "find_queue",
        "find_partition",
        "lock_for_transaction",
        "schema_state",
    ]
)
CONSUMERS_CALL = set(
    [
        "find_queue",
        "find_partition",
        "find_group",
        "group_room",
        "queues_by_priority",
        "subscribe",
        "note_first_poll",
        "use_first_poll",
        "place_for_pop",
        "await_slice",
        "place_slice",
        "pop",
        "next",
        "shared_pop",
        "load_segments",
        "ack_leases",
        "ack_items",
        "shared_complete",
        "renew",
        "hold_leases",
        "due_in",
        "due_in_labels",
        "lock_for_transaction",
        "take_forwards",
        "note_copies",
        "schema_state",
        "resolve",
        "mark_expiring",
        "push_segments",
        "push_run",
        "push_runs",
        "occupancy",
    ]
)
READERS_CALL = set(
    [
        "may_read",
        "as_text",
        "message_id",
        "read_stored",
        "read_last_seq",
        "read_next_seq",
        "read_first_run",
        "read_run_of",
        "read_cursors",
        "read_cursor",
        "read_done_upto",
        "read_behind",
        "read_held",
        "read_head_run",
        "read_due_again",
        "schema_state",
    ]
)
READ_NOTHING = {"as_text", "message_id"}
"""They work with what they are given, with the rights of their caller."""
ADMINS_CALL = (
    PRODUCERS_CALL
    | CONSUMERS_CALL
    | READERS_CALL
    | {"configure", "seek", "delete_queue", "delete_group", "stop_encryption"}
)
VIEWS = {"messages", "queues", "partitions", "lag", "groups", "leases", "stuck_partitions", "dead_letters"}
READS_VIEWS = {(view, "v", "SELECT") for view in VIEWS}
_RELATIONS = """
select c.relname, c.relkind::text, p as privilege from pg_class c
cross join unnest(case when c.relkind = 'S' then array['USAGE', 'SELECT', 'UPDATE']
    else array['SELECT', 'INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'REFERENCES', 'TRIGGER'] end) p
where c.relnamespace = 'lockstep'::regnamespace and c.relkind in ('r', 'p', 'v', 'm', 'S')
  and case when c.relkind = 'S' then has_sequence_privilege($1, c.oid, p) else has_table_privilege($1, c.oid, p) end
"""
_FUNCTIONS = """
select distinct p.proname from pg_proc p
where p.pronamespace = 'lockstep'::regnamespace and has_function_privilege($1, p.oid, 'EXECUTE')
"""


def as_role(dsn: str, role: str) -> str:
    return f"{dsn}{'&' if '?' in dsn else '?'}options=-c%20role%3D{role}"


@pytest.fixture
def dsn(databases: Databases) -> str:
    return databases.emptied()


@pytest_asyncio.fixture
async def catalog(dsn: str) -> AsyncIterator[asyncpg.Connection[Any]]:
    connection = await asyncpg.connect(dsn)
    yield connection
    await connection.close()


async def reached(catalog: asyncpg.Connection[Any], role: str) -> tuple[set[tuple[str, str, str]], set[str]]:
    relations = {tuple(row) for row in await catalog.fetch(_RELATIONS, role)}
    return relations, {row[0] for row in await catalog.fetch(_FUNCTIONS, role)}  # type: ignore[return-value]


async def test_roles_are_there_and_may_not_log_in(catalog: asyncpg.Connection[Any]) -> None:
    assert await missing_roles(catalog) == []
    rows = await catalog.fetch(
        "select rolcanlogin, rolsuper, rolcreaterole, rolcreatedb, rolbypassrls from pg_roles where rolname = any ($1)",
        list(ROLES),
    )
    assert {tuple(row) for row in rows} == {(False,) * 5}


async def test_public_has_nothing(catalog: asyncpg.Connection[Any]) -> None:
    query = """
    select p.oid::regprocedure::text from pg_proc p
    cross join lateral aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
    where p.pronamespace = 'lockstep'::regnamespace and a.grantee = 0
    union all
    select c.oid::regclass::text from pg_class c cross join lateral aclexplode(c.relacl) a
    where c.relnamespace = 'lockstep'::regnamespace and a.grantee = 0
    union all
    select n.nspname::text from pg_namespace n cross join lateral aclexplode(n.nspacl) a
    where n.nspname = 'lockstep' and a.grantee = 0
    """
    assert await catalog.fetch(query) == []


async def test_producer_reaches_no_table_and_what_pushes_call(catalog: asyncpg.Connection[Any]) -> None:
    relations, functions = await reached(catalog, "lockstep_producer")
    assert relations == set()
    assert functions == PRODUCERS_CALL
    assert not await catalog.fetchval("select has_schema_privilege('lockstep_producer', 'lockstep', 'CREATE')")


async def test_consumer_reaches_no_table_and_what_pops_call(catalog: asyncpg.Connection[Any]) -> None:
    relations, functions = await reached(catalog, "lockstep_consumer")
    assert relations == set()
    assert functions == CONSUMERS_CALL
    assert not await catalog.fetchval("select has_schema_privilege('lockstep_consumer', 'lockstep', 'CREATE')")


async def test_admin_reaches_the_views_and_functions(catalog: asyncpg.Connection[Any]) -> None:
    relations, functions = await reached(catalog, "lockstep_admin")
    assert relations == READS_VIEWS
    assert functions == ADMINS_CALL
    assert not await catalog.fetchval("select has_schema_privilege('lockstep_admin', 'lockstep', 'CREATE')")


async def test_server_cannot_give_rights(catalog: asyncpg.Connection[Any]) -> None:
    relations, _ = await reached(catalog, "lockstep_server")
    assert {privilege for name, _, privilege in relations if name == "role_rule"} == {"SELECT"}


async def test_reader_reaches_the_views_and_what_they_call(catalog: asyncpg.Connection[Any]) -> None:
    relations, functions = await reached(catalog, "lockstep_reader")
    assert relations == READS_VIEWS
    assert functions == READERS_CALL
    volatile = await catalog.fetch(
        "select proname from pg_proc where pronamespace = 'lockstep'::regnamespace and provolatile = 'v'"
    )
    assert functions & {row[0] for row in volatile} == set()
    assert not await catalog.fetchval("select has_schema_privilege('lockstep_reader', 'lockstep', 'CREATE')")


async def test_what_runs_with_the_owners_rights_has_a_fixed_search_path(catalog: asyncpg.Connection[Any]) -> None:
    rows = await catalog.fetch(
        "select proname, proconfig from pg_proc where pronamespace = 'lockstep'::regnamespace and prosecdef"
    )
    assert {row["proname"] for row in rows} >= ADMINS_CALL - READ_NOTHING
    for row in rows:
        assert "search_path=pg_catalog, pg_temp" in row["proconfig"], row["proname"]


ATTACKS = [
    "select * from lockstep.queue",
    "select * from lockstep.messages",
    "delete from lockstep.segment",
    "select lockstep.configure('q', null, null, '{}', null)",
    "select lockstep.delete_queue('q', null)",
    "select lockstep.stop_encryption('q', null)",
    "select lockstep.create_queue('q', null, null, now())",
    "select nextval('lockstep.segment_id_seq')",
    "create table lockstep.mine (n int)",
    "create function lockstep.mine() returns int language sql as 'select 1'",
    "create or replace function lockstep.check_name(_what text, _name text) returns void language sql as ''",
    "alter function lockstep.push_run security invoker",
    "create trigger t before insert on lockstep.segment for each row execute function lockstep.spark_unstage()",
    "drop schema lockstep cascade",
    "set role lockstep_server",
]


@pytest.mark.parametrize("role", ["lockstep_producer", "lockstep_consumer"])
@pytest.mark.parametrize("attack", ATTACKS)
async def test_application_is_refused(catalog: asyncpg.Connection[Any], attack: str, role: str) -> None:
    await catalog.execute(f"set session authorization {role}")
    with pytest.raises(asyncpg.PostgresError) as caught:
        await catalog.execute(attack)
    assert isinstance(caught.value, asyncpg.InsufficientPrivilegeError)
    await catalog.execute("reset session authorization")


async def test_objects_of_the_session_do_not_shadow_ours(catalog: asyncpg.Connection[Any]) -> None:
    """A function with the owner's rights must not run what its caller has put in the way of its names."""
    await catalog.execute("set session authorization lockstep_producer")
    await catalog.execute(
        """
        create temp table queue (id int, name text);
        create temp table stolen (who text);
        create function pg_temp.clock_timestamp() returns timestamptz language sql as
            $$insert into stolen values (current_user); select now()$$;
        create function pg_temp.coalesce_int(int) returns int language sql as $$select 1$$;
        create function pg_temp.cardinality(anyarray) returns int language sql as
            $$insert into stolen values (current_user); select 0$$;
        create function pg_temp.same(int, int) returns boolean language sql as
            $$insert into stolen values (current_user); select true$$;
        create operator pg_temp.= (leftarg = int, rightarg = int, procedure = pg_temp.same);
        set search_path = pg_temp, pg_catalog, lockstep;
        """
    )
    assert await catalog.fetchval("select lockstep.push('q', 'p', '1')") is not None
    assert await catalog.fetch("select * from stolen") == []
    await catalog.execute("reset session authorization; reset search_path")
    assert await catalog.fetchval("select count(*) from lockstep.messages where queue = 'q'") == 1


async def test_producer_pushes_in_sql_and_within_its_transactions(dsn: str) -> None:
    store = PostgresStore(dsn)
    await configure(store, "limited", max_size=5)
    later = Batch("q", "Default", batch("q", 1, start=4).columns, NewSchedule(delay_seconds=60))
    with psycopg.connect(as_role(dsn, "lockstep_producer")) as connection:
        connection.execute("select lockstep.push('q', 'Default', '{\"n\": 1}')")
        push_within(connection, [batch("q", 1, start=2)])
        push_within(connection, [batch("q", 1, start=3)])
        push_within(connection, [later, batch("other", 200, partition="p")])
        tagged = batch("limited", 1, transaction_ids=["t"])
        push_within(connection, [tagged])
        again = push_within(connection, [tagged])
        assert again.duplicates == 1
        assert again.occupancy["limited"] == Occupancy(1, 4)
    assert numbers(await pop(store, "q", batch=9)) == [1, 2, 3]
    assert len((await pop(store, "other", batch=500)).payloads()) == 200
    await store.close()


async def test_server_role_is_enough_for_a_store(dsn: str) -> None:
    store = PostgresStore(as_role(dsn, "lockstep_server"))
    await store.open()
    await push_n(store, "q", 3)
    popped = await pop(store, "q", batch=9)
    assert numbers(popped) == [1, 2, 3]
    await store.ack([Ack(lease_id=popped.lease_id, status="completed")])
    assert await store.verify() == []
    await store.close()


async def test_reader_reads_the_views(dsn: str) -> None:
    store = PostgresStore(dsn)
    await push_n(store, "q", 3)
    await pop(store, "q")
    await store.close()
    with psycopg.connect(as_role(dsn, "lockstep_reader"), autocommit=True) as connection:
        names = connection.execute(
            "select c.relname from pg_class c where c.relnamespace = 'lockstep'::regnamespace and c.relkind = 'v'"
        ).fetchall()
        assert {name for (name,) in names} == VIEWS
        for name in VIEWS - {"stuck_partitions", "dead_letters"}:
            assert connection.execute(f"select * from lockstep.{name}".encode()).fetchall(), name
        for attack in (
            "select lockstep.push('q', 'p', '1')",
            "delete from lockstep.queue",
            "delete from lockstep.queues",
            "table lockstep.api_key",
            "table lockstep.segment",
            "table lockstep.run",
            "select * from lockstep.load_segments(array[1])",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(attack.encode())


async def test_views_show_the_queues_that_a_rule_lets_browse(dsn: str, catalog: asyncpg.Connection[Any]) -> None:
    """In each view, and in the functions behind them, whatever ids they are called with."""
    store = PostgresStore(dsn)
    for queue in ("orders.eu", "billing.eu"):
        await configure(store, queue, retry_limit=0)
        await push_n(store, queue, 3)
        popped = await pop(store, queue, group="g")
        await store.ack([Ack(lease_id=popped.lease_id, status="failed")])
        await pop(store, queue, group="g")
    await store.close()
    role = f"looking_{uuid4().hex[:12]}"
    await catalog.execute(f"create role {role}")
    try:
        await catalog.fetchval("select lockstep.grant_right('browse', 'orders.*', $1)", role)
        everything = {
            view: await catalog.fetch(f"select * from lockstep.{view} where queue = 'orders.eu'") for view in VIEWS
        }
        assert all(rows for view, rows in everything.items() if view != "stuck_partitions")
        foreign = await catalog.fetchrow(
            "select p.id as partition, q.id as queue, g::text as whole, c::text as place from lockstep.partition p "
            "join lockstep.queue q on q.id = p.queue_id join lockstep.consumer_group g on g.queue_id = q.id "
            "join lockstep.cursor c on c.partition_id = p.id and c.group_id = g.id where q.name = 'billing.eu'"
        )
        await catalog.execute(f"set session authorization {role}")
        for view, rows in everything.items():
            assert await catalog.fetch(f"select * from lockstep.{view}") == rows, view
            with_trick = f"select * from lockstep.{view} v where pg_temp.tells(v.queue)"
            await catalog.execute(
                "create or replace function pg_temp.tells(name text) returns boolean cost 0.0000001 language plpgsql "
                "as $$begin if name like 'billing%' then raise 'seen %', name; end if; return true; end$$"
            )
            assert await catalog.fetch(with_trick) == rows, view
        for call in (
            "read_stored($1)",
            "read_last_seq($1)",
            "read_next_seq($1, 0)",
            "read_first_run($1)",
            "read_run_of($1, 2)",
            "read_cursors($2, $1)",
            "read_cursor($3::text::lockstep.consumer_group, $1)",
            "read_done_upto($4::text::lockstep.cursor)",
            "read_behind($4::text::lockstep.cursor)",
            "read_held($4::text::lockstep.cursor)",
            "read_head_run($4::text::lockstep.cursor)",
            "read_due_again($4::text::lockstep.cursor)",
        ):
            needed = "$1::bigint as a, $2::int as b, $3::text as c, $4::text as d"
            statement = f"with given as (select {needed}) select r from given, lateral lockstep.{call} r"
            found = await catalog.fetch(statement, *foreign.values())
            assert [row[0] for row in found] in ([], [None]), (call, found)
        assert await catalog.fetchval("select lockstep.may_read('billing.eu')") is False
        await catalog.execute("reset session authorization")
        await catalog.fetchval("select lockstep.revoke_right('browse', 'orders.*', $1)", role)
        relations, functions = await reached(catalog, role)
        assert (relations, functions) == (set(), set())
    finally:
        await catalog.execute(f"reset session authorization; drop owned by {role}; drop role {role}")


async def test_role_that_could_use_everything_still_can(dsn: str, catalog: asyncpg.Connection[Any]) -> None:
    """Before there were roles, the guide told to grant tables, and everybody could execute functions."""
    role = f"older_{uuid4().hex[:12]}"
    await catalog.execute(f"create role {role}")
    try:
        await catalog.execute(
            f"grant usage on schema lockstep to {role};"
            f"grant select, insert, update, delete on all tables in schema lockstep to {role}"
        )
        await catalog.execute(sql.grants())
        store = PostgresStore(as_role(dsn, role))
        await push_n(store, "q", 1)
        assert numbers(await pop(store, "q")) == [1]
        await store.close()
        await catalog.execute(f"set role {role}")
        assert len(await catalog.fetch("select * from lockstep.messages")) == 1
        await catalog.execute("reset role")
    finally:
        await catalog.execute(f"drop owned by {role}; drop role {role}")

"""Migrations: one after the other or eight at once, wholly or not at all, and never backwards."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import asyncpg
import psycopg
import pytest

from lockstep.core.crons import NewCron
from lockstep.core.messages import NewSchedule
from lockstep.core.records import DeadLetterFilter, Position
from lockstep.core.traces import NewTraceEvent
from lockstep.errors import SchemaTooNew, Unavailable
from lockstep.storage.postgres import sql
from lockstep.storage.postgres.migrate import migrate, schema_version
from lockstep.storage.postgres.store import PostgresStore
from support.builders import ack, batch, configure, numbers, pop, push_n
from support.clock import SetClock

SNAPSHOT = Path(__file__).parent / "snapshots" / "schema.txt"

# A released migration never changes: databases out there have applied it as it is. Correct it with the next one.
RELEASED = {
    "0001_core.sql": "a1c594fd07de238ae630cf5be4c07430f73fa6b38679ebacee8cb5a84be4528c",
    "0002_maintenance.sql": "82c52e4dbe90e8902c9ebb7d22d4b647e7a3feb878a60fbe247c03f28681588a",
    "0003_streams.sql": "f5c397b4f4441b44648779c51ab039f80036ef6efb14523d8ce83bf3542885f1",
    "0004_shared.sql": "ec8860392df4b9cf56d1469fde89db920232864c16f5c45dfe15a8b35cbc5057",
    "0005_schedules.sql": "fe1fdbdc1c187009ee629a1313e59fb96175b0a24fc912110fdc8879a954e70a",
    "0006_work_queues.sql": "a1108edff8e1682a90731fe95a6f83082f811d167574d916f408a763d3011685",
    "0007_spark_positions.sql": "69630d86b50cb2d79fabcb8ac51169a0ede500c4e9b3b2f1702ab68197ac5cb9",
    "0008_spark_writes.sql": "320897009e26d5cceb28dced1cc5c01bf7fed1faa12c7e148ea761568edab9ff",
    "0009_spark_jobs.sql": "49a4833c53a145ea4d3e5a516f9c80c3aa9796285838f4764e6b8a235bfeabf4",
    "0010_pipelines.sql": "682e0efd651b64694e665ad843d5e2eff525fa624ab81b411f46a2154b97dd9f",
    "0011_operations.sql": "20df0122c0de075bc4085e2dab89342009a1fd3ce847fb4f28bcdcebbcf143e9",
    "0012_spool.sql": "6be6b4e430fc3bf4455c63ea1b4b9c4b2c9f6cb68d36d13d8cc2ca86b537a163",
    "0013_spark_batches.sql": "5a5ea846b882e9a21eae9a7ba28e3dffb9510d805956e9dbb22c1a944149d2ca",
    "0014_dead_copies.sql": "111e3b7e173edd232b3671e406599dc401b3e0e4757add1adf7d06a02715bbc6",
    "0015_slices.sql": "1c976cd82c90f2b2160c1a071c10ff632049609b2178b80392c3bd687c0ce28b",
    "0016_ballast.sql": "7d556c2e3dff6418a3c0c766cda2454713928dc9f46681d56e26944645044fa4",
    "0017_shared_complete.sql": "7499d3a067d3537b3fc2334cd100f7c9dbb9f29ed0fec2a1244f732e3ca9d022",
    "0018_load.sql": "aaa717285204a12d9f05e96ba57ddb106d67533dfc68170ba8b50f09644bcd84",
    "0019_expiry_slices.sql": "d96efa5ea4a247aebb0af2f13c37dfb27438944eaed82ce7f04421b0c8cbc722",
    "0020_partition_index.sql": "1560a3eea6ce357cfe4c7812e2916fdb7f76ac92b86fb00cb4d29e5b0672e0b9",
    "0021_due_in.sql": "5ce7c67717a4a996151b54411f01be44c0508dbcb229277bb1b42ab22b143052",
    "0022_done_copies.sql": "f16005795867ba6b9982086727646877aa36b2c680cddd0ba52b563102beb208",
    "0023_operation_aims.sql": "00e42251a461b3f3759ecb7750844b3ea6f77de4132c75b38afc977e7aa16658",
    "0024_repair_runs.sql": "e2d8daedded0311983c010fd8bb08d2835b65f0202700f63d9009866be796fb2",
    "0025_groups.sql": "31e1347068e5c4fa7df74c981210a9c43d6cfe251007ea3ce648a0f4e4f229b7",
    "0026_spark_marks.sql": "5ab3f1af6da34e5f5059fb19c7ce3ae1ce7307185064b64e6aca8e405b2cd9de",
    "0027_first_poll.sql": "860cc7227632d11b1b44d158f25c53fa371f735a41906926a0e6a443d762da24",
    "0028_figures.sql": "e943062e46c903441269bc397caf2d196e0bceae07948a97e8b1c5b304da3c30",
    "0029_dead_letter_time.sql": "5d4a91cd3af9aadcc762557fb1fe9774ebeda946b8e586e03dfe39ea21e77be1",
    "0030_balanced_duplicates.sql": "e4847c8f48b9194f4913b43be1c5c00e7061de16ae8ec0d07a8853fdb8cf20bd",
    "0031_timeline.sql": "686cb0842b77cfe2c47bcb97921ed7bff129e107d366d659e8d754f1ad6863cf",
    "0032_operation_sums.sql": "ef0ef26f57460bd2dac8e6f4d1838417d51ee5aacf4314aac8bb1db43d943f12",
    "0033_options.sql": "09270e357acae367a0847369ea76adb73b1a8160f3f015b426f4dc1e0c7ecfb6",
    "0034_spark_lookups.sql": "1119be6ae5981bf7b51ab1d42d6d6717640d04ca244eca83c445fba67afb2cbd",
    "0035_popped.sql": "132c88e7c72d51748d2de32cf18983682da53ac3ca9b3c551036c63b84d81d6b",
    "0036_clock.sql": "96bf038819620fb9cba7524f98a2a148fee250df69a01dc95b651d43f98e20fc",
    "0037_step_checkpoint.sql": "c00f98eb7a3d30d8c8adc98f98639c9aa9ec2bc5198ce85109ef9819787f0d11",
    "0038_access.sql": "0b1369a76aaaf90e6e4f1e84d937549675fb6a3cc85457a313aa865f5fec95f3",
    "0039_push_rows.sql": "08a3004781de367eb65a2c6fef4e60ec480b7c1406f497ed76f51fb87120cd48",
    "0040_seals.sql": "e41cae0e65876466f1c9f321c1821fe6a0013ddbd4d70fbc69dfc7d9ee8eddba",
    "0041_archive_tables.sql": "1e04f6f67f470343ff06a0c5c3a66aefe2c0cebbed72b0d806beacb63bec1d70",
    "0042_spark_duplicates.sql": "580879c4e8f9dd2a0ab646eed33e902ee4e426530bffab53b08bf8b730475d4b",
    "0043_step_restarts.sql": "7b8acc41aabfe26ce11954c93ca646bcfe8fd49a39fffabdda6647311ef7e799",
    "0044_step_reads.sql": "95ebc096c149309f1f0929026ca7012de41380917e2946a8affac3a13a06e597",
    "0045_step_definition.sql": "9e985a668c665aff51eaf293584b67c6628599e29209d0b3f55c06e60e51e033",
    "0046_role_rules.sql": "8515ce99e4e850d676e474ca0c8764b53824afdc0c3a330410ee1bd44144bd7b",
    "0047_group_pause.sql": "0ae0174d635b81cbad79af6ed31c053e8e985c3ee253c9aefe36db2de75c1ccc",
    "0048_partition_limit.sql": "c5920661fe3dcd9ca315f6a8d48d6cf9d616677a1292ac606a3a22f25a0003bf",
    "0049_reader_rule.sql": "bc55bbd021faea23e2724a93bf8d227bfcbee9316b76a3e233cdf60cfea51c09",
    "0050_continued.sql": "2a6adb4dd5ba0bab877579df7b8f90dfb5c562155cfcdc944da6b724a4e30eb8",
    "0051_message_walk.sql": "75760627c6e3e9d866d5863692c8d6e2152245c9b850d3a16eaad8c09a3b1a62",
    "0052_chains.sql": "e9633e56855603f190e97757c9901d452ac6a69399f261301b4fe6f360e53447",
    "0053_dead_letter_order.sql": "bbca519d84473b1b6fe9dddff3c4c622975b2f6ce834ecba809c5257db4c3765",
    "0054_server_samples.sql": "7bc7b80cb6f6f8e60f95b989a8559054d51f650cdf329036b61eb07b0579894a",
}


@asynccontextmanager
async def connected(dsn: str) -> AsyncIterator[asyncpg.Connection[Any]]:
    connection = await asyncpg.connect(dsn)
    try:
        yield connection
    finally:
        await connection.close()


async def everything(connection: asyncpg.Connection[Any]) -> list[Any]:
    """What is in the schema and in its books."""
    if await connection.fetchval("select to_regnamespace('lockstep') is null"):
        return []
    return [
        *await connection.fetch("select oid, relname from pg_class where relnamespace = 'lockstep'::regnamespace"),
        *await connection.fetch("select oid, proname from pg_proc where pronamespace = 'lockstep'::regnamespace"),
        *await connection.fetch("select * from lockstep.migration"),
        *await connection.fetch("select * from lockstep.procedures"),
    ]


def add_migration(monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> None:
    known = sql.migrations()
    more = (*known, sql.Migration(len(known) + 1, name, text))
    monkeypatch.setattr(sql, "migrations", lambda: more)


# --- Applying -----------------------------------------------------------------------------------------------


async def test_empty_database_gets_all_migrations_and_the_procedures(empty_database_dsn: str) -> None:
    async with connected(empty_database_dsn) as connection:
        assert await schema_version(connection) == 0
        applied = await migrate(connection)
        assert applied == [*(f"{m.version:04d}_{m.name}" for m in sql.migrations()), "procedures"]
        assert await schema_version(connection) == len(sql.migrations())


async def test_second_time_changes_nothing(empty_database_dsn: str) -> None:
    async with connected(empty_database_dsn) as connection:
        await migrate(connection)
        before = await everything(connection)
        assert await migrate(connection) == []
        assert await everything(connection) == before


async def test_eight_at_once_apply_it_once(empty_database_dsn: str) -> None:
    async def run() -> list[str]:
        async with connected(empty_database_dsn) as connection:
            return await migrate(connection)

    answers = await asyncio.gather(*(run() for _ in range(8)))
    assert len([applied for applied in answers if applied]) == 1
    async with connected(empty_database_dsn) as connection:
        versions = await connection.fetch("select version from lockstep.migration order by version")
        assert [row[0] for row in versions] == [m.version for m in sql.migrations()]


async def test_eight_stores_open_an_empty_database_at_once(empty_database_dsn: str) -> None:
    stores = [PostgresStore(empty_database_dsn) for _ in range(8)]
    await asyncio.gather(*(store.open() for store in stores))
    await asyncio.gather(*(push_n(store, "q") for store in stores))
    assert len(await pop(stores[0], "q", batch=100)) == 8
    assert await stores[0].verify() == []
    await asyncio.gather(*(store.close() for store in stores))


async def test_role_without_permission_is_told_so(database_dsn: str) -> None:
    store = PostgresStore(_as_nobody(database_dsn))
    with pytest.raises(Unavailable, match="the database refuses us: permission denied for schema lockstep"):
        await store.open()
    await store.close()


def _as_nobody(dsn: str) -> str:
    """A role that every PostgreSQL has, and that may do nothing here."""
    return f"{dsn}{'&' if '?' in dsn else '?'}options=-c%20role%3Dpg_monitor"


async def test_open_migrates_and_works(empty_database_dsn: str) -> None:
    store = PostgresStore(empty_database_dsn)
    await store.open()
    await store.open()
    await push_n(store, "q")
    assert numbers(await pop(store, "q")) == [1]
    await store.close()


async def test_migration_is_not_held_up_by_a_statement_timeout(
    empty_database_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Building an index on a large table takes its time."""
    add_migration(monkeypatch, "slow", "select pg_sleep(0.2)")
    async with connected(empty_database_dsn) as connection:
        await connection.execute("set statement_timeout = '100ms'")
        assert "procedures" in await migrate(connection)
        assert await connection.fetchval("show statement_timeout") == "100ms"


# --- Failing ------------------------------------------------------------------------------------------------


HALF_DONE = "create table lockstep.half_done (n int); select 1 / 0"


async def test_migration_that_fails_leaves_an_empty_database_empty(
    empty_database_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_migration(monkeypatch, "broken", HALF_DONE)
    async with connected(empty_database_dsn) as connection:
        with pytest.raises(Unavailable, match="nothing was changed: division by zero"):
            await migrate(connection)
        assert await everything(connection) == []
        assert await schema_version(connection) == 0


async def test_migration_that_fails_leaves_a_migrated_database_as_it_was(
    database_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_migration(monkeypatch, "broken", HALF_DONE)
    async with connected(database_dsn) as connection:
        before = await everything(connection)
        with pytest.raises(Unavailable, match="nothing was changed: division by zero"):
            await migrate(connection)
        assert await everything(connection) == before


async def test_procedures_that_fail_leave_the_old_ones(database_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with connected(database_dsn) as connection:
        before = await everything(connection)
        monkeypatch.setattr(sql, "procedures", lambda: "create function lockstep.nonsense() returns nothing at all")
        with pytest.raises(Unavailable, match="nothing was changed: syntax error"):
            await migrate(connection)
        assert await everything(connection) == before


# --- Versions -----------------------------------------------------------------------------------------------


async def test_newer_schema_is_refused_and_left_alone(database_dsn: str) -> None:
    newer = len(sql.migrations()) + 1
    async with connected(database_dsn) as connection:
        await connection.execute("insert into lockstep.migration (version, name) values ($1, 'from_the_future')", newer)
        await connection.execute("update lockstep.procedures set checksum = 'of the future'")
        before = await everything(connection)
        with pytest.raises(SchemaTooNew) as refused:
            await migrate(connection)
        assert await everything(connection) == before
    assert refused.value.status == 503
    text = f"the database has schema version {newer}, and this Lockstep knows only up to {newer - 1}"
    assert refused.value.message.startswith(text)


async def test_store_refuses_to_open_a_newer_schema(database_dsn: str) -> None:
    async with connected(database_dsn) as connection:
        await connection.execute("insert into lockstep.migration (version, name) values (999, 'from_the_future')")
    store = PostgresStore(database_dsn)
    with pytest.raises(SchemaTooNew, match="999"):
        await store.open()
    await store.close()


async def test_newer_schema_that_appears_while_waiting_is_refused(database_dsn: str) -> None:
    """Another server migrates while this one waits for the lock: it must not go on with what it saw before."""
    async with connected(database_dsn) as first, connected(database_dsn) as second:
        await second.execute("update lockstep.procedures set checksum = 'other'")
        transaction = first.transaction()
        await transaction.start()
        await first.execute("insert into lockstep.migration (version, name) values (999, 'from_the_future')")
        await first.execute("select pg_advisory_xact_lock($1)", 0x6C6F636B73746570)
        waiting = asyncio.ensure_future(migrate(second))
        async with asyncio.timeout(10):
            while not await first.fetchval("select count(*) from pg_locks where locktype = 'advisory' and not granted"):
                pass
        await transaction.commit()
        with pytest.raises(SchemaTooNew):
            await waiting


async def test_old_server_is_refused_before_anything_is_asked() -> None:
    connection: Any = SimpleNamespace(get_server_version=lambda: SimpleNamespace(major=14))
    with pytest.raises(Unavailable, match="needs PostgreSQL 15 or newer, this server is 14"):
        await migrate(connection)


async def test_database_that_cannot_hold_every_name_is_refused() -> None:
    connection: Any = SimpleNamespace(
        get_server_version=lambda: SimpleNamespace(major=18),
        get_settings=lambda: SimpleNamespace(server_encoding="LATIN1"),
    )
    with pytest.raises(Unavailable, match="needs a database in UTF8, this one is in LATIN1"):
        await migrate(connection)


async def test_missing_rights_are_told(empty_database_dsn: str) -> None:
    role = f"lockstep_weak_{os.getpid()}"
    async with connected(empty_database_dsn) as connection:
        await connection.execute(f"create role {role}; set session authorization {role}")
        try:
            with pytest.raises(Unavailable, match="the database refuses us: permission denied for database"):
                await migrate(connection)
        finally:
            await connection.execute(f"reset session authorization; drop role {role}")


@pytest.mark.parametrize("has_roles", [True, False])
async def test_documented_rights_are_enough(database_dsn: str, clock: SetClock, has_roles: bool) -> None:
    """What the guide grants lets a role do everything but migrate."""
    text = (Path(__file__).parents[3] / "docs/guides/embedded.md").read_text()
    member, *without_roles = re.findall(r"^  (grant .* to app;)$", text, re.MULTILINE)
    assert (member, len(without_roles)) == ("grant lockstep_server to app;", 3)
    grants = [member] if has_roles else without_roles
    role = f"app_{os.getpid()}_{has_roles}".lower()
    async with connected(database_dsn) as connection:
        await connection.execute(f"create role {role}")
        for grant in grants:
            await connection.execute(grant.replace(" app;", f" {role};"))
        store = PostgresStore(
            f"{database_dsn}{'&' if '?' in database_dsn else '?'}options=-c%20role%3D{role}", clock=clock
        )
        try:
            await store.open()
            await _use_everything(store, clock)
        finally:
            await store.close()
            await connection.execute(f"drop owned by {role}; drop role {role}")


async def _use_everything(store: PostgresStore, clock: SetClock) -> None:
    await configure(store, "dead")
    await configure(store, "q", dead_queue="dead", max_size=100, retry_limit=0)
    await push_n(store, "q", 3, transaction_ids=["t", str(uuid4()), None], trace_ids=[str(uuid4()), None, None])
    await store.push([replace(batch("q", 2), schedule=NewSchedule(delay_seconds=60))])
    await store.set_cron(NewCron(name="c", queue="q", payload=b"1", expression="0 0 1 1 *"))
    popped = await pop(store, "q")
    [one] = popped.messages()
    await store.record_trace(
        NewTraceEvent(partition_id=one.partition_id, transaction_id=one.transaction_id, data=b"{}", names=("seen",))
    )
    assert (await ack(store, lease_id=popped.lease_id, status="failed")).dead
    assert (await pop(store, "q", group="s", mode="shared", batch=2)).lease_id is not None
    clock.advance(60)
    assert (await store.promote(limit=10)).messages == 2
    assert await store.redrive(DeadLetterFilter()) == 1
    assert await store.seek("q", "s", Position("start")) >= 0
    assert await store.verify() == await store.repair() == []
    await store.sample()
    await store.clear("q")
    assert await store.delete_queue("q")
    assert await store.remove_cron("c")


async def test_schema_of_somebody_else_is_told_and_left_alone(empty_database_dsn: str) -> None:
    async with connected(empty_database_dsn) as connection:
        await connection.execute("create schema lockstep; create table lockstep.queue (theirs int)")
        store = PostgresStore(empty_database_dsn)
        with pytest.raises(Unavailable, match='nothing was changed: relation "queue" already exists'):
            await store.open()
        await store.close()
        assert await connection.fetchval("select count(*) from pg_tables where schemaname = 'lockstep'") == 1


# --- Procedures ---------------------------------------------------------------------------------------------


async def test_procedures_are_applied_again_when_they_changed(database_dsn: str) -> None:
    async with connected(database_dsn) as connection:
        await connection.execute("update lockstep.procedures set checksum = 'of an older version'")
        await connection.execute("create function lockstep.retired() returns int language sql as 'select 1'")
        assert await migrate(connection) == ["procedures"]
        assert await connection.fetchval("select to_regproc('lockstep.retired')") is None
        assert await connection.fetchval("select checksum from lockstep.procedures") == sql.procedures_checksum()
        assert await migrate(connection) == []


async def test_operations_that_wait_already_are_in_the_sums(
    empty_database_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = next(m.version for m in sql.migrations() if m.name == "operation_sums")
    before = sql.migrations()[: version - 1]
    async with connected(empty_database_dsn) as connection:
        with monkeypatch.context() as older:
            older.setattr(sql, "migrations", lambda: before)
            older.setattr(sql, "procedures", lambda: "select 1")
            older.setattr(sql, "grants", lambda: "select 1")
            await migrate(connection)
        await connection.execute(
            """
            insert into lockstep.operation (
                uuid, kind, priority, pending, request_count, message_count, bytes, partition_ids, codec, failed_count,
                created_at, due_at, completed_at
            )
            select gen_random_uuid(), 'push', 5, n < 3, 2, 3, 10, '{1}', 1, n % 2, now(), now(),
                   case when n >= 3 then now() end
            from generate_series(1, 4) n
            """
        )
        await migrate(connection)
        sums = await connection.fetch("select kind, operations, messages, bytes, failed from lockstep.operation_sum")
    assert [tuple(row) for row in sums] == [("push", 4, 6, 20, 2)]


async def test_procedures_keep_what_is_stored(database_dsn: str) -> None:
    store = PostgresStore(database_dsn)
    await push_n(store, "q", 3)
    assert numbers(await pop(store, "q", auto_ack=True)) == [1]
    async with connected(database_dsn) as connection:
        await connection.execute("update lockstep.procedures set checksum = 'of an older version'")
        assert await migrate(connection) == ["procedures"]
    assert numbers(await pop(store, "q", batch=9)) == [2, 3]
    assert await store.verify() == []
    await store.close()


async def test_sessions_go_on_while_procedures_are_applied(database_dsn: str) -> None:
    """The plans that a session keeps belong to the functions as they were."""
    store = PostgresStore(database_dsn)
    await push_n(store, "q")
    pushing = True

    async def push() -> int:
        pushed = 1
        while pushing:
            await push_n(store, "q")
            pushed += 1
        return pushed

    task = asyncio.ensure_future(push())
    async with connected(database_dsn) as connection:
        for _ in range(3):
            await connection.execute("update lockstep.procedures set checksum = 'of an older version'")
            assert await migrate(connection) == ["procedures"]
    pushing = False
    assert (await store.queue("q")).messages in (pushed := await task, pushed - 1)
    assert await store.verify() == []
    await store.close()


async def test_trigger_of_a_user_survives_new_procedures(database_dsn: str) -> None:
    async with connected(database_dsn) as connection:
        await connection.execute(
            """
            create table public.orders (id int primary key);
            create function public.tell() returns trigger language plpgsql as $$
            begin
                perform lockstep.push('orders', 'p', to_jsonb(new));
                return new;
            end $$;
            create trigger tell after insert on public.orders for each row execute function public.tell();
            insert into public.orders values (1);
            update lockstep.procedures set checksum = 'of an older version';
            """
        )
        assert await migrate(connection) == ["procedures"]
        await connection.execute("insert into public.orders values (2)")
        assert await connection.fetchval("select count(*) from lockstep.messages") == 2


async def test_view_of_a_user_over_ours_survives_new_procedures(database_dsn: str) -> None:
    async with connected(database_dsn) as connection:
        await connection.execute("create view public.recent as select queue, payload from lockstep.messages")
        await connection.execute("update lockstep.procedures set checksum = 'of an older version'")
        await migrate(connection)
        assert await connection.fetchval("select to_regclass('public.recent') is not null")


# --- What never changes, and what changes with a diff ---------------------------------------------------------


def test_released_migrations_are_as_they_were_released() -> None:
    folder = files("lockstep.storage.postgres.sql") / "migrations"
    found = {
        entry.name: hashlib.sha256(entry.read_bytes()).hexdigest()
        for entry in folder.iterdir()
        if entry.name.endswith(".sql")
    }
    assert found == RELEASED


def test_migrations_are_numbered_without_a_gap() -> None:
    assert [m.version for m in sql.migrations()] == list(range(1, len(RELEASED) + 1))


TABLES = """
select c.relname, coalesce(' with (' || array_to_string(c.reloptions, ', ') || ')', '')
from pg_class c where c.relnamespace = 'lockstep'::regnamespace and c.relkind = $1::text::"char" order by c.relname
"""
COLUMNS = """
select a.attname || ' ' || format_type(a.atttypid, a.atttypmod)
    || case when a.attcollation <> t.typcollation then ' collate ' || l.collname else '' end
    || case when a.attstorage <> t.typstorage then ' storage '
        || case a.attstorage when 'e' then 'external' when 'm' then 'main' when 'p' then 'plain' else 'extended' end
       else '' end
    || case when a.attidentity = 'a' then ' generated always as identity' else '' end
    || case when a.attnotnull then ' not null' else '' end
    || coalesce(' default ' || pg_get_expr(d.adbin, d.adrelid), '')
from pg_attribute a
join pg_type t on t.oid = a.atttypid
left join pg_collation l on l.oid = a.attcollation
left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
where a.attrelid = format('lockstep.%I', $1::text)::regclass and a.attnum > 0 and not a.attisdropped
order by a.attnum
"""
CONSTRAINTS = """
select pg_get_constraintdef(c.oid) from pg_constraint c
where c.conrelid = format('lockstep.%I', $1::text)::regclass and c.contype <> 'n' order by c.contype desc, c.conname
"""
INDEXES = """
select pg_get_indexdef(i.indexrelid) from pg_index i join pg_class c on c.oid = i.indexrelid
where i.indrelid = format('lockstep.%I', $1::text)::regclass
  and not exists (select 1 from pg_constraint k where k.conindid = i.indexrelid) order by c.relname
"""
FUNCTIONS = """
select format('%s(%s)', p.proname, pg_get_function_arguments(p.oid)),
       format('returns %s language %s %s%s', pg_get_function_result(p.oid), l.lanname,
              case p.provolatile when 'i' then 'immutable' when 's' then 'stable' else 'volatile' end,
              case p.proparallel when 's' then ' parallel safe' else '' end)
from pg_proc p join pg_language l on l.oid = p.prolang
where p.pronamespace = 'lockstep'::regnamespace order by 1
"""


async def described(connection: asyncpg.Connection[Any]) -> str:
    """The schema as text: what a change of it changes is what a diff of this shows."""
    await connection.execute("set search_path = lockstep, pg_catalog")

    async def block(title: str, name: str, *queries: str) -> list[str]:
        rows = [row[0] for query in queries for row in await connection.fetch(query, name)]
        return [title, *(f"    {row}" for row in rows), ""]

    lines: list[str] = []
    for name, options in await connection.fetch(TABLES, "r"):
        lines += await block(f"table {name}{options}", name, COLUMNS, CONSTRAINTS, INDEXES)
    for kind, title in (("v", "view"), ("c", "type")):
        for name, _ in await connection.fetch(TABLES, kind):
            lines += await block(f"{title} {name}", name, COLUMNS)
    for signature, result in await connection.fetch(FUNCTIONS):
        lines += [f"function {signature}", f"    {result}", ""]
    return "\n".join(lines)


async def test_schema_is_the_one_in_the_snapshot(database_dsn: str) -> None:
    """After a change on purpose: UPDATE_SNAPSHOTS=1 pytest -k snapshot, and look at the diff."""
    async with connected(database_dsn) as connection:
        found = await described(connection)
    if os.environ.get("UPDATE_SNAPSHOTS"):
        SNAPSHOT.write_text(found)
    assert found.splitlines() == SNAPSHOT.read_text().splitlines()


def test_every_function_is_defined_once() -> None:
    """The later file would win, whatever the other one says."""
    folder = files("lockstep.storage.postgres.sql") / "procedures"
    text = "\n".join(entry.read_text() for entry in folder.iterdir())
    found = re.findall(r"^create or replace (?:function|procedure) lockstep\.(\w+)\s*\(([^)]*)\)", text, re.MULTILINE)
    signatures = [(name, " ".join(arguments.split())) for name, arguments in found]
    assert [one for one in set(signatures) if signatures.count(one) > 1] == []


def test_every_function_can_be_called(database_dsn: str) -> None:
    """Bodies are not checked when the functions are created, because they call each other. They are here."""
    with psycopg.connect(database_dsn, autocommit=True) as connection:
        connection.execute("set check_function_bodies = on")
        found = connection.execute(
            "select pg_get_functiondef(oid) from pg_proc where pronamespace = 'lockstep'::regnamespace"
        ).fetchall()
        assert found
        for (definition,) in found:
            connection.execute(definition.encode())

"""Rules of roles of the database: which queues each function serves them, whatever id a queue is named by."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any, NamedTuple
from uuid import UUID, uuid4

import asyncpg
import psycopg
import pytest
import pytest_asyncio

from lockstep import push_within
from lockstep.core.records import Ack, PopRequest, Renewal, Subscription
from lockstep.errors import Forbidden
from lockstep.storage.postgres import sql
from lockstep.storage.postgres.store import PostgresStore
from support.builders import batch, configure, next_of, numbers, pop, push_n
from support.databases import Databases

NOT_ALLOWED = "LS009"
OWN, FOREIGN = "orders.eu", "billing.eu"


def as_role(dsn: str, role: str) -> str:
    return f"{dsn}{'&' if '?' in dsn else '?'}options=-c%20role%3D{role}"


@pytest.fixture
def dsn(databases: Databases) -> str:
    return databases.emptied()


@pytest_asyncio.fixture
async def owner(dsn: str) -> AsyncIterator[asyncpg.Connection[Any]]:
    connection = await asyncpg.connect(dsn)
    yield connection
    await connection.close()


@pytest_asyncio.fixture
async def role(owner: asyncpg.Connection[Any]) -> AsyncIterator[str]:
    """An application's role, which has no rights yet."""
    name = f"app_{uuid4().hex[:12]}"
    await owner.execute(f"create role {name}")
    yield name
    await owner.execute("reset role; reset session authorization")
    await owner.execute(f"delete from lockstep.role_rule where role = '{name}'; drop owned by {name}; drop role {name}")


async def give(owner: asyncpg.Connection[Any], right: str, pattern: str, role: str) -> bool:
    given: bool = await owner.fetchval("select lockstep.grant_right($1, $2, $3)", right, pattern, role)
    return given


async def take(owner: asyncpg.Connection[Any], right: str, pattern: str, role: str) -> bool:
    taken: bool = await owner.fetchval("select lockstep.revoke_right($1, $2, $3)", right, pattern, role)
    return taken


async def executable(owner: asyncpg.Connection[Any], role: str) -> set[str]:
    rows = await owner.fetch(
        "select p.proname from pg_proc p where p.pronamespace = 'lockstep'::regnamespace "
        "and has_function_privilege($1, p.oid, 'execute')",
        role,
    )
    return {row[0] for row in rows}


async def test_a_role_has_what_its_rules_are_about_and_loses_it(owner: asyncpg.Connection[Any], role: str) -> None:
    assert await executable(owner, role) == set()
    assert await give(owner, "push", "orders.*", role)
    assert not await give(owner, "push", "orders.*", role)
    pushes = set(await owner.fetchval("select lockstep.functions_for('push')"))
    assert await executable(owner, role) == pushes
    await give(owner, "pop", "orders.*", role)
    pops = set(await owner.fetchval("select lockstep.functions_for('pop')"))
    assert await executable(owner, role) == pushes | pops
    assert await take(owner, "push", "orders.*", role)
    assert not await take(owner, "push", "orders.*", role)
    assert await executable(owner, role) == pops
    await take(owner, "pop", "orders.*", role)
    assert await executable(owner, role) == set()


async def test_migrations_renew_what_rules_give(owner: asyncpg.Connection[Any], role: str) -> None:
    await give(owner, "push", "orders.*", role)
    before = await executable(owner, role)
    await owner.execute(f"revoke all on all functions in schema lockstep from {role}")
    await owner.execute(sql.grants())
    assert await executable(owner, role) == before


@pytest.mark.parametrize("wrong", ["nobody_of_this_name", 'x"; drop schema lockstep cascade; --'])
async def test_a_role_must_exist(owner: asyncpg.Connection[Any], wrong: str) -> None:
    with pytest.raises(asyncpg.PostgresError, match="there is no role"):
        await give(owner, "push", "*", wrong)


@pytest.mark.parametrize(
    ("pattern", "queue", "matched"),
    [
        ("*", "a", True),
        ("orders.*", "orders.eu", True),
        ("orders.*", "orders", False),
        ("orders.*", "ordersXeu", False),
        ("a%", "abc", False),
        ("a_c", "abc", False),
        ("a\\*", "a\\b", True),
        ("*.dead", "orders.dead", True),
        ("", "", True),
        ("A*", "abc", False),
    ],
)
async def test_patterns(owner: asyncpg.Connection[Any], pattern: str, queue: str, matched: bool) -> None:
    await give(owner, "push", pattern, "lockstep_producer")
    like = "select $1 like r.queue_like from lockstep.role_rule r where r.pattern = $2"
    assert await owner.fetchval(like, queue, pattern) is matched


async def test_pushes_of_a_role_with_rules(dsn: str, owner: asyncpg.Connection[Any], role: str) -> None:
    await give(owner, "push", "orders.*", role)
    with psycopg.connect(as_role(dsn, role), autocommit=True) as connection:
        connection.execute("select lockstep.push('orders.eu', 'p', '1')")
        with connection.transaction():
            push_within(connection, [batch("orders.us", 3), batch("orders.eu", 200, partition="q")])
        with pytest.raises(psycopg.Error) as refused:
            connection.execute("select lockstep.push('billing.eu', 'p', '1')")
        assert refused.value.sqlstate == NOT_ALLOWED
        with pytest.raises(Forbidden), connection.transaction():
            push_within(connection, [batch("orders.eu", 1), batch("billing.eu", 1)])
    assert [row[0] for row in await owner.fetch("select name from lockstep.queue order by name")] == [
        "orders.eu",
        "orders.us",
    ]
    assert await owner.fetchval("select sum(message_count) from lockstep.segment") == 204


async def test_member_of_a_role_has_its_rules(dsn: str, owner: asyncpg.Connection[Any], role: str) -> None:
    member = f"{role}_member"
    await give(owner, "push", "orders.*", role)
    await owner.execute(f"create role {member}; grant {role} to {member}")
    try:
        with psycopg.connect(as_role(dsn, member), autocommit=True) as connection:
            connection.execute("select lockstep.push('orders.eu', 'p', '1')")
            with pytest.raises(psycopg.Error) as refused:
                connection.execute("select lockstep.push('billing.eu', 'p', '1')")
            assert refused.value.sqlstate == NOT_ALLOWED
    finally:
        await owner.execute(f"drop owned by {member}; drop role {member}")


@pytest.mark.parametrize("mode", ["ordered", "shared"])
async def test_the_library_consumes_as_a_role_with_rules(
    dsn: str, owner: asyncpg.Connection[Any], role: str, mode: Any
) -> None:
    everybody = PostgresStore(dsn)
    await configure(everybody, "orders.dead")
    await configure(everybody, OWN, dead_queue="orders.dead", retry_limit=0, group_mode=mode, retry_delay_ms=0)
    await push_n(everybody, OWN, 4)
    await push_n(everybody, FOREIGN, 1)
    await give(owner, "pop", OWN, role)
    store = PostgresStore(as_role(dsn, role))
    await store.open()
    first = await pop(store, OWN, batch=2, group="g", subscription=Subscription("all"))
    assert numbers(first) == [1, 2]
    assert first.lease_id is not None
    [renewed] = await store.renew([Renewal(lease_id=first.lease_id, seconds=600)])
    assert renewed.partitions == 1
    assert [one.success for one in await store.ack([Ack(lease_id=first.lease_id, status="completed")])] == [True]
    second = await pop(store, OWN, batch=1, group="g")
    await store.ack([Ack(lease_id=second.lease_id, status="failed", error="no")])
    assert numbers(await pop(store, OWN, batch=9, group="g")) == [4]
    assert numbers(await pop(everybody, "orders.dead", batch=9)) == [3]
    for denied in (
        lambda: pop(store, FOREIGN),
        lambda: pop(store, "orders.dead"),
        lambda: push_n(store, OWN, 1),
        lambda: push_n(store, FOREIGN, 1),
    ):
        with pytest.raises(Forbidden):
            await denied()
    await store.close()
    assert await everybody.verify() == []
    await everybody.close()


async def test_the_library_goes_on_as_a_role_with_rules(dsn: str, owner: asyncpg.Connection[Any], role: str) -> None:
    everybody = PostgresStore(dsn)
    await push_n(everybody, OWN, 4)
    await push_n(everybody, FOREIGN, 2)
    await give(owner, "pop", OWN, role)
    store = PostgresStore(as_role(dsn, role))
    first = await pop(store, OWN, batch=2, group="g", subscription=Subscription("all"))
    assert numbers((await next_of(store, first, OWN, batch=2)).popped) == [3, 4]
    foreign = await pop(everybody, FOREIGN, group="g")
    for queue in (OWN, FOREIGN):
        with pytest.raises(Forbidden):
            await next_of(store, foreign, queue)
    assert [lease.queue for lease in await everybody.leases(queue=FOREIGN)] == [FOREIGN]
    await store.close()
    await everybody.close()


class Ids(NamedTuple):
    queue: str
    queue_id: int
    partition_id: int
    group_id: int
    segment_id: int
    lease_id: UUID
    dead_letter_id: int


async def ids_of(owner: asyncpg.Connection[Any], store: PostgresStore, queue: str) -> Ids:
    """A queue with what can be named by an id: a message that is leased, and one that has died."""
    await configure(store, queue, retry_limit=0)
    await push_n(store, queue, 3)
    popped = await pop(store, queue, group="g")
    await store.ack([Ack(lease_id=popped.lease_id, status="failed")])
    lease = (await pop(store, queue, group="g")).lease_id
    assert lease is not None
    row = await owner.fetchrow(
        "select q.id, p.id, g.id, s.id, d.id from lockstep.queue q join lockstep.partition p on p.queue_id = q.id "
        "join lockstep.consumer_group g on g.queue_id = q.id and g.name = 'g' "
        "join lockstep.segment s on s.queue_id = q.id join lockstep.dead_letter d on d.queue_id = q.id "
        "where q.name = $1 and p.name = 'Default'",
        queue,
    )
    return Ids(queue, row[0], row[1], row[2], row[3], UUID(lease), row[4])


INDEX = "row(null,null,null,null,null,null,null,null,null)::lockstep.message_index"
PLAIN = "row(array['1'::bytea],null,null,null,null,null,null,null)::lockstep.plain_columns"
CALLS = {
    "push": "push('{queue}', 'Default', '1')",
    "resolve": "resolve('{queue}', array['Default'])",
    "mark_expiring": "mark_expiring('{queue}', null)",
    "push_segments": "push_segments(array[{queue_id}], null, array[0::smallint], array[null::bytea], array[1], "
    f"array[{{partition_id}}], array[1], array[0], {INDEX}, {PLAIN}, true, null)",
    "push_run": "push_run({queue_id}, {partition_id}, 0::smallint, 1, null, array['1'::bytea], true, null, null, "
    "false)",
    "push_runs": "push_runs({queue_id}, array[{partition_id}], array[0], array[1], array[0], 1::smallint, "
    "'1'::bytea, true, null, null, false)",
    "schedule": "schedule(array[{queue_id}], array['Default'], array[now()], array[null::text], array[null::text], "
    "array[1::smallint], array['1'::bytea], null)",
    "balanced_partition": "balanced_partition('{queue}', null)",
    "balanced_over": "balanced_over({queue_id})",
    "partition_balance": "partition_balance({queue_id})",
    "occupancy": "occupancy(array['{queue}'])",
    "notify_pushed": "notify_pushed('{queue}')",
    "find_queue": "find_queue('{queue}')",
    "find_partition": "find_partition({queue_id}, 'Default')",
    "find_group": "find_group({queue_id}, 'g')",
    "group_room": "group_room({queue_id}, 5, 'h')",
    "subscribe": "subscribe({queue_id}, 'h', 'all', null, null, null)",
    "note_first_poll": "note_first_poll('{queue}', '', '', 'h', 5, 5, null)",
    "use_first_poll": "use_first_poll({queue_id}, 'h', 5, null)",
    "place_for_pop": "place_for_pop({group_id}, {partition_id}, 5, null)",
    "await_slice": "await_slice({group_id}, 5)",
    "place_slice": "place_slice({group_id}, {partition_id}, 5, null)",
    "pop": "pop(array[0], array[{group_id}], array[{partition_id}], array[1], array[1], array[null::bigint], "
    "array[gen_random_uuid()], array[false], null)",
    "shared_pop": "shared_pop(array[0], array[{group_id}], array[{partition_id}], array[1], array[1], "
    "array[null::bigint], array[gen_random_uuid()], array[false], null)",
    "next": "next(array['{lease_id}'::uuid], array[1], array[false], 1000, array[0], array[{group_id}], "
    "array[null::bigint], array[1], array[1], array[null::bigint], array[gen_random_uuid()], array[false], null)",
    "load_segments": "load_segments(array[{segment_id}])",
    "ack_leases": "ack_leases(array['{lease_id}'::uuid], null)",
    "shared_complete": "shared_complete(array['{lease_id}'::uuid], null)",
    "ack_items": "ack_items(array[null::uuid], array[{partition_id}], array[1], array[null::text], array['g'], "
    "array['completed'], array[null::text], array[null::timestamptz], null)",
    "renew": "renew(array['{lease_id}'::uuid], array[1000], null)",
    "hold_leases": "hold_leases(array['{lease_id}'::uuid], null)",
    "due_in": "due_in(array[{group_id}], array[null::bigint], 0, null)",
    "lock_for_transaction": "lock_for_transaction('{{}}', array[{partition_id}], '{{}}')",
    "note_copies": "note_copies(array[{dead_letter_id}], array[{partition_id}], array[1])",
    "configure": "configure('{queue}', null, null, '{{\"retry_limit\": 7}}', null)",
    "seek": "seek({group_id}, {partition_id}, 'end', null, null, null)",
    "delete_group": "delete_group({queue_id}, 'h', false, null)",
    "delete_queue": "delete_queue('{queue}x', null)",
    "stop_encryption": "stop_encryption('{queue}', null)",
}
"""A call of each function that rules are about."""
WITHOUT_QUEUE = {"schema_state", "take_forwards", "due_in_labels", "queues_by_priority"}
"""About no queue, about what died in the same transaction, and about all queues: those are tried below."""
BEHIND_VIEWS = {"may_read", "as_text", "message_id"}
"""With those that begin with `read_`: they refuse nothing, and say nothing (test_roles.py)."""
RIGHTS = ("push", "pop", "browse", "manage", "configure", "admin")


async def test_every_function_that_rules_are_about_is_tried(owner: asyncpg.Connection[Any]) -> None:
    listed = set(await owner.fetchval("select lockstep.functions_for('admin')"))
    behind_views = BEHIND_VIEWS | {name for name in listed if name.startswith("read_")}
    assert listed == set(CALLS) | WITHOUT_QUEUE | behind_views


@pytest.mark.parametrize("right", RIGHTS)
async def test_matrix_of_rights_functions_and_queues(
    dsn: str, owner: asyncpg.Connection[Any], role: str, right: str
) -> None:
    """Every function with ids of an own queue and of a foreign one: what the right is about, on the own."""
    store = PostgresStore(dsn)
    own, foreign = await ids_of(owner, store, OWN), await ids_of(owner, store, FOREIGN)
    await store.close()
    await give(owner, right, "orders.*", role)
    allowed = set(await owner.fetchval("select lockstep.functions_for($1)", right))
    for function, call in CALLS.items():
        for ids, is_own in ((own, True), (foreign, False)):
            statement = f"select * from lockstep.{call.format(**ids._asdict())}"
            outcome = await tried(owner, role, statement)
            if function not in allowed:
                assert outcome == "42501", (function, is_own, outcome)
            elif is_own:
                # A copy is noted where the right to push comes from the dead queue.
                expected = {None, NOT_ALLOWED} if function in SHARED_WITH_PUSH and right == "pop" else {None}
                assert outcome in expected, (function, outcome)
            else:
                assert outcome == NOT_ALLOWED, (function, outcome)


SHARED_WITH_PUSH = {"resolve", "mark_expiring", "push_segments", "push_run", "push_runs", "occupancy", "note_copies"}
"""A consumer calls them for copies to dead queues."""


async def tried(owner: asyncpg.Connection[Any], role: str, statement: str) -> str | None:
    """The SQLSTATE with which a statement fails as a role; nothing that it does stays."""
    transaction = owner.transaction()
    await transaction.start()
    try:
        await owner.execute(f"set local session authorization {role}")
        await owner.fetch(statement)
    except asyncpg.PostgresError as error:
        return error.sqlstate
    finally:
        await transaction.rollback()
    return None


async def test_parts_of_a_call_on_a_foreign_queue(dsn: str, owner: asyncpg.Connection[Any], role: str) -> None:
    """A call is all or nothing, and ids of two queues do not go together."""
    store = PostgresStore(dsn)
    own, foreign = await ids_of(owner, store, OWN), await ids_of(owner, store, FOREIGN)
    await store.close()
    for right in ("push", "pop"):
        await give(owner, right, "orders.*", role)
    message = "0::smallint, 1, null, array['1'::bytea], true, null, null, false"
    for statement in (
        f"push_run({own.queue_id}, {foreign.partition_id}, {message})",
        f"push_run({foreign.queue_id}, {own.partition_id}, {message})",
        f"ack_leases(array['{own.lease_id}', '{foreign.lease_id}']::uuid[], null)",
        f"load_segments(array[{own.segment_id}, {foreign.segment_id}])",
        f"place_slice({own.group_id}, {foreign.partition_id}, 5, null)",
        f"note_copies(array[{foreign.dead_letter_id}], array[{own.partition_id}], array[1])",
        f"note_copies(array[{own.dead_letter_id}], array[{foreign.partition_id}], array[1])",
    ):
        assert await tried(owner, role, f"select * from lockstep.{statement}") == NOT_ALLOWED, statement


SHAPES = {"bounds": "array_fill({id}, array[1], array[0])", "dimensions": "array[array[{id}]]"}
"""Arrays of one id that have no element 1."""


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("right", RIGHTS)
async def test_arrays_of_any_shape_give_no_way_to_other_queues(
    dsn: str, owner: asyncpg.Connection[Any], role: str, right: str, shape: str
) -> None:
    """Every id of a foreign queue in an array of another shape, also beside ids of the own queue."""
    store = PostgresStore(dsn)
    own, foreign = await ids_of(owner, store, OWN), await ids_of(owner, store, FOREIGN)
    await store.close()
    await give(owner, right, "orders.*", role)
    allowed = set(await owner.fetchval("select lockstep.functions_for($1)", right))
    for function in set(CALLS) & allowed:
        arrays = re.findall(r"array\[('?\{\w+_id\}'?(?:::uuid)?)\]", CALLS[function])
        for chosen in arrays:
            reshaped = CALLS[function].replace(f"array[{chosen}]", SHAPES[shape].replace("{id}", chosen))
            among_own = reshaped.format(**(own._asdict() | {name: getattr(foreign, name) for name in named(chosen)}))
            for call in (reshaped.format(**foreign._asdict()), among_own):
                outcome = await tried(owner, role, f"select * from lockstep.{call}")
                assert outcome == NOT_ALLOWED, (call, outcome)


TIMED = {
    "push_run": "push_run({queue_id}, {partition_id}, 0::smallint, 1, null, array['1'::bytea], true, {time}, null, "
    "false)",
    "resolve": "resolve('orders.new', array['p'], {time})",
    "mark_expiring": "mark_expiring('orders.new', {time})",
    "schedule": "schedule(array[{queue_id}], array['Default'], array[{time}], array[null::text], array[null::text], "
    "array[1::smallint], array['1'::bytea], null)",
    "subscribe": "subscribe({queue_id}, 'h', 'from', {time}, null, null)",
    "pop": "pop(array[0], array[{group_id}], array[{partition_id}], array[1], array[1], array[null::bigint], "
    "array[gen_random_uuid()], array[false], {time})",
    "ack_items": "ack_items(array[null::uuid], array[{partition_id}], array[1], array[null::text], array['g'], "
    "array['failed'], array[null::text], array[{time}], null)",
    "renew": "renew(array['{lease_id}'::uuid], array[900000000000000], null)",
    "seek": "seek({group_id}, {partition_id}, 'time', {time}, null, null)",
    "configure": "configure('orders.new', null, null, '{{}}', {time})",
}


@pytest.mark.parametrize("time", ["infinity", "-infinity", "20000-01-01", "0100-01-01 BC"])
async def test_times_that_cannot_be_read_are_refused(
    dsn: str, owner: asyncpg.Connection[Any], role: str, time: str
) -> None:
    """One that a client cannot read would break what goes over all queues: lists, and the promotion."""
    store = PostgresStore(dsn)
    own = await ids_of(owner, store, OWN)
    await store.close()
    await give(owner, "admin", "orders.*", role)
    for call in TIMED.values():
        statement = call.format(**own._asdict(), time=f"'{time}'::timestamptz")
        assert await tried(owner, role, f"select * from lockstep.{statement}") == "LS004", statement


@pytest.mark.parametrize("name", ["orders.\x1b[2J", "orders.\n", "orders." + "x" * 300, "orders.\u2028"])
async def test_names_that_others_refuse_are_refused(owner: asyncpg.Connection[Any], role: str, name: str) -> None:
    await give(owner, "push", "orders.*", role)
    for call in (
        f"resolve('{name}', '{{}}')",
        f"resolve('orders.eu', array['{name}'])",
        f"mark_expiring('{name}', null)",
    ):
        assert await tried(owner, role, f"select * from lockstep.{call}") == "LS004", call


def named(placeholders: str) -> list[str]:
    return re.findall(r"\{(\w+)\}", placeholders)


async def test_what_others_have_left_to_be_forwarded_is_not_taken(
    dsn: str, owner: asyncpg.Connection[Any], role: str
) -> None:
    store = PostgresStore(dsn)
    foreign = await ids_of(owner, store, FOREIGN)
    await store.close()
    await owner.execute("update lockstep.dead_letter set forward_to = $1", foreign.queue_id)
    await give(owner, "pop", "orders.*", role)
    assert await tried(owner, role, "select * from lockstep.take_forwards()") == NOT_ALLOWED


@pytest.mark.parametrize(
    "options", ['{"id": 1}', '{"name": "billing.eu"}', '{"namespace": "billing"}', '{"sealed_after": 5}']
)
async def test_configure_sets_options_only(owner: asyncpg.Connection[Any], role: str, options: str) -> None:
    await give(owner, "admin", "orders.*", role)
    statement = f"select lockstep.configure('{OWN}', null, null, '{options}', null)"
    assert await tried(owner, role, statement) == "LS004"


@pytest.mark.parametrize(
    "call",
    [
        "configure('orders.eu', null, null, '{\"dead_queue\": \"billing.eu\"}', null)",
        "configure('orders.eu', 'billing', null, '{\"retry_limit\": 7}', null)",
        "configure('orders.eu', null, 'us', '{\"retry_limit\": 7}', null)",
    ],
)
async def test_configure_gives_no_way_to_other_queues(owner: asyncpg.Connection[Any], role: str, call: str) -> None:
    await give(owner, "admin", "orders.*", role)
    assert await tried(owner, role, f"select lockstep.{call}") == NOT_ALLOWED


async def test_a_role_cannot_change_rules_or_pass_for_another(owner: asyncpg.Connection[Any], role: str) -> None:
    await give(owner, "admin", "*", role)
    for statement in (
        f"select lockstep.grant_right('push', '*', '{role}')",
        f"insert into lockstep.role_rule values ('{role}', 'push', '*')",
        "select lockstep.caller()",
        "select set_config('role', 'lockstep_server', true)",
    ):
        assert await tried(owner, role, statement) == "42501", statement
    # Within the functions the owner is the current user; the caller is not.
    assert await tried(owner, role, "select set_config('is_superuser', 'on', true)") is not None


async def test_pops_by_namespace_need_the_right_on_all_queues(
    dsn: str, owner: asyncpg.Connection[Any], role: str
) -> None:
    await give(owner, "pop", "orders.*", role)
    store = PostgresStore(as_role(dsn, role))
    await store.open()
    with pytest.raises(Forbidden):
        await store.pop([PopRequest(namespace="orders")])
    assert (
        await tried(owner, role, "select lockstep.due_in_labels('{orders}', '{null}', '{g}', 0, null)") == NOT_ALLOWED
    )
    await give(owner, "pop", "*", role)
    assert not (await store.pop([PopRequest(namespace="orders")]))[0].runs
    await store.close()

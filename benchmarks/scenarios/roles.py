"""What rights of roles cost: the same calls with nobody asked, as the owner, and as a role with rules.

The bars are on CPU, of PostgreSQL's backends and of this process, in alternating slices of as many calls: on a machine
that others use, messages per second say more about the others.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import cycle
from statistics import median

from benchmarks.harness import CALLERS, Bar, Outcome, Side, Table, progress
from benchmarks.messages import Messages
from benchmarks.processes import cpu_seconds_exact
from benchmarks.scenarios.setting import PREPARED_CALLS, QUEUE, Setting, table
from benchmarks.servers import connection, opened_engine
from lockstep import Batch, Engine
from lockstep.core.records import Ack, PopRequest, Subscription

SIZE = 100
ROLE = "lockstep_bench_app"
_UNASKED = """
do $$
declare
    _function regprocedure;
begin
    for _function in select p.oid::regprocedure from pg_proc p
        where p.pronamespace = 'lockstep'::regnamespace and p.proname = any (lockstep.functions_for('admin'))
    loop
        execute format('alter function %s security invoker', _function);
        execute format('alter function %s reset search_path', _function);
    end loop;
end $$;
create or replace function lockstep.is_trusted() returns boolean language sql immutable as 'select true';
"""
"""As all of it was before roles had rights."""


async def roles_scenario(setting: Setting) -> Outcome:
    """Each in a database of its own, so that its backends can be told apart."""
    server = setting.server
    async with (
        server.database() as before,
        server.database() as owners,
        server.database() as members,
        opened_engine(before) as unasked,
        opened_engine(owners) as owner,
    ):
        async with connection(before) as direct:
            await direct.execute(_UNASKED)
        async with opened_engine(members) as maker, _role(members), opened_engine(_as_role(members)) as member:
            for engine in (unasked, owner, maker):
                await engine.configure(QUEUE)
                await engine.subscribe(QUEUE, "g", Subscription())
            engines = {"nobody asked": unasked, "the owner": owner, "a role with rules": member}
            databases = {"nobody asked": before, "the owner": owners, "a role with rules": members}
            measured, spent = [], []
            for verb in (_push, _cycle):
                sides = [verb(engine, setting.messages, name) for name, engine in engines.items()]
                measured.append(await setting.compare(sides[0], sides[1:]))
                spent.append(await _spent(setting, sides, databases))
    pushes, cycles = measured
    bars = [
        Bar.at_least(
            f"{verb}, batch {SIZE}, as {row['name']}: CPU with nobody asked, times this", row["times_cpu"], 0.95
        )
        for verb, rows in zip(("push", "push, pop and ack"), spent, strict=True)
        for row in rows[1:]
    ]
    return Outcome(
        [
            table(f"push, batch {SIZE}, by who calls", pushes),
            table(f"push, pop and ack, batch {SIZE}, by who calls", cycles),
            Table(f"CPU of a push, batch {SIZE}", spent[0]),
            Table(f"CPU of a push, a pop and an ack, batch {SIZE}", spent[1]),
        ],
        bars,
    )


CALLS_A_SLICE = 50
_BACKENDS = "select pid from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"


async def _spent(setting: Setting, sides: list[Side], databases: dict[str, str]) -> list[dict[str, object]]:
    """The CPU of one caller's calls. Each slice is compared with that of the first side in the same round."""
    spent: dict[str, list[tuple[float, float]]] = {side.name: [] for side in sides}
    for number in range(3 * setting.rounds + 1):
        for side in sides if number % 2 else reversed(sides):
            async with connection(databases[side.name]) as direct:
                backends = [row[0] for row in await direct.fetch(_BACKENDS)]
            before = cpu_seconds_exact(backends), cpu_seconds_exact([os.getpid()])
            for _ in range(CALLS_A_SLICE):
                await side.work(0)
            after = cpu_seconds_exact(backends), cpu_seconds_exact([os.getpid()])
            if number:  # the first round warms up
                spent[side.name].append((after[0] - before[0], after[1] - before[1]))
    base = next(iter(spent.values()))
    rows: list[dict[str, object]] = []
    for name, slices in spent.items():
        ratio = median([sum(first) / sum(one) for first, one in zip(base, slices, strict=True)])
        database, ours = [1e6 * median([one[part] for one in slices]) / CALLS_A_SLICE for part in (0, 1)]
        rows.append(
            {"name": name, "database_us": round(database), "ours_us": round(ours), "times_cpu": round(ratio, 3)}
        )
        progress(f"  {name}: {database:.0f} us of the database, {ours:.0f} us of ours, {ratio:.3f} times the CPU")
    return rows


@asynccontextmanager
async def _role(dsn: str) -> AsyncIterator[None]:
    """A role with ten rules, of which one is for the queue."""
    async with connection(dsn) as direct:
        await direct.execute(f"create role {ROLE}")
        try:
            for number in range(4):
                for right in ("push", "pop"):
                    await direct.fetch("select lockstep.grant_right($1, $2, $3)", right, f"other{number}.*", ROLE)
            for right in ("push", "pop"):
                await direct.fetch("select lockstep.grant_right($1, 'bench.*', $2)", right, ROLE)
            yield
        finally:
            await direct.execute(f"drop owned by {ROLE}; drop role {ROLE}")


def _as_role(dsn: str) -> str:
    return f"{dsn}{'&' if '?' in dsn else '?'}options=-c%20role%3D{ROLE}"


def _batches(messages: Messages) -> list[cycle[list[Batch]]]:
    return [
        cycle([[Batch.of(QUEUE, messages.batch(SIZE), partition=f"p{caller}")] for _ in range(PREPARED_CALLS)])
        for caller in range(CALLERS)
    ]


def _push(engine: Engine, messages: Messages, who: str) -> Side:
    calls = _batches(messages)

    async def push(caller: int) -> int:
        await engine.push(next(calls[caller]))
        return SIZE

    return Side(who, push)


def _cycle(engine: Engine, messages: Messages, who: str) -> Side:
    calls = _batches(messages)

    async def turn(caller: int) -> int:
        await engine.push(next(calls[caller]))
        [popped] = await engine.pop([PopRequest(queue=QUEUE, partition=f"p{caller}", batch=SIZE, group="g")])
        await engine.ack([Ack(lease_id=popped.lease_id, status="completed")])
        return SIZE

    return Side(who, turn)

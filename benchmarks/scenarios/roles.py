"""What rights of roles cost: the same calls with nobody asked, as the owner, and as a role with rules."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import cycle

from benchmarks.harness import CALLERS, Bar, Outcome, Side
from benchmarks.messages import Messages
from benchmarks.scenarios.setting import PREPARED_CALLS, QUEUE, Setting, table
from benchmarks.servers import connection, opened_engine
from lockstep import Batch, Engine
from lockstep.core.records import Ack, PopRequest

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
    server = setting.server
    async with server.database() as before, server.database() as dsn, opened_engine(before) as unasked:
        async with connection(before) as direct:
            await direct.execute(_UNASKED)
        async with opened_engine(dsn) as owner, _role(dsn), opened_engine(_as_role(dsn)) as member:
            engines = {"nobody asked": unasked, "the owner": owner, "a role with rules": member}
            measured = []
            for verb in (_push, _cycle):
                sides = [verb(engine, setting.messages, name) for name, engine in engines.items()]
                measured.append(await setting.compare(sides[0], sides[1:]))
    pushes, cycles = measured
    return Outcome(
        [
            table(f"push, batch {SIZE}, by who calls", pushes),
            table(f"push, pop and ack, batch {SIZE}, by who calls", cycles),
        ],
        [
            Bar.at_least("push, batch 100, as the owner: times the same with nobody asked", pushes[1].ratio, 0.95),
            Bar.at_least("push, batch 100, as a role with rules: times the same", pushes[2].ratio, 0.95),
            Bar.at_least("push, pop and ack as the owner: times the same", cycles[1].ratio, 0.95),
            Bar.at_least("push, pop and ack as a role with rules: times the same", cycles[2].ratio, 0.95),
        ],
    )


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

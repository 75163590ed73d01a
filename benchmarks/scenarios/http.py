"""HTTP against the plain INSERT and the engine in the process: push, pop with ack, a lone client, idle polls."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import cycle
from statistics import median

import asyncpg

from benchmarks.harness import CALLERS, Bar, Measurement, Outcome, Side, Table, measure, progress
from benchmarks.http_client import Connection, request
from benchmarks.processes import children, cpu_seconds, parent
from benchmarks.scenarios.push import analyze, create_partitions
from benchmarks.scenarios.setting import PREPARED_CALLS, QUEUE, Plain, Setting
from benchmarks.servers import connection, opened_engine
from lockstep import Ack, Batch, Engine, PopRequest

Encode = Callable[[list[bytes], str], bytes]
"""What makes the request of a push from payloads and the name of their partition."""

CONNECTIONS_MAX = 50
BATCHES = (1, 10, 100, 1000)
CONNECTIONS = (1, 10, 50)
POP_QUEUE = "bench.pop"
POP_PARTITIONS = 1_000
IDLE_POLLS = 5_000

_SERVE = (
    "from lockstep.config import load; from lockstep.server.serving import run, serve; "
    "run(serve(load(), announce=lambda url, address: print(url, flush=True)))"
)


@dataclass(slots=True)
class Target:
    """A server process on its own database, connections to it, and what else is compared there."""

    url: str
    pid: int
    postmaster: int
    connections: list[Connection]
    plain: Plain
    engine: Engine

    def cpu(self) -> tuple[float, float]:
        """CPU seconds of the server and of the database."""
        return cpu_seconds(children(self.pid)), cpu_seconds(children(self.postmaster))


@asynccontextmanager
async def served(setting: Setting) -> AsyncIterator[Target]:
    async with (
        setting.server.database() as dsn,
        Plain.opened(dsn, CONNECTIONS_MAX) as plain,
        opened_engine(dsn, pool_connections_max=CALLERS) as engine,
        connection(dsn) as direct,
    ):
        await create_partitions(engine, setting.messages)
        await analyze(dsn)
        async with server_process(dsn) as (url, pid):
            connections = [await Connection.to(url) for _ in range(CONNECTIONS_MAX)]
            postmaster = await _postmaster(direct)
            yield Target(url, pid, postmaster, connections, plain, engine)
            for each in connections:
                each.close()


@asynccontextmanager
async def server_process(dsn: str, **settings: object) -> AsyncIterator[tuple[str, int]]:
    """The URL and the pid of a server in a process of its own, with default settings but for these."""
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-spool-") as spool_dir:
        environ = {name: value for name, value in os.environ.items() if not name.startswith("LOCKSTEP_")}
        environ |= {"LOCKSTEP_DSN": dsn, "LOCKSTEP_PORT": "0", "LOCKSTEP_SPOOL_DIR": spool_dir}
        environ |= {f"LOCKSTEP_{name.upper()}": str(value) for name, value in settings.items()}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", _SERVE, env=environ, stdout=asyncio.subprocess.PIPE
        )
        try:
            assert process.stdout is not None
            yield (await process.stdout.readline()).decode().strip(), process.pid
        finally:
            process.terminate()
            async with asyncio.timeout(30):
                await process.wait()


async def _postmaster(direct: asyncpg.Connection) -> int:
    backend: int = await direct.fetchval("select pg_backend_pid()")
    return parent(backend)


# --- Push -----------------------------------------------------------------------------------------------------


def http_push(
    target: Target, setting: Setting, size: int, connections: int, *, name: str = "HTTP", encode: Encode | None = None
) -> Side:
    """Every connection pushes to a partition of its own."""
    encode = encode or _push_request
    calls = [
        cycle([encode(setting.messages.batch(size), f"p{caller}") for _ in range(PREPARED_CALLS // 8 or 1)])
        for caller in range(connections)
    ]

    async def push(caller: int) -> int:
        status, body = await target.connections[caller].ask(next(calls[caller]))
        if status != 201:
            raise RuntimeError(f"the server answered {status}: {body[:200]!r}")
        return size

    return Side(f"{name} push, batch {size}, {connections} connections", push, callers=connections)


def _push_request(payloads: list[bytes], partition: str) -> bytes:
    items = [
        b'{"queue":"%s","partition":"%s","payload":%s}' % (QUEUE.encode(), partition.encode(), p) for p in payloads
    ]
    return request("POST", "/api/v1/push", b'{"items":[' + b",".join(items) + b"]}")


def direct_push(target: Target, setting: Setting, size: int, callers: int) -> Side:
    calls = [
        cycle([[Batch.of(QUEUE, setting.messages.batch(size), partition=f"p{i}")] for _ in range(PREPARED_CALLS // 8)])
        for i in range(callers)
    ]

    async def push(caller: int) -> int:
        await target.engine.push(next(calls[caller]))
        return size

    return Side(f"direct push, batch {size}, {callers} callers", push, callers=callers)


async def http_push_scenario(setting: Setting) -> Outcome:
    tables, bars = [], []
    async with served(setting) as target:
        for size in BATCHES:
            base = target.plain.side(setting.messages, size, CONNECTIONS_MAX if size == 1 else CALLERS)
            sides = [http_push(target, setting, size, count) for count in CONNECTIONS]
            sides.append(direct_push(target, setting, size, 10))
            measured = await setting.compare(base, sides)
            tables.append(_beside_direct(f"HTTP push, batch {size}", measured))
            if size == 100:
                bars.append(_bar(measured[2], 1))
            if size == 1:
                bars.append(_bar(measured[3], 0.7))
        tables.append(
            Table("CPU of one second's work", [await _split(target, setting, http_push(target, setting, 100, 10))])
        )
    return Outcome(tables, bars)


def _beside_direct(title: str, measured: list[Measurement]) -> Table:
    """The table with one more column: times the engine in this process, which is the last side."""
    direct = measured[-1].ratio
    return Table(title, [{**each.row(), "times_direct": round(each.ratio / direct, 2)} for each in measured])


async def _split(target: Target, setting: Setting, side: Side) -> dict[str, object]:
    """How the work is split between server, database and load generator."""
    seconds = max(setting.seconds, 1)
    if side.prepare is not None:
        await side.prepare(seconds)  # not in what is split
    before = target.cpu()
    slice_ = await measure(side, seconds, setting.server.wal_bytes)
    server, database = (after - b for after, b in zip(target.cpu(), before, strict=True))
    per_message = 1e6 / slice_.messages
    return {
        "name": side.name,
        "messages_per_second": round(slice_.rate),
        "server_us_per_message": round(server * per_message, 2),
        "database_us_per_message": round(database * per_message, 2),
        "generator_us_per_message": round(slice_.cpu_seconds * per_message, 2),
    }


def _bar(measured: Measurement, target: float) -> Bar:
    return Bar.at_least(f"{measured.name}: times the plain INSERT", measured.ratio, target)


# --- Pop and ack ----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Consumers:
    """Connections that pop up to 10 partitions a call, and ack by lease."""

    target: Target
    setting: Setting
    size: int
    connections: int
    media: str = "application/json"
    name: str = "HTTP"

    async def prepare(self, seconds: float) -> None:
        """Enough to do for the slice; what is left over from the one before counts, too."""
        wanted = int(seconds * 200_000) + 20_000 if self.size >= 100 else int(seconds * 60_000) + 5_000
        depth = await self.target.engine.depth(POP_QUEUE, "__QUEUE_MODE__", exact=True)
        missing = max(wanted - depth.pending, 0)
        each = max(self.size // 10, 1)
        for start in range(0, missing, each * POP_PARTITIONS // 10):
            batches = [
                Batch.of(
                    POP_QUEUE, self.setting.messages.batch(each), partition=f"p{(start // each + i) % POP_PARTITIONS}"
                )
                for i in range(POP_PARTITIONS // 10)
            ]
            await self.target.engine.push(batches)

    async def pop_and_ack(self, caller: int) -> int:
        asking = self.target.connections[caller]
        path = f"/api/v1/pop/queue/{POP_QUEUE}?batch={self.size}&partitions=10"
        status, body = await asking.ask(request("GET", path, accept=self.media))
        if status == 204:  # nothing there
            return 0
        if status != 200:
            raise RuntimeError(f"the pop was answered {status}: {body[:200]!r}")
        start = body.index(b'"leaseId":"') + 11
        lease = body[start : start + 36].decode()
        status, answer = await asking.ask(request("POST", f"/api/v1/lease/{lease}/ack", b"{}"))
        count = int(answer.partition(b'"messages":')[2].partition(b",")[0])
        if status != 200 or not count:
            raise RuntimeError(f"the ack was answered {status}: {answer!r}")
        return count

    def side(self) -> Side:
        name = f"{self.name} pop + ack, batch {self.size}, {self.connections} connections"
        return Side(name, self.pop_and_ack, self.prepare, callers=self.connections)


@dataclass(slots=True)
class DirectConsumers(Consumers):
    async def pop_and_ack(self, caller: int) -> int:  # noqa: ARG002
        wanted = PopRequest(queue=POP_QUEUE, batch=self.size, partitions=10)
        [popped] = await self.target.engine.pop([wanted])
        if popped.lease_id is None:
            return 0
        [outcome] = await self.target.engine.ack([Ack(lease_id=popped.lease_id)])
        return outcome.messages

    def side(self) -> Side:
        name = f"direct pop + ack, batch {self.size}, {self.connections} callers"
        return Side(name, self.pop_and_ack, self.prepare, callers=self.connections)


async def http_pop_scenario(setting: Setting) -> Outcome:
    tables, bars = [], []
    async with served(setting) as target:
        await target.engine.configure(POP_QUEUE)
        base = target.plain.side(setting.messages, 100)
        for size in BATCHES:
            sides = [Consumers(target, setting, size, count).side() for count in CONNECTIONS]
            sides.append(DirectConsumers(target, setting, size, 10).side())
            measured = await setting.compare(base, sides)
            tables.append(_beside_direct(f"HTTP pop + ack, batch {size}, up to 10 partitions a call", measured))
            if size == 100:
                bars.append(_bar(measured[2], 0.5))
        split = await _split(target, setting, Consumers(target, setting, 100, 10).side())
        tables.append(Table("CPU of one second's work", [split]))
    return Outcome(tables, bars)


# --- A lone client --------------------------------------------------------------------------------------------


async def lone_push_scenario(setting: Setting) -> Outcome:
    """One client, one message at a time: what the server adds to the database's own commit."""
    async with served(setting) as target:
        insert = target.plain.side(setting.messages, 1, 1)
        push = http_push(target, setting, 1, 1)
        commits: list[float] = []
        pushes: list[float] = []
        for _ in range(setting.rounds + 1):
            for side, latencies in ((insert, commits), (push, pushes)):
                slice_ = await measure(side, setting.seconds, setting.server.wal_bytes)
                latencies.append(1000 * median(slice_.latencies))
        # The first round warms up.
        commit, lone = median(commits[1:]), median(pushes[1:])
    rows = [{"name": "single-row INSERT", "p50_ms": round(commit, 3)}, {"name": "HTTP push", "p50_ms": round(lone, 3)}]
    added = Bar.at_most("a lone HTTP push: p50 beyond the database's own commit, ms", lone - commit, 0.6)
    return Outcome([Table("A lone client, one message at a time", rows)], [added])


# --- Idle polls -----------------------------------------------------------------------------------------------


async def idle_polls_scenario(setting: Setting) -> Outcome:
    """Thousands of polls that wait for nothing."""
    seconds = max(setting.seconds * 5, 3)
    async with served(setting) as target:
        polls = [await Connection.to(target.url) for _ in range(IDLE_POLLS)]
        path = "/api/v1/pop/queue/bench.idle?wait=true&timeout=60000"
        waiting = [asyncio.ensure_future(each.ask(request("GET", path))) for each in polls]
        await asyncio.sleep(3)
        before, began = target.cpu(), time.perf_counter()
        await asyncio.sleep(seconds)
        elapsed = time.perf_counter() - began
        server, database = (100 * (after - b) / elapsed for after, b in zip(target.cpu(), before, strict=True))
        progress(f"  {IDLE_POLLS} polls: server {server:.1f} %, database {database:.1f} % of a core")
        for each in polls:
            each.close()
        await asyncio.gather(*waiting, return_exceptions=True)
    rows = [{"name": f"{IDLE_POLLS} idle polls", "server_percent": server, "database_percent": database}]
    return Outcome(
        [Table("Idle long polls, per cent of one core", rows)],
        [Bar.at_most(f"{IDLE_POLLS} idle long polls: per cent of a core", server + database, 10)],
    )

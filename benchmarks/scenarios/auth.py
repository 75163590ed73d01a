"""What it costs to ask who callers are: the same requests to a server without auth, and with an API key."""

from __future__ import annotations

import asyncio
from itertools import cycle
from statistics import median

from benchmarks.harness import Bar, Outcome, Side, Table, progress
from benchmarks.http_client import Connection, request
from benchmarks.processes import children, cpu_seconds_exact
from benchmarks.scenarios.http import server_process
from benchmarks.scenarios.push import create_partitions
from benchmarks.scenarios.setting import PREPARED_CALLS, QUEUE, Setting
from benchmarks.servers import opened_engine
from lockstep.core.access import NewApiKey

CONNECTIONS = 10
SIZE = 100
REQUESTS_A_ROUND = 4_000
PUSHES_A_ROUND = 400


async def http_auth_scenario(setting: Setting) -> Outcome:
    """A key with rules by pattern, which costs more than one with a role."""
    async with setting.server.database() as dsn, opened_engine(dsn) as engine:
        await create_partitions(engine, setting.messages)
        made = await engine.create_key(NewApiKey(name="bench", rules=("push,pop bench.*", "browse other.*")))
        async with server_process(dsn) as (url, pid), server_process(dsn, auth="required") as (asking_url, asking_pid):
            plain, asking = _Server(url, pid), _Server(asking_url, asking_pid, made.token)
            for server in (plain, asking):
                await server.connect()
            measured = await setting.compare(plain.push(setting), [asking.push(setting)])
            added = await _added_cpu(plain, asking, setting.rounds)
            times = await _times_cpu(plain.push(setting), asking.push(setting), (plain, asking), setting.rounds)
            for server in (plain, asking):
                server.close()
    rows = [each.row() for each in measured]
    return Outcome(
        [
            Table(f"HTTP push, batch {SIZE}, {CONNECTIONS} connections, without auth and with a key", rows),
            Table("CPU of the server beyond that without auth", [{"name": "an empty pop", "us_per_request": added}]),
        ],
        [
            Bar.at_least("HTTP push, batch 100, without auth: CPU of the server, times that with a key", times, 0.95),
            Bar.at_most("a request with a key: CPU of the server beyond that without auth, us", added, 30),
        ],
    )


class _Server:
    """A server and connections to it."""

    def __init__(self, url: str, pid: int, token: str | None = None) -> None:
        self.url, self.pid, self.token = url, pid, token
        self.connections: list[Connection] = []

    async def connect(self) -> None:
        self.connections = [await Connection.to(self.url) for _ in range(CONNECTIONS)]

    def close(self) -> None:
        for connection in self.connections:
            connection.close()

    def push(self, setting: Setting) -> Side:
        items = b'{"queue":"%s","partition":"p%d","payload":%s}'
        calls = [
            cycle(
                [
                    self._request(
                        "POST",
                        "/api/v1/push",
                        b'{"items":[%s]}'
                        % b",".join([items % (QUEUE.encode(), caller, p) for p in setting.messages.batch(SIZE)]),
                    )
                    for _ in range(PREPARED_CALLS // 8)
                ]
            )
            for caller in range(CONNECTIONS)
        ]

        async def push(caller: int) -> int:
            status, body = await self.connections[caller].ask(next(calls[caller]))
            if status != 201:
                raise RuntimeError(f"the server answered {status}: {body[:200]!r}")
            return SIZE

        return Side("with a key" if self.token else "without auth", push, callers=CONNECTIONS)

    def _request(self, method: str, path: str, body: bytes = b"") -> bytes:
        return request(method, path, body, token=self.token)

    async def empty_pops(self, count: int) -> float:
        """CPU seconds of the server for each."""
        asked = self._request("GET", "/api/v1/pop/queue/bench.empty")

        async def ask(connection: Connection) -> None:
            for _ in range(count // CONNECTIONS):
                status, body = await connection.ask(asked)
                if status != 204:
                    raise RuntimeError(f"the server answered {status}: {body[:200]!r}")

        before = cpu_seconds_exact(children(self.pid))
        await asyncio.gather(*map(ask, self.connections))
        return (cpu_seconds_exact(children(self.pid)) - before) / count


async def _times_cpu(without: Side, with_key: Side, servers: tuple[_Server, _Server], rounds: int) -> float:
    """CPU of the server without auth as a part of that with a key, in slices of as many pushes that alternate."""
    ratios = []
    for number in range(2 * rounds + 1):
        spent = []
        for side, server in zip((without, with_key), servers, strict=True):
            before = cpu_seconds_exact(children(server.pid))
            await asyncio.gather(*[_repeat(side, caller) for caller in range(CONNECTIONS)])
            spent.append(cpu_seconds_exact(children(server.pid)) - before)
        if number:  # the first one warms up
            ratios.append(spent[0] / spent[1])
    return round(median(ratios), 3)


async def _repeat(side: Side, caller: int) -> None:
    for _ in range(PUSHES_A_ROUND // CONNECTIONS):
        await side.work(caller)


async def _added_cpu(plain: _Server, asking: _Server, rounds: int) -> float:
    """Microseconds for each request, as the median over neighbouring rounds."""
    added = []
    for number in range(rounds + 1):
        without = await plain.empty_pops(REQUESTS_A_ROUND)
        with_key = await asking.empty_pops(REQUESTS_A_ROUND)
        if number:  # the first one warms up
            added.append(1e6 * (with_key - without))
            progress(f"  an empty pop: {1e6 * without:.1f} us without auth, {1e6 * with_key:.1f} us with a key")
    return round(median(added), 1)

"""Two servers on one database that ask who callers are: what a revocation does to producers and consumers at work."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import pytest_asyncio

import lockstep
from lockstep import AsyncClient
from lockstep.errors import Unauthorized
from support.databases import Databases
from support.server import running_server
from support.until import until

REACHES_SECONDS = 5.0
"""What is promised. Here it is only a bound on a wait for a signal, which comes sooner."""


@pytest_asyncio.fixture
async def two(databases: Databases, tmp_path: Path) -> AsyncIterator[tuple[list[str], AsyncClient]]:
    """The addresses of two servers, and their database."""
    dsn = databases.clone()
    async with AsyncExitStack() as stack:
        urls = []
        for name in ("one", "other"):
            (tmp_path / name).mkdir()
            server = stack.enter_context(running_server(dsn, tmp_path / name, auth="required"))
            urls.append(server.url)
        direct = await stack.enter_async_context(lockstep.connect_async(dsn))
        yield urls, direct
    databases.drop(dsn)


async def test_revocation_under_load_reaches_both_servers(two: tuple[list[str], AsyncClient]) -> None:
    urls, direct = two
    bad, good = [await direct.create_key(name, role="read-write") for name in ("bad", "good")]
    working = {name: 0 for name in ("bad", "good")}
    begun = asyncio.Event()

    async def work(name: str, token: str, url: str) -> None:
        async with lockstep.connect_async(url, token=token) as client:
            while True:
                await client.push(name, {"n": 1})
                delivery = await client.pop(name, wait=True, timeout_seconds=1)
                await delivery.ack()
                working[name] += 1
                if min(working.values()) > 5:
                    begun.set()

    async with asyncio.TaskGroup() as group:
        keeping = [group.create_task(work("good", good.token, url)) for url in urls]
        revoked = [asyncio.create_task(work("bad", bad.token, url)) for url in urls]
        await begun.wait()
        assert await direct.revoke_key(bad.key.id)
        async with asyncio.timeout(REACHES_SECONDS + 30):
            ends = await asyncio.gather(*revoked, return_exceptions=True)
        assert {type(end) for end in ends} == {Unauthorized}, ends
        before = working["good"]
        await until(lambda: working["good"] > before)
        for task in keeping:
            task.cancel()
    with suppress(asyncio.CancelledError):
        await asyncio.gather(*keeping)

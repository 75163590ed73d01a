"""Two servers on one database that ask who callers are: what a revocation does to producers and consumers at work."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
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


CLIENTS = 32 if os.environ.get("LOCKSTEP_SOAK") else 4
"""Of each server."""
ROUNDS = 10 if os.environ.get("LOCKSTEP_SOAK") else 1


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


class Seen:
    """What the clients of a key were told, by server."""

    def __init__(self, urls: list[str]) -> None:
        self.accepted: dict[str, list[float]] = {url: [] for url in urls}
        """When each accepted push began."""
        self.refused: dict[str, list[float]] = {url: [] for url in urls}
        """When each client was refused."""
        self.begun = asyncio.Event()

    async def push(self, url: str, token: str, queue: str) -> None:
        async with lockstep.connect_async(url, token=token) as client:
            while True:
                began = time.monotonic()
                try:
                    await client.push(queue, {"n": 1})
                except Unauthorized:
                    self.refused[url].append(time.monotonic())
                    return
                self.accepted[url].append(began)
                if min(map(len, self.accepted.values())) > CLIENTS:
                    self.begun.set()


async def test_nothing_is_acknowledged_after_the_first_refusal(
    two: tuple[list[str], AsyncClient], record_property: Callable[[str, object], None]
) -> None:
    """Many clients push with one key. A server that has refused the key once accepts nothing more of it, and what was
    acknowledged is there, and nothing else."""
    urls, direct = two
    took = 0.0
    for number in range(ROUNDS):
        made = await direct.create_key(f"k{number}", role="read-write")
        queue, seen = f"q{number}", Seen(urls)
        clients = [asyncio.create_task(seen.push(url, made.token, queue)) for url in urls for _ in range(CLIENTS)]
        await seen.begun.wait()
        revoked_at = time.monotonic()
        assert await direct.revoke_key(made.key.id)
        async with asyncio.timeout(REACHES_SECONDS + 30):
            await asyncio.gather(*clients)
        for url in urls:
            assert len(seen.refused[url]) == CLIENTS
            assert max(seen.accepted[url]) < min(seen.refused[url]), "a push that began after a refusal was accepted"
        took = max(took, *[min(seen.refused[url]) - revoked_at for url in urls])
        assert (await direct.queue(queue)).pending == sum(map(len, seen.accepted.values()))
    record_property("seconds_until_refused", round(took, 2))
    print(f"refused everywhere {took:.2f} s after the revocation, at most")

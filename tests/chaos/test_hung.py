"""Processes that are stopped with SIGSTOP: nothing is closed, and nobody is told. The others go on after a time that a
setting names (docs/concepts/waiting.md)."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lockstep import connect_async
from lockstep.core.policy import QueueOptions
from lockstep.storage.postgres.embedded import EmbeddedPostgres
from lockstep.storage.postgres.store import PostgresStore
from support.builders import numbers, pop, push_n
from support.chaos_servers import HttpServer
from support.embedded_tools import SMALL, add_cluster, python_environment
from support.stopping import group_of, stopped

CONSUMER = Path(__file__).parents[1] / "support/hanging_consumer.py"


@pytest.fixture
def postgres(folder: Path) -> Iterator[EmbeddedPostgres]:
    server = EmbeddedPostgres(add_cluster(folder / "data"), settings=SMALL)
    server.start()
    yield server
    server.stop()


# --- A server ---------------------------------------------------------------------------------------------------


async def test_clients_of_a_server_that_hangs_go_on_with_another(postgres: EmbeddedPostgres, folder: Path) -> None:
    servers = [HttpServer(postgres.dsn, folder / f"server-{number}") for number in (1, 2)]
    try:
        hanging, other = servers
        async with (
            connect_async([hanging.url, other.url], timeout_seconds=1) as client,
            connect_async(other.url) as there,
        ):
            await there.configure("q", lease_seconds=1)
            await client.push("q", 1, partition="p")
            # Its group's lease, and whatever it is doing, stay behind with the server.
            async with connect_async(hanging.url) as here:
                assert [message.payload for message in await here.pop("q", partition="p")] == [1]
            with stopped(group_of(hanging.process.process.pid)):
                async with asyncio.timeout(60):
                    await client.push("q", 2, partition="p")
                    found: list[Any] = []
                    while not found:
                        found = [message.payload for message in await there.pop("q", partition="p", batch=2)]
            assert found == [1, 2]
    finally:
        for server in servers:
            server.close()


# --- A consumer -------------------------------------------------------------------------------------------------


async def test_what_a_consumer_that_hangs_has_leased_goes_to_another(postgres: EmbeddedPostgres) -> None:
    store = PostgresStore(postgres.dsn)
    await store.open()
    try:
        await store.configure("q", QueueOptions(lease_seconds=1))
        await push_n(store, "q", 3, partition="p")
        command = [sys.executable, str(CONSUMER), postgres.dsn, "q"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=python_environment()) as consumer:  # noqa: ASYNC220
            try:
                assert consumer.stdout is not None
                assert consumer.stdout.readline() == "3\n"
                with stopped([consumer.pid]):
                    await push_n(store, "q", 1, partition="p", start=4)
                    async with asyncio.timeout(60):
                        while not (popped := await pop(store, "q", batch=9)):
                            pass
                    assert numbers(popped) == [1, 2, 3, 4]
            finally:
                consumer.kill()
    finally:
        await store.close()

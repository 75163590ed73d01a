"""PostgreSQL goes away under load, and comes back: producers go on, and nothing is lost, doubled or out of order."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from click.testing import CliRunner

from lockstep import connect_async
from lockstep.cli.main import cli
from lockstep.errors import Unavailable
from lockstep.storage.postgres.embedded import EmbeddedPostgres
from support.broker import LONG_MS, TIMEOUT_SECONDS, Broker, data
from support.chaos_fleet import SOAK, Scale
from support.chaos_servers import HttpServer
from support.embedded_tools import SMALL, add_cluster, postmaster_pid, processes_in
from support.server import running_server

QUEUE = "orders"
PRODUCERS = 20
MAINTENANCE = "/api/v1/system/maintenance"


@pytest.fixture
def postgres(folder: Path) -> Iterator[EmbeddedPostgres]:
    """One that a test may stop and start, with durability."""
    server = EmbeddedPostgres(add_cluster(folder / "data"), settings=SMALL)
    server.start()
    yield server
    server.stop()


@dataclass
class Producer:
    """Pushes 0, 1, 2, … to a partition of its own; with transaction ids each again until it is answered."""

    name: str
    with_ids: bool
    session: aiohttp.ClientSession
    acknowledged: list[int] = field(default_factory=list)
    unknown: list[int] = field(default_factory=list)
    """Those whose fate it was not told, and that it cannot repeat."""
    statuses: list[str] = field(default_factory=list)

    async def run(self, enough: asyncio.Event) -> None:
        number = 0
        while not enough.is_set():
            if await self._push(number):
                number += 1

    async def _push(self, number: int) -> bool:
        item: dict[str, Any] = {"queue": QUEUE, "partition": self.name, "payload": number}
        if self.with_ids:
            item["transactionId"] = f"{self.name}-{number}"
        try:
            async with self.session.post("/api/v1/push", json={"items": [item]}) as response:
                answer = await response.json()
        except aiohttp.ClientError:
            answer, response_status = None, 0
        else:
            response_status = response.status
        if response_status == 201:
            self.acknowledged.append(number)
            self.statuses.append(answer[0]["status"])
            return True
        assert response_status in (0, 503), answer
        if self.with_ids:
            await asyncio.sleep(0.01)
            return False
        self.unknown.append(number)
        return True


@asynccontextmanager
async def producers(url: str) -> AsyncIterator[list[Producer]]:
    """All at work until the context ends. Some have a connection for each request, and so another worker process."""
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
    kept = aiohttp.TCPConnector(limit=0)
    closed = aiohttp.TCPConnector(limit=0, force_close=True)
    async with (
        aiohttp.ClientSession(url, timeout=timeout, connector=kept) as steady,
        aiohttp.ClientSession(url, timeout=timeout, connector=closed) as roaming,
    ):
        made = [
            Producer(f"p{number}", number % 4 != 0, roaming if number % 2 else steady) for number in range(PRODUCERS)
        ]
        enough = asyncio.Event()
        tasks = [asyncio.create_task(producer.run(enough)) for producer in made]
        try:
            yield made
        finally:
            enough.set()
            await asyncio.gather(*tasks)


async def until(happened: Callable[[], bool]) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while not happened():  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.01)


async def progress(made: list[Producer], count: int, *, status: str | None = None) -> None:
    """Until each producer has so many more acknowledged pushes, the last of them of a status."""
    before = [len(producer.statuses) for producer in made]
    await until(
        lambda: all(
            len(producer.statuses) >= begun + count and status in (None, producer.statuses[-1])
            for producer, begun in zip(made, before, strict=True)
        )
    )


async def until_answer(broker: Broker, path: str, right: Callable[[int, Any], bool]) -> None:
    """Until the answer of a path is right."""
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while not right(*await broker.send("GET", path)):  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.01)


async def drained(broker: Broker) -> None:
    await until_answer(broker, MAINTENANCE, lambda _, mode: mode["bufferedMessages"] == 0)


async def check_stored(broker: Broker, made: list[Producer]) -> None:
    """Every acknowledged message is there once, and those of a producer are in its order."""
    for producer in made:
        found: list[int] = []
        path = f"/api/v1/pop/queue/{QUEUE}/partition/{producer.name}"
        while (popped := (await broker.send("GET", path, batch=10_000, autoAck="true"))[1]) is not None:
            found += data(popped)
        assert found == sorted(set(found)), f"{producer.name} is out of order, or doubled"
        missing = set(producer.acknowledged) - set(found)
        assert not missing, f"{producer.name} lost {sorted(missing)}"
        assert set(found) <= set(producer.acknowledged) | set(producer.unknown)
        if producer.with_ids:
            assert found == producer.acknowledged


@pytest.mark.parametrize("workers", [1, 2])
async def test_producers_go_on_while_postgres_is_stopped(
    postgres: EmbeddedPostgres, tmp_path: Path, scale: Scale, workers: int
) -> None:
    seconds = 30 if scale is SOAK else 3
    with running_server(postgres.dsn, tmp_path, workers=workers) as server:
        async with Broker(server.url) as broker:
            async with producers(server.url) as made:
                await progress(made, 5)
                await asyncio.to_thread(postgres.stop)
                await progress(made, 5, status="buffered")
                assert (await broker.send("GET", "/ready"))[0] == 503
                alive, health = await broker.send("GET", "/health")
                assert (alive, health["database"]) == (200, "disconnected")
                assert (await broker.send("GET", f"/api/v1/pop/queue/{QUEUE}"))[0] == 503
                await asyncio.sleep(seconds)
                await asyncio.to_thread(postgres.start)
                await progress(made, 5, status="queued")
            await drained(broker)
            assert (await broker.send("GET", "/ready"))[0] == 200
            await check_stored(broker, made)
            stats = (await broker.send("GET", MAINTENANCE))[1]["bufferStats"]
            assert stats["messagesDrained"] == stats["messagesBuffered"] > 0
            assert (stats["messagesRejected"], stats["bytesDamaged"]) == (0, 0)


async def test_server_that_is_killed_while_it_buffers_and_drains_loses_and_doubles_nothing(
    postgres: EmbeddedPostgres, tmp_path: Path, scale: Scale
) -> None:
    front = HttpServer(postgres.dsn, tmp_path / "server", workers=2)
    try:
        async with Broker(front.url) as broker:
            async with producers(front.url) as made:
                for _ in range(20 if scale is SOAK else 1):
                    await progress(made, 3)
                    await asyncio.to_thread(postgres.stop)
                    await progress(made, 3, status="buffered")
                    await asyncio.to_thread(front.kill)
                    await asyncio.to_thread(postgres.start)
                    await asyncio.to_thread(front.start)
                    # It has begun to drain, and new pushes go behind.
                    await progress(made, 1)
                    await asyncio.to_thread(front.kill)
                    await asyncio.to_thread(front.start)
                await progress(made, 3, status="queued")
            await drained(broker)
            await check_stored(broker, made)
    finally:
        front.close()


async def test_maintenance_mode_under_load_with_two_workers(
    postgres: EmbeddedPostgres, tmp_path: Path, scale: Scale
) -> None:
    with running_server(postgres.dsn, tmp_path, workers=2) as server:
        async with Broker(server.url) as broker:
            async with producers(server.url) as made:
                for _ in scale.kills():
                    await progress(made, 3, status="queued")
                    assert (await broker.send("POST", MAINTENANCE, body={"enabled": True}))[0] == 200
                    await progress(made, 3, status="buffered")
                    assert (await broker.send("POST", MAINTENANCE, body={"enabled": False}))[0] == 200
                await progress(made, 3, status="queued")
            await drained(broker)
            await check_stored(broker, made)
            assert [producer.unknown for producer in made] == [[]] * PRODUCERS


async def test_all_parts_of_a_server_recover_after_a_restart_of_postgres(
    postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    """Connections, polls that wait, messages that wait for their time, signals between servers, and the modes."""
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
    never = {"pop_check_seconds_min": 3600, "pop_check_seconds_max": 3600, "promotion_interval_seconds": 60}
    with (
        running_server(postgres.dsn, folders[0], **never) as one,
        running_server(postgres.dsn, folders[1], **never) as two,
    ):
        async with Broker(one.url) as here, Broker(two.url) as there:
            poll = here.poll("polled")
            await here.wait_for_polls(1)
            await here.push([{"queue": "later", "payload": "due", "delaySeconds": 1}])
            await asyncio.to_thread(postgres.stop)
            assert (await here.push_to("polled", "buffered"))[0]["status"] == "buffered"
            assert (await there.send("POST", MAINTENANCE, body={"enabled": True}))[1]["maintenanceMode"]
            await asyncio.to_thread(postgres.start)
            await until_answer(here, MAINTENANCE, lambda _, mode: bool(mode["maintenanceMode"]))
            await here.send("POST", MAINTENANCE, body={"enabled": False})
            await until_answer(there, MAINTENANCE, lambda _, mode: not mode["maintenanceMode"])
            assert data(await poll) == ["buffered"]
            assert data(await here.poll("later")) == ["due"]

            poll = here.poll("other")
            await here.wait_for_polls(1)
            async with asyncio.timeout(TIMEOUT_SECONDS):
                while not poll.done():
                    await there.push_to("other", "heard")
                    await asyncio.wait([poll], timeout=0.1)
            assert data(await poll) == ["heard"]


async def test_postgres_that_hangs_is_away_until_it_goes_on(
    postgres: EmbeddedPostgres, folder: Path, tmp_path: Path
) -> None:
    """Its sockets stay open, so that nobody is told anything."""
    with running_server(postgres.dsn, tmp_path, breaker_silent_seconds=0.2) as server:
        async with Broker(server.url) as broker:
            async with producers(server.url) as made:
                await progress(made, 3)
                hanging = processes_in(folder / "data/pgdata")
                signal_all(hanging, signal.SIGSTOP)
                try:
                    await progress([producer for producer in made if producer.with_ids], 3, status="buffered")
                    assert (await broker.send("GET", f"/api/v1/pop/queue/{QUEUE}"))[0] == 503
                    assert (await broker.send("GET", "/ready"))[0] == 503
                    assert (await broker.send("GET", "/health"))[0] == 200
                finally:
                    signal_all(hanging, signal.SIGCONT)
                await progress(made, 3, status="queued")
            await drained(broker)
            await check_stored(broker, made)
    failed = [line for line in (tmp_path / "server.log").read_text().splitlines() if "request_failed" in line]
    assert len(failed) == 1, "an outage is no line for each request"


def signal_all(pids: list[int], number: signal.Signals) -> None:
    assert pids
    for pid in pids:
        with suppress(ProcessLookupError):  # a backend may end by itself
            os.kill(pid, number)


async def test_server_that_starts_while_postgres_is_away_buffers_and_then_migrates(
    folder: Path, tmp_path: Path
) -> None:
    """A database that was never used: only its address is known."""
    postgres = EmbeddedPostgres(add_cluster(folder / "data"), settings=SMALL)
    postgres.start()
    dsn = postgres.dsn
    postgres.stop()
    try:
        with running_server(dsn, tmp_path, workers=2) as server:
            async with Broker(server.url) as broker:
                assert (await broker.send("GET", "/health"))[1]["database"] == "disconnected"
                assert (await broker.send("GET", "/ready"))[0] == 503
                assert (await broker.send("GET", f"/api/v1/pop/queue/{QUEUE}"))[0] == 503
                assert (await broker.send("POST", "/api/v1/lease/x/ack", body={}))[0] == 503
                async with producers(server.url) as made:
                    await progress(made, 3, status="buffered")
                    await asyncio.to_thread(postgres.start)
                    await progress(made, 3, status="queued")
                await drained(broker)
                assert (await broker.send("GET", "/ready"))[0] == 200
                await check_stored(broker, made)
                assert [producer.unknown for producer in made] == [[]] * PRODUCERS
    finally:
        postgres.stop()


async def test_clients_and_commands_that_begin_during_an_outage(postgres: EmbeddedPostgres, tmp_path: Path) -> None:
    """They find the server, and it tells what it does."""
    with running_server(postgres.dsn, tmp_path) as server:
        await asyncio.to_thread(postgres.stop)
        async with connect_async(server.url, retry_attempts_max=1) as client:
            assert (await client.push(QUEUE, 1)).status == "buffered"
            with pytest.raises(Unavailable):
                await client.pop(QUEUE)
            with pytest.raises(Unavailable, match="the database"):
                await client.ping()
        shown = await asyncio.to_thread(CliRunner().invoke, cli, ["--url", server.url, "maintenance", "status"])
        assert (shown.exit_code, "open" in shown.output) == (0, True), shown.output
        refused = await asyncio.to_thread(CliRunner().invoke, cli, ["--url", server.url, "queues"])
        assert refused.exit_code != 0
        assert "the database" in refused.output
        assert "lockstep serve" not in refused.output, "there is a server"
        await asyncio.to_thread(postgres.start)
        async with Broker(server.url) as broker:
            await drained(broker)
            assert data(await broker.pop(QUEUE)) == [1]


async def test_embedded_postgres_of_a_server_is_brought_back(folder: Path) -> None:
    data_dir = add_cluster(folder / "data")
    with running_server("", folder, data_dir=data_dir) as server:
        async with Broker(server.url) as broker:
            for number in range(2):
                os.kill(postmaster_pid(data_dir), signal.SIGKILL)
                body = {"items": [{"queue": QUEUE, "payload": number, "transactionId": str(number)}]}
                status = 0
                async with asyncio.timeout(TIMEOUT_SECONDS):
                    while status != 201:
                        status, _ = await broker.send("POST", "/api/v1/push", body=body)
                await until_answer(broker, "/ready", lambda answered, _: answered == 200)
            await drained(broker)
            popped = await broker.pop(QUEUE, batch=100, wait="true", timeout=LONG_MS)
            assert data(popped) == [0, 1]

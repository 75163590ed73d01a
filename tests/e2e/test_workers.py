"""Several worker processes behind one port."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import aiohttp

from support.broker import TIMEOUT_SECONDS, Broker, data
from support.server import ServerProcess, running_server
from support.until import until


async def worker_pids(server: ServerProcess, *, count: int, without: int = 0) -> set[int]:
    """The processes that answer, as soon as they are so many and one of them is not among them."""
    found: set[int] = set()
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while len(found) < count:
            # Many connections at a time, so that one process alone does not take them all.
            answers = await asyncio.gather(*[health(server) for _ in range(20)])
            found = {pid for pid in answers if pid is not None and pid != without}
    return found


async def health(server: ServerProcess) -> int | None:
    async with Broker(server.url) as broker:
        try:
            _, answer = await broker.send("GET", "/health")
        except aiohttp.ClientConnectionError:  # it was accepted by a process that was killed then
            return None
    return int(answer["worker_id"].rpartition("-")[2])


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_killed_worker_is_replaced_and_service_goes_on(database_dsn: str, tmp_path: Path, queue: str) -> None:
    with running_server(database_dsn, tmp_path, workers=2) as server:
        pids = await worker_pids(server, count=2)
        assert server.process.pid not in pids
        victim = min(pids)
        acknowledged: list[int] = []
        enough = asyncio.Event()

        async def produce() -> None:
            number = 0
            while not enough.is_set():
                number += 1
                try:
                    async with Broker(server.url) as broker:
                        await broker.push_to(queue, number)
                except aiohttp.ClientConnectionError:
                    continue
                acknowledged.append(number)

        producing = asyncio.create_task(produce())
        os.kill(victim, signal.SIGKILL)
        renewed = await worker_pids(server, count=2, without=victim)
        enough.set()
        await producing
        assert renewed > pids - {victim}

        async with Broker(server.url) as broker:
            stored = data(await broker.pop(queue, batch=10_000))
        assert stored == sorted(stored)
        assert set(acknowledged) <= set(stored)
        assert server.stop() == 0


async def wait_for_groups(broker: Broker, count: int) -> None:
    """Returns when polls of so many groups have looked once: they are counted by process, groups are not."""
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while len((await broker.send("GET", "/api/v1/consumer-groups"))[1]) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_push_to_any_worker_wakes_the_polls_of_all(database_dsn: str, tmp_path: Path, queue: str) -> None:
    never = {"pop_check_seconds_min": 3600, "pop_check_seconds_max": 3600}
    with running_server(database_dsn, tmp_path, workers=2, **never) as server:
        await worker_pids(server, count=2)
        async with Broker(server.url) as broker:
            await broker.configure(queue)
            polls = [broker.poll(queue, consumerGroup=f"g{number}") for number in range(20)]
            await wait_for_groups(broker, 20)
            await broker.push_to(queue, "hello")
            for popped in await asyncio.gather(*polls):
                assert data(popped) == ["hello"]
        assert server.stop() == 0


async def test_workers_do_not_outlive_the_process_that_watches_over_them(database_dsn: str, tmp_path: Path) -> None:
    """They would keep the port, and nobody would replace or stop them."""
    with running_server(database_dsn, tmp_path, workers=2) as server:
        pids = await worker_pids(server, count=2)
        server.process.kill()
        server.process.wait()
        await until(lambda: not any(map(is_alive, pids)))


async def test_sigterm_ends_all_workers_and_answers_their_polls(database_dsn: str, tmp_path: Path, queue: str) -> None:
    with running_server(database_dsn, tmp_path, workers=2) as server:
        pids = await worker_pids(server, count=2)
        async with Broker(server.url) as broker:
            await broker.configure(queue)
            polls = [broker.poll(queue, consumerGroup=f"g{number}") for number in range(20)]
            await wait_for_groups(broker, 20)
            assert await asyncio.to_thread(server.stop) == 0
            assert await asyncio.gather(*polls) == [None] * 20
        assert not any(map(is_alive, pids))


async def test_whoever_is_asked_for_figures_tells_those_of_all_processes(
    database_dsn: str, tmp_path: Path, queue: str
) -> None:
    with running_server(database_dsn, tmp_path, workers=2) as server:
        pids = await worker_pids(server, count=2)
        # Over several connections, so that both have something to count.
        for number in range(30):
            async with Broker(server.url) as broker:
                await broker.push_to(queue, number)
        async with Broker(server.url) as broker:
            _, told = await broker.send("GET", "/api/v1/analytics/worker-metrics")
            assert sum(row["messagesPushed"] for row in told["workers"]) == 30
            assert {int(row["workerId"].rpartition("-")[2]) for row in told["workers"]} == pids
        async with aiohttp.ClientSession() as session, session.get(f"{server.url}/metrics/prometheus") as answer:
            text = await answer.text()
        lines = text.splitlines()
        pushed = [line for line in lines if line.startswith("lockstep_messages_pushed_total{")]
        assert sum(float(line.rpartition(" ")[2]) for line in pushed) == 30
        assert len(pushed) == 2
        pushes = [line for line in lines if 'duration_seconds_count{messaging_operation_name="push"' in line]
        assert sum(float(line.rpartition(" ")[2]) for line in pushes) == 30
        described = [line for line in lines if line.startswith("# TYPE")]
        assert len(described) == len(set(described)), "a family is described once"

        os.kill(min(pids), signal.SIGKILL)
        await worker_pids(server, count=2, without=min(pids))
        async with Broker(server.url) as broker:
            _, told = await broker.send("GET", "/api/v1/analytics/worker-metrics")
            shown = {int(row["workerId"].rpartition("-")[2]) for row in told["workers"]}
        assert len(shown) == 2
        assert min(pids) not in shown

"""PostgreSQL drops the connections of a server, which goes on without a restart of its own."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import psycopg

from support.broker import LONG_MS, TIMEOUT_SECONDS, Broker, data
from support.server import running_server

NEVER = {"pop_check_seconds_min": 3600, "pop_check_seconds_max": 3600}
TERMINATE = (
    "select count(pg_terminate_backend(pid)) from pg_stat_activity"
    " where datname = current_database() and pid <> pg_backend_pid()"
)


def terminate_connections(dsn: str) -> int:
    with psycopg.connect(dsn) as connection:
        row = connection.execute(TERMINATE).fetchone()
    assert row is not None
    return int(row[0])


async def poll_again(broker: Broker, queue: str, group: str) -> list[Any]:
    """As clients do, also when the poll had just begun to look and lost its connection."""
    path = f"/api/v1/pop/queue/{queue}"
    status = 503
    while status == 503:
        status, answer = await broker.send("GET", path, wait="true", timeout=LONG_MS, consumerGroup=group)
    return data(answer)


async def test_requests_go_on_when_connections_are_lost(database_dsn: str, tmp_path: Path, queue: str) -> None:
    with running_server(database_dsn, tmp_path) as server:
        async with Broker(server.url) as broker:
            acknowledged: list[int] = []
            enough = asyncio.Event()

            async def produce(first: int) -> None:
                number = first
                while not enough.is_set():
                    body = {"items": [{"queue": queue, "partition": f"p{first}", "payload": number}]}
                    status, answer = await broker.send("POST", "/api/v1/push", body=body)
                    assert status in (201, 503), answer
                    if status == 201:
                        acknowledged.append(number)
                    number += 10

            producers = [asyncio.create_task(produce(first)) for first in range(4)]
            for _ in range(3):
                before = len(acknowledged)
                assert terminate_connections(database_dsn) > 0
                async with asyncio.timeout(TIMEOUT_SECONDS):
                    while len(acknowledged) < before + 20:  # noqa: ASYNC110 - there is no event
                        await asyncio.sleep(0.01)
            enough.set()
            await asyncio.gather(*producers)
            assert (await broker.send("GET", "/ready"))[0] == 200
            stored = data(await broker.pop(queue, batch=10_000, partitions=4))
            assert set(acknowledged) <= set(stored)
            for first in range(4):
                lane = [number for number in stored if number % 10 == first]
                assert lane == sorted(lane)


async def test_polls_are_woken_after_the_listening_connection_was_lost(
    database_dsn: str, tmp_path: Path, queue: str
) -> None:
    """Also for what was pushed while nobody listened."""
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    with (
        running_server(database_dsn, tmp_path / "here", **NEVER) as one,
        running_server(database_dsn, tmp_path / "there", **NEVER) as two,
    ):
        async with Broker(one.url) as here, Broker(two.url) as there:
            polls = [asyncio.create_task(poll_again(here, queue, group)) for group in ("g1", "g2")]
            await here.wait_for_polls(2)
            terminate_connections(database_dsn)
            # The connection may be lost under the push; with a transaction id the server repeats it.
            await there.push([{"queue": queue, "payload": "first", "transactionId": "first"}])
            assert await asyncio.gather(*polls) == [["first"], ["first"]]

            poll = here.poll(f"{queue}-2")
            await here.wait_for_polls(1)
            async with asyncio.timeout(TIMEOUT_SECONDS):
                # For a moment after the loss, the other server may believe that nobody listens.
                while not poll.done():
                    await there.push_to(f"{queue}-2", "second")
                    await asyncio.wait([poll], timeout=0.1)
            assert data(await poll) == ["second"]

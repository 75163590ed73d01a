"""SIGTERM: waiting polls are answered, what is in flight is finished, and that within a limit."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import aiohttp
import pytest

from support.broker import TIMEOUT_SECONDS, Broker, data
from support.locks import PUSHES, held_up
from support.server import running_server

# Nothing but the shutdown itself may end what is held up.
PATIENT = {"lock_timeout_seconds": 3600, "statement_timeout_seconds": 3600}


@pytest.mark.parametrize("batching", [True, False])
async def test_sigterm_answers_polls_and_finishes_pushes(
    database_dsn: str, tmp_path: Path, queue: str, batching: bool
) -> None:
    with running_server(database_dsn, tmp_path, batching=batching, **PATIENT) as server:
        async with Broker(server.url) as broker:
            await broker.push_to(queue, "first")
            polls = [broker.poll(f"{queue}-empty") for _ in range(50)]
            await broker.wait_for_polls(50)
            async with held_up(database_dsn, PUSHES) as pushes:
                pushing = [asyncio.create_task(broker.push_to(queue, number)) for number in range(5)]
                await broker.wait_for(lambda worker: worker["requestsInFlight"] == 50 + 5 + 1)
                await pushes.wait_for_waiter()
                stopping = asyncio.create_task(asyncio.to_thread(server.stop))
                assert await asyncio.gather(*polls) == [None] * 50
                assert not any([push.done() for push in pushing])
                pushes.release()
                receipts = await asyncio.gather(*pushing)
            assert {receipt["status"] for [receipt] in receipts} == {"queued"}
            assert await stopping == 0

    with running_server(database_dsn, tmp_path) as server:
        async with Broker(server.url) as broker:
            first, *others = data(await broker.pop(queue, batch=10))
            assert (first, sorted(others)) == ("first", [0, 1, 2, 3, 4])


async def test_push_whose_body_is_still_on_its_way_is_finished(tmp_path: Path, queue: str) -> None:
    body = b'{"items":[{"queue":"%b","payload":1}]}' % queue.encode()
    with running_server("memory://", tmp_path) as server:
        _, _, port = server.url.rpartition(":")
        idle, idle_writer = await asyncio.open_connection("localhost", int(port))
        idle_writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await idle.readuntil(b"}")
        reader, writer = await asyncio.open_connection("localhost", int(port))
        writer.write(b"POST /api/v1/push HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n")
        writer.write(b"Content-Length: %d\r\n\r\n%b" % (len(body), body[:10]))
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        stopping = asyncio.create_task(asyncio.to_thread(server.stop))
        assert await idle.read() == b""  # idle connections are closed, so that it has begun to stop
        writer.write(body[10:])
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 201 Created\r\n")
        assert b'"status":"queued"' in answer
        assert await stopping == 0
        for one in (idle_writer, writer):
            one.close()
            await one.wait_closed()


async def test_poll_that_is_answered_by_the_end_is_told_that_the_connection_ends(tmp_path: Path, queue: str) -> None:
    """Else a client would poll again over it."""
    with running_server("memory://", tmp_path) as server:
        async with Broker(server.url) as broker:
            _, _, port = server.url.rpartition(":")
            reader, writer = await asyncio.open_connection("localhost", int(port))
            writer.write(b"GET /api/v1/pop/queue/%b?wait=true HTTP/1.1\r\nHost: localhost\r\n\r\n" % queue.encode())
            await broker.wait_for_polls(1)
        stopping = asyncio.create_task(asyncio.to_thread(server.stop))
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 204 No Content\r\n")
        assert b"\r\nconnection: close\r\n" in answer
        assert await stopping == 0
        writer.close()
        await writer.wait_closed()


async def until_nobody_listens(url: str) -> None:
    _, _, port = url.rpartition(":")
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while True:
            try:
                _, writer = await asyncio.open_connection("localhost", int(port))
            except OSError:
                return
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()


async def test_new_requests_are_refused_while_the_server_stops(database_dsn: str, tmp_path: Path, queue: str) -> None:
    with running_server(database_dsn, tmp_path, **PATIENT) as server:
        async with Broker(server.url) as broker, Broker(server.url) as late:
            await broker.push_to(queue, 1)
            poll = broker.poll(f"{queue}-empty")
            await broker.wait_for_polls(1)
            async with held_up(database_dsn, PUSHES) as pushes:
                pushing = asyncio.create_task(broker.push_to(queue, 2))
                await pushes.wait_for_waiter()
                stopping = asyncio.create_task(asyncio.to_thread(server.stop))
                assert await poll is None
                await until_nobody_listens(server.url)  # what came before that is answered
                with pytest.raises(aiohttp.ClientConnectionError):
                    await late.push_to(queue, 3)
                pushes.release()
                await pushing
            assert await stopping == 0


async def test_new_connections_are_refused_while_workers_stop(database_dsn: str, tmp_path: Path, queue: str) -> None:
    """The process that watches over them must not keep the port open, behind which nobody answers any more."""
    with running_server(database_dsn, tmp_path, workers=2, **PATIENT) as server:
        async with Broker(server.url) as broker:
            await broker.push_to(queue, 1)
            async with held_up(database_dsn, PUSHES) as pushes:
                pushing = asyncio.create_task(broker.push_to(queue, 2))
                await pushes.wait_for_waiter()
                stopping = asyncio.create_task(asyncio.to_thread(server.stop))
                await until_nobody_listens(server.url)
                assert not pushing.done()
                pushes.release()
                await pushing
            assert await stopping == 0


@pytest.mark.parametrize("batching", [True, False])
async def test_what_takes_too_long_does_not_hold_up_the_end(
    database_dsn: str, tmp_path: Path, queue: str, batching: bool
) -> None:
    """The lock is held until the server has ended."""
    with running_server(database_dsn, tmp_path, shutdown_timeout_seconds=1, batching=batching, **PATIENT) as server:
        async with Broker(server.url) as broker:
            await broker.push_to(queue, 1)
            async with held_up(database_dsn, PUSHES) as pushes:
                pushing = [asyncio.create_task(broker.push_to(queue, 2)) for _ in range(5)]
                await broker.wait_for(lambda worker: worker["requestsInFlight"] == 5 + 1)
                await pushes.wait_for_waiter()
                assert await asyncio.to_thread(server.stop) == 0
                ended = await asyncio.gather(*pushing, return_exceptions=True)
            assert all([isinstance(end, aiohttp.ClientError | AssertionError) for end in ended])

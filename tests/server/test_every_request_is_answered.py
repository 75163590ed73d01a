"""A server that is late, full or stopping closes no connection on which a request has arrived without an answer."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from uvicorn.server import ServerState

from lockstep.config import Config
from lockstep.engine.engine import Engine
from lockstep.server.node import Node
from lockstep.server.protocol import HttpConnection
from lockstep.server.serving import application_of
from lockstep.storage.memory import MemoryStore
from support.http import Http, answers
from support.server import running_server

QUEUES = b"GET /api/v1/resources/queues HTTP/1.1\r\nHost: localhost\r\n\r\n"
CONNECTIONS = 4


def test_every_connection_of_a_crowd_is_refused_in_words(tmp_path: Path) -> None:
    """All of them are there before the first one asks."""
    with running_server("memory://", tmp_path, connections_max=CONNECTIONS) as server, ExitStack() as stack:
        http = Http(server.url)
        for _ in range(CONNECTIONS):
            served = stack.enter_context(closing(http.socket()))
            served.sendall(QUEUES)
            assert answers(served, 1)[0][0] == 200
        crowd = [stack.enter_context(closing(http.socket())) for _ in range(180)]
        for one in crowd:
            one.sendall(QUEUES)
        told = [answers(one, 1)[0] for one in crowd]
        assert {(status, json.loads(body)["code"]) for status, body in told} == {(429, "too_many_connections")}


def test_client_that_is_still_sending_may_read_why_it_was_refused(tmp_path: Path) -> None:
    """For as long as it sends: such as one that sends slowly, or whose bytes a late server has not read."""
    with running_server("memory://", tmp_path, body_bytes_max=100_000) as server:
        with closing(Http(server.url).socket()) as connection:
            connection.sendall(b"POST /api/v1/push HTTP/1.1\r\nHost: localhost\r\nContent-Length: 200000\r\n\r\n")
            for _ in range(20):
                connection.sendall(b"x" * 10_000)
                time.sleep(0.2)
            [(status, body)] = answers(connection, 1)
        assert (status, json.loads(body)["code"]) == (413, "too_large")


@pytest.mark.parametrize("stops", [False, True])
async def test_request_that_has_arrived_and_was_not_read_is_answered(*, stops: bool) -> None:
    """The time of an idle connection ends, or the server stops, while the event loop is late."""
    config = Config(keep_alive_seconds=0.001)
    async with Engine(MemoryStore(), config) as engine:
        made: list[HttpConnection] = []
        kind = HttpConnection.of(Config(), application_of(Node(engine, config)))
        loop = asyncio.get_running_loop()

        def connect() -> HttpConnection:
            made.append(kind(None, ServerState(), {}))  # type: ignore[arg-type]
            return made[0]

        server = await loop.create_server(connect, "127.0.0.1", 0)
        client = socket.create_connection(server.sockets[0].getsockname(), timeout=30)
        with closing(client):
            client.sendall(QUEUES)
            assert (await asyncio.to_thread(answers, client, 1))[0][0] == 200
            [connection] = made
            connection.idle_seconds = 0
            client.sendall(QUEUES)  # and the loop does not get to read it before it looks at the time
            if stops:
                connection.shutdown()
            else:
                connection._look()
            assert (await asyncio.to_thread(answers, client, 1))[0][0] == 200
        server.close()
        await server.wait_closed()

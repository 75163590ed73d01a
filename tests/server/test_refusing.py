"""Pushes that a busy server refuses by their heads, on our own connections and on those of another ASGI server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from socket import socket

import pytest

from lockstep.config import Config
from lockstep.engine.engine import Engine
from lockstep.engine.load import Decision
from lockstep.storage.memory import MemoryStore
from support.http import Http, answers
from support.serving import serving_engine

HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture
def engine() -> Engine:
    engine = Engine(MemoryStore(), Config())
    engine._load.push = Decision.REJECT
    return engine


@pytest.fixture(params=[False, True], ids=["ours", "asgi"])
def busy(engine: Engine, request: pytest.FixtureRequest) -> Iterator[Http]:
    with serving_engine(engine, asgi=request.param) as url:
        yield Http(url)


def push(body: bytes) -> bytes:
    return b"POST /api/v1/push HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


def said(connection: socket) -> int:
    [(status, _)] = answers(connection, 1)
    return status


def test_refusal_says_when_to_come_again_and_is_counted(busy: Http) -> None:
    refused = busy.send("POST", "/api/v1/push", b"12345")
    assert (refused.status, refused.code) == (429, "overloaded")
    assert int(refused.headers["retry-after"]) >= 1
    assert refused.headers["x-request-id"]
    [counted] = [line for line in busy.get("/metrics/prometheus").body.decode().splitlines() if 'status="429"' in line]
    assert counted.endswith(" 1.0")


def test_connection_of_a_refused_push_goes_on(busy: Http, engine: Engine) -> None:
    """Its body comes later, in parts, looks like requests, and ends where the next request begins."""
    request = push(push(b"12345") + HEALTH)
    with busy.socket() as connection:
        for _ in range(2):
            connection.sendall(request[:70])
            connection.sendall(request[70:100])
            connection.sendall(request[100:])
            assert said(connection) == 429
            connection.sendall(HEALTH)
            assert said(connection) == 200
        engine._load.push = Decision.EXECUTE
        connection.sendall(push(json.dumps({"items": [{"queue": "q", "payload": 1}]}).encode()))
        assert said(connection) == 201
    assert engine.counts.load["push"].rejected == 2


def test_requests_behind_one_that_is_refused_are_answered_in_order(busy: Http) -> None:
    with busy.socket() as connection:
        connection.sendall(push(b"12345") + push(b"12345") + HEALTH)
        assert [status for status, _ in answers(connection, 3)] == [429, 429, 200]


def test_other_requests_are_not_refused(busy: Http) -> None:
    assert busy.get("/api/v1/pop/queue/q").status == 204

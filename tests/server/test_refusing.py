"""Pushes that a busy server refuses before they are parsed: what is refused so, and that nothing else is touched."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from http.client import HTTPResponse
from socket import socket

import pytest

from lockstep.config import Config
from lockstep.engine.engine import Engine
from lockstep.engine.load import Answer
from lockstep.server.node import Node
from lockstep.server.refusing import Refusing
from lockstep.storage.memory import MemoryStore
from support.http import Http
from support.serving import serving_engine

PUSH = b"POST /api/v1/push HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\n"
HEALTH = b"GET /health HTTP/1.1\r\nHost: h\r\n\r\n"


@pytest.fixture
def engine() -> Engine:
    engine = Engine(MemoryStore(), Config())
    engine._load.push = Answer.REJECT
    return engine


@pytest.fixture
def busy(engine: Engine) -> Iterator[Http]:
    with serving_engine(engine) as url:
        yield Http(url)


def refused(engine: Engine, data: bytes) -> int | None:
    """The length of the request, if it is refused so."""
    found = Refusing(Node(engine, Config())).refuse(data)
    return None if found is None else found[1]


@pytest.mark.parametrize(
    "data",
    [
        PUSH,
        PUSH + b"12345",
        PUSH + b"12345" + HEALTH,
        PUSH.replace(b"push", b"push?queued=true"),
        PUSH.replace(b"Content-Length", b"content-length"),
        PUSH.replace(b"Host: h", b"Host: h\r\nConnection: keep-alive"),
        PUSH.replace(b"Host: h", b"Host: h\r\nLockstep-Accept: queued\r\nAccept: */*\r\nX-Empty:"),
    ],
)
def test_plain_push_is_refused(engine: Engine, data: bytes) -> None:
    assert refused(engine, data) == data.index(b"\r\n\r\n") + 4 + 5


@pytest.mark.parametrize(
    "data",
    [
        b"",
        PUSH[:-1],
        PUSH.replace(b"POST", b"PUT"),
        PUSH.replace(b"push", b"pushed"),
        PUSH.replace(b"push", b"push/x"),
        PUSH.replace(b"HTTP/1.1", b"HTTP/1.0"),
        PUSH.replace(b"Content-Length: 5\r\n", b""),
        PUSH.replace(b"5", b"-5"),
        PUSH.replace(b"5", b"5, 5"),
        PUSH.replace(b"5", b"99999999999999"),
        PUSH.replace(b"Host: h", b"Content-Length: 6"),
        PUSH.replace(b"Host: h", b"Transfer-Encoding: chunked"),
        PUSH.replace(b"Host: h", b"Host: h\r\n folded"),
        PUSH.replace(b"Host: h\r\n", b"Host: h\n"),
        PUSH.replace(b"Host: h", b"Host : h"),
        PUSH.replace(b"Host: h", b"Host: \xff"),
        PUSH.replace(b"Host: h", b"Connection: close"),
        PUSH.replace(b"Host: h", b"Connection: keep-alive, Upgrade"),
        PUSH.replace(b"Host: h", b"Upgrade: websocket"),
        PUSH.replace(b"Host: h", b"Expect: 100-continue"),
        PUSH.replace(b"Host: h", b"X-Request-Id: mine"),
        PUSH.replace(b"Host: h", b"X: " + b"x" * 40_000),
        b"\r\n" + PUSH,
        HEALTH,
    ],
)
def test_what_is_not_plainly_a_push_goes_the_usual_way(engine: Engine, data: bytes) -> None:
    assert refused(engine, data) is None
    assert engine.counts.load["push"].rejected == 0


@pytest.mark.parametrize("answer", [Answer.EXECUTE, Answer.QUEUE, Answer.SHED])
def test_push_that_may_be_executed_or_queued_is_not_refused(engine: Engine, answer: Answer) -> None:
    engine._load.push = answer
    assert refused(engine, PUSH) is None


def test_head_that_never_fits_is_looked_at_in_no_time(engine: Engine) -> None:
    """One that took quadratic time would be a way to stop a busy server for good."""
    for bad in (b":" * 31_000, b" " * 31_000, b"a:" * 15_000, b"content-length:" * 2_000):
        assert refused(engine, PUSH.replace(b"Host: h", b"X:" + bad + b"\x00")) is None


def test_answer_is_the_one_of_the_usual_way(busy: Http) -> None:
    quick = busy.send("POST", "/api/v1/push", b"12345")
    usual = busy.send("POST", "/api/v1/push", b"12345", {"X-Request-Id": quick.headers["x-request-id"]})
    assert (quick.status, quick.headers, quick.json()) == (429, usual.headers, usual.json())
    [counted] = [line for line in busy.get("/metrics/prometheus").body.decode().splitlines() if 'status="429"' in line]
    assert counted.endswith(" 2"), "both are counted"


def said(connection: socket) -> tuple[int, bytes]:
    answer = HTTPResponse(connection)
    answer.begin()
    return answer.status, answer.read()


def test_connection_of_a_refused_push_goes_on(busy: Http, engine: Engine) -> None:
    """Its body comes later, in parts, looks like a request, and ends where the next request begins."""
    body = PUSH + b"12345" + HEALTH
    head = PUSH.replace(b"Content-Length: 5", b"Content-Length: %d" % len(body))
    with busy.socket() as connection:
        for _ in range(2):
            connection.sendall(head + body[:7])
            assert said(connection)[0] == 429
            connection.sendall(body[7:50])
            connection.sendall(body[50:] + HEALTH)
            assert said(connection)[0] == 200
        engine._load.push = Answer.EXECUTE
        content = json.dumps({"items": [{"queue": "q", "payload": 1}]}).encode()
        connection.sendall(PUSH.replace(b"Content-Length: 5", b"Content-Length: %d" % len(content)) + content)
        assert said(connection)[0] == 201
        engine._load.push = Answer.REJECT
        connection.sendall(head + body)
        assert said(connection)[0] == 429
    assert engine.counts.load["push"].rejected == 3


def test_body_of_a_push_that_was_refused_the_usual_way_is_no_request(busy: Http, engine: Engine) -> None:
    """It is answered before its body has come, and what comes then must not be taken for a push."""
    body = PUSH + b"12345"
    head = PUSH.replace(b"Content-Length: 5", b"X-Request-Id: mine\r\nContent-Length: %d" % len(body))
    with busy.socket() as connection:
        connection.sendall(head)
        assert said(connection)[0] == 429
        connection.sendall(body)
        connection.sendall(HEALTH)
        assert said(connection)[0] == 200
    assert engine.counts.load["push"].rejected == 1


def test_requests_behind_one_that_is_refused_are_answered_in_order(busy: Http) -> None:
    with busy.socket() as connection:
        connection.sendall(PUSH + b"12345" + PUSH + b"12345" + HEALTH.replace(b"Host: h", b"Connection: close"))
        whole = b""
        while chunk := connection.recv(65536):
            whole += chunk
    assert re.findall(rb"HTTP/1.1 (\d+)", whole) == [b"429", b"429", b"200"]

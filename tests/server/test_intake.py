"""Limits on what a server takes in, and what is still answered beyond them."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from lockstep.config import Config
from lockstep.errors import TooManyBytes, TooManyRequests
from lockstep.server.intake import Intake, Rates, place_of
from support.http import Http, answers
from support.server import running_server

CONNECTIONS = 12
SETTINGS = {
    "connections_max": CONNECTIONS,
    "connections_per_address_max": 8,
    "bodies_bytes_max": 300_000,
    "body_bytes_max": 250_000,
    "body_items_max": 1_000,
    "request_headers_max": 20,
    "request_seconds_max": 0.5,
    "polls_waiting_max": 2,
}
HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
QUEUES = b"GET /api/v1/resources/queues HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Http]:
    with running_server("memory://", tmp_path, **SETTINGS) as server:
        yield Http(server.url)


def _wait(happened: Callable[[], bool]) -> None:
    """There is no signal for it. Far longer than it can take."""
    until = time.monotonic() + 30
    while not happened():
        assert time.monotonic() < until
        time.sleep(0.01)


def _from(http: Http, address: str) -> socket.socket:
    return socket.create_connection(("127.0.0.1", http.port), timeout=30, source_address=(address, 0))


def _ask(connection: socket.socket, request: bytes) -> tuple[int, str | None]:
    connection.sendall(request)
    [(status, body)] = answers(connection, 1)
    return status, json.loads(body).get("code")


def _served(http: Http, address: str, *, stack: ExitStack) -> socket.socket:
    """A connection that the server is known to have let in."""
    connection = stack.enter_context(closing(_from(http, address)))
    assert _ask(connection, QUEUES)[0] == 200
    return connection


def test_server_that_is_full_answers_probes_only_and_says_so(small: Http, tmp_path: Path) -> None:
    with ExitStack() as stack:
        for number in range(CONNECTIONS):
            _served(small, f"127.0.0.{2 + number % 2}", stack=stack)
        for probe in (HEALTH, HEALTH.replace(b"health", b"ready")):
            with closing(_from(small, "127.0.0.9")) as late:
                assert _ask(late, probe)[0] == 200
                assert late.recv(1) == b""  # its place is for the next one
        with closing(_from(small, "127.0.0.9")) as late:
            assert _ask(late, QUEUES) == (429, "too_many_connections")
            assert late.recv(1) == b""
    log = (tmp_path / "server.log").read_text()
    assert log.count("connections_exhausted") == 1
    assert "connections_max" in log
    _wait(lambda: small.get("/api/v1/resources/queues").status == 200)


def test_no_address_takes_all_connections(small: Http) -> None:
    with ExitStack() as stack:
        for _ in range(8):
            _served(small, "127.0.0.2", stack=stack)
        with closing(_from(small, "127.0.0.2")) as one_more, closing(_from(small, "127.0.0.3")) as other:
            assert _ask(one_more, QUEUES) == (429, "too_many_connections")
            assert _ask(other, QUEUES)[0] == 200


def test_probes_get_through_a_flood_of_idle_connections(small: Http) -> None:
    with ExitStack() as stack:
        for number in range(CONNECTIONS + 200):
            stack.enter_context(closing(_from(small, f"127.0.0.{2 + number % 8}")))
        with closing(_from(small, "127.0.0.99")) as probe:
            assert _ask(probe, HEALTH)[0] == 200


def _begin_push(http: Http, size: int, stack: ExitStack) -> socket.socket:
    connection = stack.enter_context(closing(http.socket()))
    connection.sendall(b"POST /api/v1/push HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (size + 1))
    connection.sendall(b"x" * size)
    return connection


def test_bodies_that_do_not_end_take_bounded_memory_and_time(small: Http, queue: str) -> None:
    with ExitStack() as stack:
        slow = [_begin_push(small, 200_000, stack) for _ in range(3)]
        told = [answers(connection, 1)[0] for connection in slow]
        codes = [(status, json.loads(body)["code"]) for status, body in told]
    assert set(codes) == {(429, "too_many_bytes"), (408, "request_timeout")}
    assert codes.count((408, "request_timeout")) == 1
    # All of it is given back.
    small.push(queue, "x" * 200_000)


def test_body_that_comes_in_drops_is_given_up(small: Http) -> None:
    """Each drop is in time; all of them together are not."""
    with closing(small.socket()) as connection:
        connection.sendall(b"POST /api/v1/push HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n")
        connection.settimeout(0.05)
        said = b""
        while b"request_seconds_max" not in said:
            connection.sendall(b" ")
            try:
                said += connection.recv(1000)
            except TimeoutError:
                continue
    assert said.startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize("path", ["/api/v1/ack/batch", "/api/v1/transaction", "/api/v1/push", "/api/v1/traces"])
@pytest.mark.parametrize("field", ["acknowledgments", "operations", "items", "requiredLeases", "traceNames", "no_such"])
def test_body_of_many_values_is_refused(small: Http, path: str, field: str) -> None:
    body = b'{"%b":[%b{}]}' % (field.encode(), b"{}," * 60_000)
    answer = small.send("POST", path, body)
    assert (answer.status, answer.code) in ((413, "too_many_items"), (400, "invalid_request"))
    if path == "/api/v1/ack/batch":
        assert answer.code == "too_many_items"


def test_large_payloads_are_no_many_values(small: Http, queue: str) -> None:
    payload = {"numbers": list(range(20_000))}
    small.push(queue, payload)
    assert small.pop(queue)["messages"][0]["data"] == payload


def test_request_with_many_headers_is_refused(small: Http) -> None:
    for name in ("X-{}", "X-Same"):
        with closing(small.socket()) as connection:
            lines = "".join([f"{name.format(number)}: 1\r\n" for number in range(20)])
            connection.sendall(f"GET /health HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n".encode())
            status, body = answers(connection, 1)[0]
            assert (status, json.loads(body)["code"]) == (413, "too_large")


def test_polls_beyond_the_limit_are_refused(small: Http, queue: str) -> None:
    with ExitStack() as stack:
        for _ in range(2):
            poll = stack.enter_context(closing(small.socket()))
            poll.sendall(f"GET /api/v1/pop/queue/{queue}?wait=true HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        _wait(lambda: small.get("/api/v1/analytics/worker-metrics").json()["workers"][0]["pollsWaiting"] == 2)
        answer = small.get(f"/api/v1/pop/queue/{queue}", wait="true", timeout=100)
        assert (answer.status, answer.code) == (429, "too_many_polls")
        assert answer.headers["retry-after"] == "1"
        assert small.get(f"/api/v1/pop/queue/{queue}").status == 204


def test_caller_that_asks_too_often_is_told_when_to_come_back(tmp_path: Path) -> None:
    with running_server("memory://", tmp_path, requests_per_second_max=0.1) as server:
        http = Http(server.url)
        assert http.get("/api/v1/resources/queues").status == 200
        answer = http.get("/api/v1/resources/queues")
        assert (answer.status, answer.code) == (429, "too_many_requests")
        assert 1 <= int(answer.headers["retry-after"]) <= 10
        assert http.get("/health").status == 200


def test_rate_is_that_of_each_caller() -> None:
    rates = Rates(2.0)
    for _ in range(2):
        rates.check("a", 0.0)
    with pytest.raises(TooManyRequests) as refused:
        rates.check("a", 0.0)
    assert refused.value.details == {"retry_after_seconds": 1}
    rates.check("b", 0.0)
    rates.check("a", 0.5)
    with pytest.raises(TooManyRequests):
        rates.check("a", 0.6)


def test_bytes_are_those_of_all_bodies() -> None:
    intake = Intake(Config(bodies_bytes_max=100))
    intake.take(60)
    with pytest.raises(TooManyBytes):
        intake.take(60)


@pytest.mark.parametrize(
    ("host", "place"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8::1", "2001:db8::/64"),
        ("2001:db8::ffff:1", "2001:db8::/64"),
        ("", ""),
    ],
)
def test_address_counts_for_its_network(host: str, place: str) -> None:
    assert place_of(host) == place

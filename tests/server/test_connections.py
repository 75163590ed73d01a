"""What HTTP/1.1 allows a client to do with a connection."""

from __future__ import annotations

import json
import re
import socket
import time
from contextlib import suppress

import psycopg
import pytest

from support.http import Http, answers
from support.server import ServerProcess

WAITING = "SELECT FROM pg_locks WHERE NOT granted AND relation = 'lockstep.cursor'::regclass"
"""Whether somebody waits for the table of cursors."""


def _request(method: str, path: str, body: bytes = b"", *headers: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


def _push(queue: str, payload: object) -> bytes:
    return json.dumps({"items": [{"queue": queue, "payload": payload}]}).encode()


def test_a_connection_takes_one_request_after_the_other(memory_http: Http, queue: str) -> None:
    with memory_http.socket() as connection:
        for number in range(3):
            connection.sendall(_request("POST", "/api/v1/push", _push(queue, number)))
            [(status, body)] = answers(connection, 1)
            assert (status, json.loads(body)[0]["seq"]) == (201, number + 1)


def test_requests_without_a_pause_are_answered_in_their_order(memory_http: Http, queue: str) -> None:
    pushes = [_request("POST", "/api/v1/push", _push(queue, number)) for number in range(50)]
    with memory_http.socket() as connection:
        connection.sendall(b"".join(pushes) + _request("GET", f"/api/v1/pop/queue/{queue}?batch=50"))
        told = answers(connection, 51)
    assert [json.loads(body)[0]["seq"] for _, body in told[:50]] == list(range(1, 51))
    assert [message["data"] for message in json.loads(told[50][1])["messages"]] == list(range(50))


def test_a_request_may_come_byte_by_byte(memory_http: Http, queue: str) -> None:
    with memory_http.socket() as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in _request("POST", "/api/v1/push", _push(queue, "slowly")):
            connection.send(bytes([byte]))
        assert answers(connection, 1)[0][0] == 201
    assert memory_http.pop(queue)["messages"][0]["data"] == "slowly"


def test_a_body_may_come_in_chunks(memory_http: Http, queue: str) -> None:
    body = _push(queue, "in chunks")
    pieces = [body[start : start + 7] for start in range(0, len(body), 7)]
    chunks = b"".join([b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces]) + b"0\r\n\r\n"
    with memory_http.socket() as connection:
        connection.sendall(
            b"POST /api/v1/push HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks
        )
        assert answers(connection, 1)[0][0] == 201
    assert memory_http.pop(queue)["messages"][0]["data"] == "in chunks"


def test_a_client_that_asks_first_is_told_to_go_on(memory_http: Http, queue: str) -> None:
    body = _push(queue, "asked")
    with memory_http.socket() as connection:
        connection.sendall(_request("POST", "/api/v1/push", body, "Expect: 100-continue")[: -len(body)])
        assert connection.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(body)
        assert answers(connection, 1)[0][0] == 201


def test_a_client_that_asks_first_is_told_that_it_is_too_much(memory_http: Http) -> None:
    with memory_http.socket() as connection:
        head = b"POST /api/v1/push HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999999999\r\n"
        connection.sendall(head + b"Expect: 100-continue\r\n\r\n")
        assert answers(connection, 1)[0][0] == 413


def test_a_client_that_asks_first_is_told_at_once_that_it_is_refused(memory_http: Http) -> None:
    """It sends no body then, and would wait for the answer until the server gives it up."""
    with memory_http.socket() as connection:
        head = _request("POST", "/api/v1/nowhere", b"", "Expect: 100-continue").replace(b"Length: 0", b"Length: 10")
        connection.sendall(head)
        assert answers(connection, 1)[0][0] == 404
        assert connection.recv(1) == b""


def test_what_came_before_a_request_that_is_refused_is_answered(memory_http: Http, queue: str) -> None:
    with memory_http.socket() as connection:
        good = _request("POST", "/api/v1/push", _push(queue, 1))
        connection.sendall(
            good + good + b"POST /api/v1/push HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999999999\r\n\r\n{"
        )
        assert [status for status, _ in answers(connection, 3)] == [201, 201, 413]
        assert connection.recv(1) == b""


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/health", 200),
        ("/docs/api", 200),
        ("/api/v1/resources/queues/nowhere", 404),
        ("/api/v1/pop/queue/x", 405),  # it would lease messages that nobody sees
    ],
)
def test_head_is_answered_like_get_without_the_body(memory_http: Http, path: str, status: int) -> None:
    with memory_http.socket() as connection:
        connection.sendall(_request("HEAD", path) + _request("GET", "/health", b"", "Connection: close"))
        said = b""
        while chunk := connection.recv(65536):
            said += chunk
    first, _, rest = said.partition(b"\r\n\r\n")
    assert first.startswith(b"HTTP/1.1 %d " % status)
    assert rest.startswith(b"HTTP/1.1 200 ")
    if status != 405:
        length = re.search(rb"content-length: (\d+)", first)
        assert length is not None
        assert int(length[1]) == len(memory_http.get(path).body)


def test_a_connection_ends_when_the_client_says_so(memory_http: Http) -> None:
    for request in (
        _request("GET", "/health", b"", "Connection: close"),
        b"GET /health HTTP/1.0\r\nHost: localhost\r\n\r\n",
    ):
        with memory_http.socket() as connection:
            connection.sendall(request)
            assert answers(connection, 1)[0][0] == 200
            assert connection.recv(1) == b""


def test_other_protocols_are_declined_by_an_answer_in_this_one(memory_http: Http) -> None:
    upgrade = _request("GET", "/health", b"", "Connection: Upgrade", "Upgrade: h2c")
    with memory_http.socket() as connection:
        connection.sendall(upgrade)
        assert answers(connection, 1)[0][0] == 200


def test_a_request_for_another_protocol_keeps_its_body(memory_http: Http, queue: str) -> None:
    """Java's HTTP client asks for HTTP/2 with every request, unless it is told not to."""
    wish = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAEAAEAAAAIAAAAA")
    pushes = [_request("POST", "/api/v1/push", _push(queue, number), *wish) for number in range(3)]
    with memory_http.socket() as connection:
        connection.sendall(pushes[0] + pushes[1] + pushes[2][:-10])
        assert [status for status, _ in answers(connection, 2)] == [201, 201]
        connection.sendall(pushes[2][-10:] + _request("GET", f"/api/v1/pop/queue/{queue}?batch=3"))
        told = answers(connection, 2)
    assert [message["data"] for message in json.loads(told[1][1])["messages"]] == [0, 1, 2]


def test_a_request_for_a_tunnel_is_refused(memory_http: Http) -> None:
    with memory_http.socket() as connection:
        connection.sendall(b"CONNECT x:80 HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n")
        assert answers(connection, 1)[0][0] == 400
        assert connection.recv(1) == b""


def test_requests_without_a_pause_that_are_refused_are_answered_one_by_one(memory_http: Http) -> None:
    with memory_http.socket() as connection:
        connection.sendall(_request("GET", "/nowhere") * 3000)
        assert {status for status, _ in answers(connection, 3000)} == {404}


def test_a_client_that_does_not_read_its_answer_is_given_up(impatient_http: Http, queue: str) -> None:
    for _ in range(10):
        impatient_http.push(queue, "x" * 1_900_000)
    with impatient_http.socket() as connection:
        connection.sendall(_request("GET", f"/api/v1/pop/queue/{queue}?batch=10"))
        time.sleep(1.5)
        said = 0
        with suppress(ConnectionResetError):
            while chunk := connection.recv(1_000_000):
                said += len(chunk)
    assert said < 10 * 1_900_000


def test_what_was_popped_for_a_client_that_has_gone_is_delivered_again(
    postgres_server: ServerProcess, queue: str
) -> None:
    server = Http(postgres_server.url)
    server.push(queue, "once more")
    with psycopg.connect(postgres_server.dsn) as database:
        database.execute("LOCK TABLE lockstep.cursor IN ACCESS EXCLUSIVE MODE")
        with server.socket() as connection:
            connection.sendall(_request("GET", f"/api/v1/pop/queue/{queue}?leaseSeconds=3600"))
            while not database.execute(WAITING).fetchall():
                time.sleep(0.01)
        assert server.get("/health").status == 200  # by now the server knows that the client has gone
    for _ in range(60):
        popped = server.get(f"/api/v1/pop/queue/{queue}", wait="true")
        if popped.status == 200:
            break
    assert popped.json()["messages"][0]["data"] == "once more"

"""What no client should send, and what every answer must have. None of it depends on the store."""

from __future__ import annotations

import json
import socket
from http.client import HTTPResponse, parse_headers
from pathlib import Path

import pytest

from lockstep.server.routes import ROUTES
from support.http import Http, answers
from support.server import running_server

METHODS = {route.method for route in ROUTES.all}


def _raw(http: Http, *parts: bytes) -> bytes:
    """All that the server says to these bytes until it closes the connection."""
    with http.socket() as connection:
        for part in parts:
            connection.sendall(part)
        return _rest(connection)


def _rest(connection: socket.socket) -> bytes:
    said = b""
    while True:
        try:
            chunk = connection.recv(65536)
        except ConnectionResetError:
            return said
        if not chunk:
            return said
        said += chunk


# --- Bodies -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"not json",
        b'{"items": [}',
        b'{"items": [{"queue": "\xff\xfe"}]}',
        b'{"items": [{"queue": "q", "payload": "\xff\xfe"}]}',
        b"\x00\x01\x02",
        b'{"items": []} trailing',
        b"NaN",
    ],
)
def test_broken_json_is_refused(memory_http: Http, body: bytes) -> None:
    answer = memory_http.send("POST", "/api/v1/push", body)
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    "content",
    [
        [],
        "text",
        7,
        None,
        {"items": {}},
        {"items": "x"},
        {"items": [1]},
        {"items": [{"payload": 1}]},
        {"items": [{"queue": 7}]},
        {"items": [{"queue": ""}]},
        {"items": [{"queue": "q", "partition": 7}]},
        {"items": [{"queue": "q", "partition": None}]},
        {"items": [{"queue": "q", "transactionId": 7}]},
        {"items": [{"queue": "q", "transactionId": "x" * 256}]},
        {"items": [{"queue": "q", "traceId": "no uuid"}]},
        {"items": [{"queue": "q" * 256}]},
        {"items": [{"queue": "q\u0000"}]},
    ],
)
def test_wrong_types_are_refused(memory_http: Http, content: object) -> None:
    answer = memory_http.send("POST", "/api/v1/push", json.dumps(content).encode())
    assert (answer.status, answer.json()["code"][:8]) == (400, "invalid_")


def test_a_body_that_is_needed_and_missing_is_refused(memory_http: Http) -> None:
    for path in ("/api/v1/push", "/api/v1/ack", "/api/v1/transaction", "/api/v1/configure", "/streams/v1/cycle"):
        answer = memory_http.post(path)
        assert (answer.status, answer.code) == (400, "invalid_request"), path


def test_an_empty_body_is_enough_where_all_is_optional(memory_http: Http) -> None:
    lease = "/api/v1/lease/0190a7c4-0000-7000-8000-000000000001"
    assert memory_http.post(f"{lease}/extend").json()["renewed"] == 0
    assert memory_http.post("/api/v1/stats/refresh").status == 200
    assert memory_http.post("/api/v1/engine/overview").status == 200
    assert memory_http.send("POST", f"{lease}/extend", b"  ").status == 200


def test_a_giant_body_is_refused_before_it_is_read(memory_http: Http) -> None:
    with memory_http.socket() as connection:
        connection.sendall(b"POST /api/v1/push HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n{")
        assert _answer(connection) == (413, "too_large")


def test_a_giant_body_without_a_length_is_refused(memory_http: Http) -> None:
    chunk = b"186a0\r\n" + b"x" * 100_000 + b"\r\n"
    with memory_http.socket() as connection:
        connection.sendall(b"POST /api/v1/push HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(40):
            connection.sendall(chunk)
        assert _answer(connection) == (413, "too_large")


def _answer(connection: socket.socket) -> tuple[int, str]:
    """The status and code of the answer, whatever becomes of the connection."""
    with HTTPResponse(connection) as response:
        response.begin()
        return response.status, json.loads(response.read())["code"]


def test_a_payload_at_the_limit_of_bodies_passes(memory_http: Http, queue: str) -> None:
    memory_http.push(queue, "x" * 1_900_000)
    assert len(memory_http.pop(queue)["messages"][0]["data"]) == 1_900_000


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
def test_deep_nesting_is_refused_or_stored(memory_http: Http, queue: str, opening: bytes) -> None:
    closing = b"]" if opening == b"[" else b"}"
    deep = opening * 100_000 + (b"" if opening == b"[" else b"1") + closing * 100_000
    answer = memory_http.send("POST", "/api/v1/push", deep)
    assert answer.status == 400
    body = b'{"items":[{"queue":"' + queue.encode() + b'","payload":' + deep + b"}]}"
    assert memory_http.send("POST", "/api/v1/push", body).status in (201, 400)
    assert memory_http.get("/health").status == 200


def test_strange_json_comes_back_as_it_was(memory_http: Http, queue: str) -> None:
    payload = '{"a": 1.0, "a": 1e2, "ä": "\\u0000\\ud83d\\ude00", "n": 123456789012345678901234567890}'
    body = f'{{"items":[{{"queue":"{queue}","payload":{payload}}}]}}'.encode()
    assert memory_http.send("POST", "/api/v1/push", body).status == 201
    assert payload.encode() in memory_http.get(f"/api/v1/pop/queue/{queue}").body


# --- Paths and queries --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["/api/v1/nothing", "/api/v2/push", "/api/v1/pop/queue", "/nothing", "/api/v1/push/more"]
)
def test_unknown_routes_are_told(memory_http: Http, path: str) -> None:
    answer = memory_http.get(path)
    assert (answer.status, answer.code) == (404, "no_such_route")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/api/v1/push", "POST"),
        ("PUT", "/api/v1/pop/queue/x", "GET"),
        ("PATCH", "/api/v1/consumer-groups/x", "DELETE, GET, HEAD"),
        ("DELETE", "/health", "GET, HEAD"),
    ],
)
def test_wrong_methods_are_told_which_are_right(memory_http: Http, method: str, path: str, allowed: str) -> None:
    answer = memory_http.send(method, path)
    assert (answer.status, answer.code, answer.headers["allow"]) == (405, "method_not_allowed", allowed)


def test_bad_percent_encoding_is_refused_or_taken_literally(memory_http: Http) -> None:
    answer = memory_http.get("/api/v1/pop/queue/%ff%fe")
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert memory_http.get("/api/v1/pop/queue/100%").status == 204
    assert memory_http.get("/api/v1/pop/queue/%zz").status == 204
    assert memory_http.get("/api/v1/pop/queue/%00").code == "invalid_name"
    assert memory_http.send("GET", "/api/v1/pop/queue/x?consumerGroup=%ff").status == 400


def test_bad_url_is_refused_with_the_reason(memory_http: Http) -> None:
    with memory_http.socket() as connection:
        connection.sendall("GET /api/v1/pop/queue/bücher HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        [(status, body)] = answers(connection, 1)
    assert (status, "the URL is not valid" in json.loads(body)["error"]) == (400, True)


def test_unreadable_request_is_logged_with_the_id_of_its_answer(tmp_path: Path) -> None:
    with running_server("memory://", tmp_path) as server, Http(server.url).socket() as connection:
        connection.sendall(b"\x16\x03\x01\r\n\r\n")
        with connection.makefile("rb") as stream:
            stream.readline()
            told = parse_headers(stream)["x-request-id"]
    log = (tmp_path / "server.log").read_text()
    assert f"request_unreadable request_id={told} " in log


@pytest.mark.parametrize("text", [b'"\xff"', b'{"a": ["\xc3("]}', b'"\xed\xa0\x80"'])
def test_payload_that_is_not_utf8_is_refused(memory_http: Http, queue: str, text: bytes) -> None:
    """No consumer could read the answer that it would be in."""
    item = b'{"queue": "%b", "payload": %b}' % (queue.encode(), text)
    answer = memory_http.send("POST", "/api/v1/push", b'{"items": [%b]}' % item)
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert memory_http.get(f"/api/v1/pop/queue/{queue}").status == 204


def test_payload_of_any_letters_comes_back(memory_http: Http, queue: str) -> None:
    body = json.dumps({"items": [{"queue": queue, "payload": "bücher 📚"}]}, ensure_ascii=False)
    assert memory_http.send("POST", "/api/v1/push", body.encode()).status == 201
    assert memory_http.pop(queue)["messages"][0]["data"] == "bücher 📚"


def test_an_encoded_slash_belongs_to_the_name(memory_http: Http, queue: str) -> None:
    memory_http.push(f"{queue}/sub", 1)
    assert memory_http.get(f"/api/v1/pop/queue/{queue}%2Fsub").status == 200


@pytest.mark.parametrize(
    "query",
    [
        "batch=0",
        "batch=-1",
        "batch=x",
        "batch=1.5",
        "batch=999999999",
        "wait=maybe",
        "timeout=-1",
        "partitions=0",
        "leaseSeconds=nan",
        "leaseSeconds=inf",
        "leaseSeconds=-1",
        "subscriptionFrom=yesterday",
    ],
)
def test_bad_queries_are_refused(memory_http: Http, queue: str, query: str) -> None:
    memory_http.push(queue, 1)
    wait = "&wait=true" if "timeout" in query else ""
    answer = memory_http.send("GET", f"/api/v1/pop/queue/{queue}?{query}{wait}")
    assert (answer.status, answer.code) == (400, "invalid_request")


@pytest.mark.parametrize("timeout", ["9" * 20, "9" * 400, "9" * 5000])
def test_a_wait_without_end_ends_at_the_limit_or_is_refused(memory_http: Http, queue: str, timeout: str) -> None:
    assert memory_http.get(f"/api/v1/pop/queue/{queue}", wait="true", timeout=timeout).status in (204, 400)


def test_a_query_with_too_many_names_is_refused(memory_http: Http) -> None:
    assert memory_http.get("/api/v1/dlq", **{f"n{i}": i for i in range(100)}).status == 400


@pytest.mark.parametrize(("text", "status"), [("true", 200), ("1", 200), ("false", 200), ("0", 200), ("maybe", 400)])
def test_booleans_may_be_numbers(memory_http: Http, queue: str, text: str, status: int) -> None:
    memory_http.push(queue, 1)
    assert memory_http.get(f"/api/v1/pop/queue/{queue}", autoAck=text).status == status


# --- Every answer -------------------------------------------------------------------------------------------


def test_every_answer_is_what_it_says(memory_http: Http) -> None:
    for path in ("/health", "/api/v1/nothing", "/api/v1/pop/queue/none", "/docs/api"):
        assert memory_http.get(path).headers["x-content-type-options"] == "nosniff", path


def test_request_ids_are_given_or_made(memory_http: Http) -> None:
    given = memory_http.send("GET", "/health", headers={"X-Request-Id": "mine"})
    assert given.headers["x-request-id"] == "mine"
    made = {memory_http.get("/health").headers["x-request-id"] for _ in range(3)}
    assert len(made) == 3
    assert memory_http.send("GET", "/health", headers={"X-Request-Id": ""}).headers["x-request-id"]
    long = memory_http.send("GET", "/health", headers={"X-Request-Id": "x" * 5000})
    assert len(long.headers["x-request-id"]) <= 256


def test_an_error_has_a_text_and_a_code(memory_http: Http) -> None:
    answer = memory_http.get("/api/v1/resources/queues/none")
    assert answer.json()["error"]
    assert answer.json()["code"] == "queue_not_found"


# --- Headers and slow clients -------------------------------------------------------------------------------


def test_headers_that_are_too_large_are_refused(memory_http: Http) -> None:
    answer = memory_http.send("GET", "/health", headers={"X-Large": "x" * 40_000})
    assert (answer.status, answer.code) == (413, "too_large")


def test_headers_without_end_are_refused(memory_http: Http) -> None:
    line = b"X-More: " + b"x" * 1000 + b"\r\n"
    with memory_http.socket() as connection:
        try:
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n")
            for _ in range(1000):
                connection.sendall(line)
        except (BrokenPipeError, ConnectionResetError):
            pass  # it was refused in the middle
        said = _rest(connection)
    assert said == b"" or said.startswith(b"HTTP/1.1 413 ")
    assert memory_http.get("/health").status == 200


def test_what_is_no_http_is_refused(memory_http: Http) -> None:
    assert _raw(memory_http, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n").startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize(
    "begun",
    [
        b"",
        b"GET /health HTTP/1.1\r\nHost:",
        b"POST /api/v1/push HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n",
        b'POST /api/v1/push HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"items":',
    ],
    ids=["nothing", "head", "no body", "body"],
)
def test_a_client_that_is_too_slow_is_given_up(impatient_http: Http, begun: bytes) -> None:
    said = _raw(impatient_http, begun)
    assert said == b"" or said.startswith(b"HTTP/1.1 408 ")
    assert impatient_http.get("/health").status == 200


def test_a_client_that_waits_for_messages_is_not_too_slow(impatient_http: Http, queue: str) -> None:
    answer = impatient_http.get(f"/api/v1/pop/queue/{queue}", wait="true", timeout=700)
    assert answer.status == 204

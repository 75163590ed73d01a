"""Requests that a proxy may read differently than the server: all are refused, and their connection ends."""

from __future__ import annotations

import json

import pytest

from support.http import Http, answers

PUSH = b"POST /api/v1/push HTTP/1.1\r\nHost: localhost\r\n"
BODY = b'{"items":[{"queue":"smuggled","payload":1}]}'
LENGTH = b"Content-Length: %d\r\n" % len(BODY)
CHUNK = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
CHUNKED = PUSH + b"Transfer-Encoding: chunked\r\n\r\n" + CHUNK[:-2]

REFUSED = {
    "no host": b"GET /health HTTP/1.1\r\n\r\n",
    "no host in HTTP/1.0": b"GET /health HTTP/1.0\r\n\r\n",
    "two hosts": b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n",
    "two hosts and an upgrade": (
        b"GET /health HTTP/1.1\r\nHost: evil\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
    ),
    "two origins": b"GET /health HTTP/1.1\r\nHost: localhost\r\nOrigin: http://a\r\nOrigin: http://localhost\r\n\r\n",
    "HTTP/0.9": b"GET /health\r\n\r\n",
    "HTTP/0.9 in words": b"GET /health HTTP/0.9\r\nHost: localhost\r\n\r\n",
    "HTTP/1.2": b"GET /health HTTP/1.2\r\nHost: localhost\r\n\r\n",
    "HTTP/2.0": b"GET /health HTTP/2.0\r\nHost: localhost\r\n\r\n",
    "HTTP/2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "HTTP/3.0": b"GET /health HTTP/3.0\r\nHost: localhost\r\n\r\n",
    "length and chunks": PUSH + LENGTH + b"Transfer-Encoding: chunked\r\n\r\n" + CHUNK,
    "chunks and length": PUSH + b"Transfer-Encoding: chunked\r\n" + LENGTH + b"\r\n" + CHUNK,
    "two lengths": PUSH + LENGTH + LENGTH + b"\r\n" + BODY,
    "two lengths in one": PUSH + b"Content-Length: 44, 44\r\n\r\n" + BODY,
    "signed length": PUSH + b"Content-Length: +44\r\n\r\n" + BODY,
    "unknown transfer encoding": PUSH + b"Transfer-Encoding: cow\r\n\r\n" + CHUNK,
    "packed transfer encoding": PUSH + b"Transfer-Encoding: gzip, chunked\r\n\r\n" + CHUNK,
    "chunked twice": PUSH + b"Transfer-Encoding: chunked, chunked\r\n\r\n" + CHUNK,
    "two transfer encodings": PUSH + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n" + CHUNK,
    "identity": PUSH + b"Transfer-Encoding: identity\r\n" + LENGTH + b"\r\n" + BODY,
    "chunks in HTTP/1.0": PUSH.replace(b"1.1", b"1.0") + b"Transfer-Encoding: chunked\r\n\r\n" + CHUNK,
    "space before the colon": PUSH + b"Transfer-Encoding : chunked\r\n\r\n" + CHUNK,
    "folded header": PUSH + b"Transfer-Encoding:\r\n chunked\r\n" + LENGTH + b"\r\n" + BODY,
    "only line feeds": PUSH.replace(b"\r\n", b"\n") + b"\n",
    "length behind the body": CHUNKED + LENGTH + b"\r\n",
    "transfer encoding behind the body": CHUNKED + b"Transfer-Encoding: chunked\r\n\r\n",
    "another URL": b"GET http://evil.example/health HTTP/1.1\r\nHost: localhost\r\n\r\n",
}


def _said(http: Http, sent: bytes) -> bytes:
    """All that the server says until it ends the connection."""
    with http.socket() as connection:
        connection.sendall(sent)
        said = b""
        while chunk := connection.recv(65536):
            said += chunk
    return said


@pytest.mark.parametrize("sent", REFUSED.values(), ids=REFUSED.keys())
def test_request_that_can_be_read_in_two_ways_is_refused(memory_http: Http, sent: bytes) -> None:
    said = _said(memory_http, sent + PUSH + LENGTH + b"\r\n" + BODY if b"host" not in sent else sent)
    assert said.startswith(b"HTTP/1.1 400 ")
    assert said.count(b"HTTP/1.1 ") == 1
    assert b'"code":"invalid_request"' in said


@pytest.mark.parametrize(
    "trailer",
    [
        b"Content-Type: application/x-lockstep-batch",
        b"Host: evil.example",
        b"Authorization: Bearer x",
        b"Content-Encoding: gzip",
    ],
)
def test_trailer_changes_nothing(memory_http: Http, trailer: bytes) -> None:
    """The head has been judged when it arrives, here and by proxies."""
    ping = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with memory_http.socket() as connection:
        connection.sendall(CHUNKED + trailer + b"\r\n\r\n" + ping)
        assert [status for status, _ in answers(connection, 2)] == [201, 200]


ENDLESS = {
    "trailers": CHUNKED + b"".join(b"t%d: v\r\n" % number for number in range(50_000)),
    "one trailer": CHUNKED + b"t: " + b"v" * 500_000,
    "chunk extension": CHUNKED.removesuffix(b"0\r\n") + b"1;x=" + b"v" * 500_000,
    "trailers of a refused request": (CHUNKED + b"t: v\r\n" * 50_000).replace(b"/push", b"/nothing"),
}


@pytest.mark.parametrize("sent", ENDLESS.values(), ids=ENDLESS.keys())
def test_what_is_neither_head_nor_body_has_a_limit(memory_http: Http, sent: bytes) -> None:
    with memory_http.socket() as connection:
        connection.sendall(sent)
        [(status, body)] = answers(connection, 1)
        assert (status, json.loads(body)["code"]) == (413, "too_large")


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd", "identity", "x"])
def test_packed_body_is_refused(memory_http: Http, encoding: str) -> None:
    answer = memory_http.send("POST", "/api/v1/push", BODY, {"Content-Encoding": encoding})
    assert (answer.status, answer.code) == (415, "unsupported_encoding")


@pytest.mark.parametrize(
    "path",
    [
        "//health",
        "/api//v1/resources/queues",
        "/api/v1/pop/queue/a//b",
        "/health/.",
        "/./health",
        "/api/v1/../../health",
        "/api/v1/resources/queues/..",
        "/api/v1/resources/queues/%2e%2e",
        "/api/v1/resources/queues/%2E.",
        "/api/v1/resources/queues/.%2e/x",
        "/api/v1/resources/queues/a%2F..%2Fb",
        "/api/v1/resources/queues/a%2f%2e%2e",
    ],
)
def test_path_that_others_would_shorten_is_refused(memory_http: Http, path: str) -> None:
    answer = memory_http.get(path)
    assert (answer.status, answer.code) == (400, "invalid_request")


@pytest.mark.parametrize("name", [".a", "a.", "...", "a..b", "a/.b", "a%2F%2Fb", "%2Fa", "a%2F", "a/b", "a%2Fb.c"])
def test_names_with_dots_and_slashes_work(memory_http: Http, queue: str, name: str) -> None:
    path = f"/api/v1/pop/queue/{queue}-{name}"
    assert memory_http.get(path).status == 204

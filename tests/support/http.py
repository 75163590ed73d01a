"""A small HTTP client for tests: one request, one connection, nothing done behind the test's back."""

from __future__ import annotations

import json
import socket
from dataclasses import dataclass
from http.client import HTTPConnection, parse_headers
from typing import Any
from urllib.parse import urlencode, urlsplit

TIMEOUT_SECONDS = 60


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """Of an error."""
        return str(self.json()["code"])


class Http:
    """Requests to one server."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        assert parts.port is not None
        self.host, self.port = parts.hostname, parts.port

    def send(self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> Answer:
        connection = HTTPConnection(self.host, self.port, timeout=TIMEOUT_SECONDS)
        try:
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            names = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, names, response.read())
        finally:
            connection.close()

    def get(self, path: str, **query: object) -> Answer:
        return self.send("GET", f"{path}?{urlencode(query)}" if query else path)

    def post(self, path: str, content: object = None) -> Answer:
        return self.send("POST", path, None if content is None else json.dumps(content).encode())

    def patch(self, path: str, content: object) -> Answer:
        return self.send("PATCH", path, json.dumps(content).encode())

    def delete(self, path: str, **query: object) -> Answer:
        return self.send("DELETE", f"{path}?{urlencode(query)}" if query else path)

    def socket(self) -> socket.socket:
        """A plain connection, for what no client would send."""
        return socket.create_connection((self.host, self.port), timeout=TIMEOUT_SECONDS)

    # What most tests begin with

    def push(self, queue: str, *payloads: object, partition: str = "Default", **fields: object) -> list[dict[str, Any]]:
        items = [{"queue": queue, "partition": partition, "payload": payload, **fields} for payload in payloads]
        answer = self.post("/api/v1/push", {"items": items})
        assert answer.status == 201, answer.body
        return list(answer.json())

    def pop(self, queue: str, **query: object) -> dict[str, Any]:
        answer = self.get(f"/api/v1/pop/queue/{queue}", **query)
        assert answer.status == 200, answer.body
        return dict(answer.json())

    def ack(self, message: dict[str, Any], status: str = "completed", **fields: object) -> dict[str, Any]:
        named = {name: message[name] for name in ("transactionId", "partitionId", "leaseId", "consumerGroup")}
        answer = self.post("/api/v1/ack", {**named, "status": status, **fields})
        assert answer.status == 200, answer.body
        return dict(answer.json()[0])


def answers(connection: socket.socket, count: int) -> list[tuple[int, bytes]]:
    """Answers are told apart by their lengths, as a client does."""
    answers = []
    with connection.makefile("rb") as stream:
        for _ in range(count):
            status = int(stream.readline().split()[1])
            headers = parse_headers(stream)
            answers.append((status, stream.read(int(headers["content-length"]))))
    return answers

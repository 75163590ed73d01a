"""A schema registry of our own for tests: an HTTP server with the routes of Confluent's API that a reader needs."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

_BY_ID = re.compile(r"/schemas/ids/(\d+)")
_BY_VERSION = re.compile(r"/subjects/([^/]+)/versions/(latest|\d+)")


@dataclass
class Registered:
    """A schema. For Protobuf `schema` is its source, and `serialized` the descriptor in base64."""

    id: int
    subject: str
    version: int
    schema: str
    kind: str = "AVRO"
    serialized: str | None = None
    references: list[dict[str, Any]] = field(default_factory=list)

    def answer(self, form: str | None) -> dict[str, Any]:
        schema = self.serialized if form == "serialized" and self.serialized is not None else self.schema
        answer: dict[str, Any] = {"subject": self.subject, "version": self.version, "id": self.id, "schema": schema}
        # As Confluent's does: the type is left out where it is Avro.
        if self.kind != "AVRO":
            answer["schemaType"] = self.kind
        if self.references:
            answer["references"] = self.references
        return answer


class FakeRegistry:
    """What it knows, and what it was asked."""

    def __init__(self) -> None:
        self.schemas: list[Registered] = []
        self.asked: list[str] = []
        self.password: str | None = None
        self.failures = 0
        self.url = ""

    def register(self, subject: str, schema: str, **more: Any) -> int:
        version = 1 + sum(one.subject == subject for one in self.schemas)
        self.schemas.append(Registered(100 + len(self.schemas), subject, version, schema, **more))
        return self.schemas[-1].id

    def answer(self, path: str, query: Mapping[str, list[str]], authorization: str | None) -> tuple[int, Any]:
        self.asked.append(path)
        if self.failures:
            self.failures -= 1
            return 503, {"error_code": 50301, "message": "busy"}
        if self.password is not None and authorization != f"Basic {b64encode(self.password.encode()).decode()}":
            return 401, {"error_code": 401, "message": "who are you?"}
        found = self._find(path)
        if found is None:
            return 404, {"error_code": 40403, "message": "not found"}
        return 200, found.answer(query.get("format", [None])[0])

    def _find(self, path: str) -> Registered | None:
        if by_id := _BY_ID.fullmatch(path):
            return next((one for one in self.schemas if one.id == int(by_id[1])), None)
        if by_version := _BY_VERSION.fullmatch(path):
            subject = [one for one in self.schemas if one.subject == unquote(by_version[1])]
            if by_version[2] == "latest":
                return subject[-1] if subject else None
            return next((one for one in subject if one.version == int(by_version[2])), None)
        return None


@contextmanager
def schema_registry() -> Iterator[FakeRegistry]:
    registry = FakeRegistry()

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            status, body = registry.answer(parts.path, parse_qs(parts.query), self.headers.get("Authorization"))
            encoded = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(encoded)))
            self.end_headers()
            self.wfile.write(encoded)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        registry.url = f"http://127.0.0.1:{server.server_port}"
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield registry
        finally:
            server.shutdown()
            thread.join()

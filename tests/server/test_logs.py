"""What a server writes to standard error."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from lockstep.config import load
from lockstep.server.logs import log_to_stderr
from support.databases import Databases
from support.http import Http
from support.server import running_server

FIELDS = {"path": "/api/v1/x\n2026-01-01T00:00:00.000Z error   forged\x1b[2J", "count": 2}


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch) -> logging.Logger:
    """The root logger, which is afterwards as it was before."""
    found = logging.getLogger()
    monkeypatch.setattr(found, "handlers", [])
    monkeypatch.setattr(found, "level", found.level)
    ours = logging.getLogger("lockstep")
    monkeypatch.setattr(ours, "level", ours.level)
    return found


@pytest.mark.usefixtures("root")
def test_event_is_one_line_whatever_its_fields_are(capsys: pytest.CaptureFixture[str]) -> None:
    log_to_stderr(load({"log_format": "text"}))
    logging.getLogger("lockstep.server").warning("request_failed", extra=FIELDS)
    [line] = capsys.readouterr().err.splitlines()
    assert line.endswith(
        r" warning request_failed path=/api/v1/x\n2026-01-01T00:00:00.000Z error   forged\x1b[2J count=2"
    )


@pytest.mark.usefixtures("root")
def test_event_as_json_has_its_fields(capsys: pytest.CaptureFixture[str]) -> None:
    log_to_stderr(load({"log_format": "json"}))
    logging.getLogger("lockstep.server").warning("request_failed", extra=FIELDS)
    said = json.loads(capsys.readouterr().err)
    assert {"level": "warning", "event": "request_failed", **FIELDS}.items() <= said.items()


def test_lines_logged_for_a_request_have_its_id(databases: Databases, tmp_path: Path) -> None:
    dsn = databases.clone()
    with running_server(dsn, tmp_path, log_format="json", slow_query_seconds=0.000_001) as server:
        body = b'{"items": [{"queue": "orders", "payload": 1}]}'
        answer = Http(server.url).send("POST", "/api/v1/push", body, {"x-request-id": "order-17"})
        assert answer.headers["x-request-id"] == "order-17"
        server.stop()
    lines = [json.loads(line) for line in (tmp_path / "server.log").read_text().splitlines()]
    slow = [line for line in lines if line["event"] == "query_slow"]
    assert [line["query"] for line in slow if line.get("request_id") == "order-17" and "push" in line["query"]]
    assert [line for line in slow if "request_id" not in line], "work in the background belongs to no request"
    databases.drop(dsn)

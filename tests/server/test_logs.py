"""What a server writes to standard error."""

from __future__ import annotations

import json
import logging

import pytest

from lockstep.config import load
from lockstep.server.logs import log_to_stderr

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

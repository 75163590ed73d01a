"""Logs of a server: one line per event on standard error, with its fields; as JSON, if the settings say so."""

from __future__ import annotations

import logging
import re
import sys
from datetime import UTC, datetime
from typing import Any

import msgspec

from lockstep.config import Config

_OWN_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "action", "taskName"}
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def log_to_stderr(config: Config) -> None:
    """Send the logs of Lockstep, and of what it is made of, to standard error."""
    target = logging.StreamHandler(sys.stderr)
    target.setFormatter(_Lines() if config.log_format == "text" else _Json())
    root = logging.getLogger()
    root.handlers[:] = [target]
    root.setLevel(logging.WARNING)
    logging.getLogger("lockstep").setLevel(config.log_level.upper())


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name, value in vars(record).items() if name not in _OWN_FIELDS}


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class _Lines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = " ".join(f"{name}={_on_one_line(value)}" for name, value in _fields(record).items())
        line = f"{_time(record)} {record.levelname.lower():7} {record.getMessage()} {fields}".rstrip()
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _on_one_line(value: object) -> str:
    """What a client sends, or PostgreSQL says, can neither begin a line of its own nor steer a terminal."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), str(value))


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        content = {"at": _time(record), "level": record.levelname.lower(), "event": record.getMessage()}
        content |= _fields(record)
        if record.exc_info:
            content["traceback"] = self.formatException(record.exc_info)
        return msgspec.json.encode(content, enc_hook=str).decode()

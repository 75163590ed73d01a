"""Logs of a server: one line per event on standard error, with its fields; as JSON, if the settings say so."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime

import msgspec

from lockstep.config import Config
from lockstep.logs import REQUEST_ID, fields_of, on_one_line


def log_to_stderr(config: Config) -> None:
    """Send the logs of Lockstep, and of the libraries it uses, to standard error."""
    target = logging.StreamHandler(sys.stderr)
    target.addFilter(_with_request_id)
    if config.tracing:
        from lockstep.tracing import name_span

        target.addFilter(name_span)
    target.setFormatter(_Lines() if config.log_format == "text" else _Json())
    root = logging.getLogger()
    root.handlers[:] = [target]
    root.setLevel(logging.WARNING)
    logging.getLogger("lockstep").setLevel(config.log_level.upper())


def _with_request_id(record: logging.LogRecord) -> bool:
    """Adds the request id to every line that is logged while the request is answered."""
    request_id = REQUEST_ID.get()
    if request_id is not None and not hasattr(record, "request_id"):
        record.request_id = request_id
    return True


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class _Lines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = " ".join(f"{name}={on_one_line(value)}" for name, value in fields_of(record).items())
        line = f"{_time(record)} {record.levelname.lower():7} {record.getMessage()} {fields}".rstrip()
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        content = {"at": _time(record), "level": record.levelname.lower(), "event": record.getMessage()}
        content |= fields_of(record)
        if record.exc_info:
            content["traceback"] = self.formatException(record.exc_info)
        return msgspec.json.encode(content, enc_hook=str).decode()

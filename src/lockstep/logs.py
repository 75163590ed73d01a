"""Log lines for people: what an event means, with its fields.

A record's message is the fixed name of an event, and the fields are attributes of the record: what machines want. A
program that sets up no logging would print the bare name, so Lockstep has a handler of last resort of its own.
"""

from __future__ import annotations

import logging
import re
import sys
from typing import Any

EVENTS = {
    "ack_failed": "An acknowledgement failed; the messages are delivered again.",
    "connect_retried": "PostgreSQL cannot be reached; Lockstep tries again.",
    "database_away": "PostgreSQL is away.",
    "database_back": "PostgreSQL is back.",
    "drain_timeout": "The workers did not finish in time; their messages are given back.",
    "duty_failed": "A maintenance duty failed; it runs again later.",
    "embedded_died": "The embedded PostgreSQL died.",
    "embedded_given_up": "The embedded PostgreSQL died too often and is not started again.",
    "embedded_restart": "The embedded PostgreSQL is started again.",
    "listening_retried": "The connection that listens for pushes was lost; Lockstep connects again.",
    "message_failed": "The handler raised an error; the message is delivered again, or becomes a dead letter.",
    "on_error_failed": "The function on_error raised an error itself.",
    "pop_failed": "A pop failed; the worker tries again.",
    "push_failed": "A push in the background failed.",
    "query_hook_failed": "The function on_query raised an error itself.",
    "query_slow": "A query was slow.",
    "renewal_failed": "A lease could not be renewed.",
    "tell_failed": "Waiting pops could not be notified; they find the messages a little later.",
    "transaction_retried": "A transaction conflicted with another one and is tried again.",
}
"""What the events mean that a library user meets. The name of any other event is shown with spaces."""

_OWN_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "action", "taskName"}
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """The fields that came with an event."""
    return {name: value for name, value in vars(record).items() if name not in _OWN_FIELDS}


def on_one_line(value: object) -> str:
    """A text that can neither begin a line of its own nor steer a terminal, whoever sent it."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), str(value))


class LogFormatter(logging.Formatter):
    """A sentence, the name of the event and its fields, for the handlers of programs that use Lockstep."""

    def format(self, record: logging.LogRecord) -> str:
        event = record.getMessage()
        text = EVENTS.get(event, event.replace("_", " ")) if getattr(record, "action", None) == event else event
        fields = " ".join(f"{name}={on_one_line(value)}" for name, value in fields_of(record).items())
        line = f"{record.levelname} {record.name}: {text} [{event}{' ' if fields else ''}{fields}]"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class _LastResort(logging.Handler):
    """Writes warnings to standard error while the program has set up no logging."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            if not self._has_others(logging.getLogger(record.name)):
                sys.stderr.write(self.format(record) + "\n")
        except Exception:
            self.handleError(record)

    def _has_others(self, logger: logging.Logger | None) -> bool:
        """Whether any handler but this one gets the records of a logger."""
        while logger is not None:
            if any(handler is not self for handler in logger.handlers):
                return True
            logger = logger.parent if logger.propagate else None
        return False


def install_last_resort() -> None:
    """Once for a process, when Lockstep is imported."""
    ours = logging.getLogger("lockstep")
    if not any(isinstance(handler, _LastResort) for handler in ours.handlers):
        handler = _LastResort(logging.WARNING)
        handler.setFormatter(LogFormatter())
        ours.addHandler(handler)

"""Log lines for people: what an event means, with its fields.

A record's message is the fixed name of an event, and the fields are attributes of the record, for machines. A program
that sets up no logging would print only the name, so Lockstep has its own handler of last resort.
"""

from __future__ import annotations

import logging
import re
import sys
from contextvars import ContextVar
from typing import Any, NamedTuple


class LogEvent(NamedTuple):
    level: str
    text: str
    """A sentence."""


EVENTS = {
    # Clients
    "ack_failed": LogEvent("warning", "An acknowledgement failed; the messages are delivered again."),
    "drain_timeout": LogEvent("warning", "The workers did not finish in time; their messages are given back."),
    "message_failed": LogEvent(
        "warning", "The handler raised an error; the message is delivered again, or becomes a dead letter."
    ),
    "on_error_failed": LogEvent("error", "The function on_error raised an error itself."),
    "pop_failed": LogEvent("warning", "A pop failed; the worker tries again."),
    "push_failed": LogEvent("warning", "A push in the background failed."),
    "renewal_failed": LogEvent("warning", "A lease could not be renewed."),
    # Requests
    "accept_failed": LogEvent("error", "The server could not accept a connection."),
    "audit": LogEvent("info", "A caller did, or was denied, an administrative act."),
    "audit_not_stored": LogEvent("error", "An entry of the audit log could not be written; it is in this log only."),
    "certificate_renewed": LogEvent("info", "The certificate of the server has changed and is used from now on."),
    "certificate_unusable": LogEvent("error", "The new certificate cannot be used; the server keeps the old one."),
    "connections_exhausted": LogEvent(
        "warning", "A process has as many connections as it may; it refuses further ones."
    ),
    "file_limit_low": LogEvent("warning", "The process may open fewer files than connections_max needs."),
    "handshake_failed": LogEvent("info", "A client's TLS handshake failed."),
    "key_set_unavailable": LogEvent(
        "warning", "The key set for tokens could not be fetched; the last one stays in use."
    ),
    "keys_not_compared": LogEvent(
        "warning", "The API keys could not be compared with the database; those known stay in use."
    ),
    "parent_died": LogEvent("error", "The process that watches over the workers died; the worker stops."),
    "request_answered": LogEvent("debug", "A request was answered."),
    "server_sample_failed": LogEvent(
        "error", "A sample of requests, errors and load could not be stored; its counts go into the next one."
    ),
    "request_failed": LogEvent("error", "A request failed through no fault of its client."),
    "request_unreadable": LogEvent("warning", "A request was not HTTP/1.1."),
    "requests_failing": LogEvent("error", "Requests keep failing for the same reason, which is logged in sums."),
    "requests_recovered": LogEvent("warning", "Requests succeed again."),
    "root_dropped": LogEvent("info", "The server, which root started, goes on as the owner of its data."),
    "root_kept": LogEvent("warning", "The server goes on as root: the owner of its data cannot read its code."),
    "server_insecure": LogEvent("warning", "Everybody who reaches the server over a network may use it."),
    "sibling_silent": LogEvent("info", "Another process of the port did not give its figures."),
    "worker_died": LogEvent("error", "A worker process died and is replaced."),
    # Load, operations and the spool
    "load_changed": LogEvent("info, warning", "The server treats requests of a kind differently from now on."),
    "look_failed": LogEvent("info", "The server could not look for queued operations; it tries again."),
    "operations_ended_in_failure": LogEvent("warning", "Queued operations could not be applied."),
    "operations_failed": LogEvent("error", "Applying queued operations failed; it is tried again."),
    "spool_again": LogEvent(
        "warning", "The database was replaced by an older copy; buffered pushes are drained again."
    ),
    "spool_ahead": LogEvent(
        "error", "The database has lost buffered pushes; nothing is drained until that is accepted."
    ),
    "spool_damaged": LogEvent("error", "A part of the spool cannot be read; it was set aside."),
    "spool_drained": LogEvent("info", "All buffered pushes are in the database."),
    "spool_failed": LogEvent("error", "Buffering or draining failed; it is tried again."),
    "spool_file_short": LogEvent("error", "A file of the spool ends too early."),
    "spool_left": LogEvent("warning", "Buffered pushes are left in the spool; the next server there drains them."),
    "spool_loss_accepted": LogEvent("warning", "An operator accepted the loss of buffered pushes."),
    "spool_of_other_store": LogEvent("warning", "The spool holds pushes for another database; it was set aside."),
    "spool_recovered": LogEvent("warning", "The spool of a server that died was taken over."),
    "spool_refused": LogEvent("warning", "The database refuses a buffered push for now; it is tried again."),
    "spool_rejected": LogEvent("error", "The database rejected a buffered push; it was set aside."),
    "spool_tail_recovered": LogEvent("warning", "The last record of the spool was incomplete; it was cut off."),
    "spool_unclaimed": LogEvent("warning", "Another server holds the spool; this one does not buffer."),
    "spool_unusable": LogEvent("error", "The spool cannot be used; pushes are not buffered."),
    "spool_usable": LogEvent("warning", "The spool can be used again."),
    # Duties
    "clock_was_set_back": LogEvent("warning", "The clock was set back; what waits for a time was moved."),
    "duty_cancelled": LogEvent("warning", "A duty did not end in time at shutdown and was cancelled."),
    "duty_done": LogEvent("debug", "A duty is done."),
    "duty_failed": LogEvent("error, debug", "A maintenance duty failed; it runs again later."),
    "problem_found": LogEvent("error", "The duty verification found something that should not be."),
    "promotion_failed": LogEvent("error", "Pushing scheduled messages failed; it is tried again."),
    "promotion_postponed": LogEvent("warning", "Scheduled messages of a queue are due and cannot be pushed for now."),
    "promotion_unwritten": LogEvent("info", "The time of the last promotion could not be stored."),
    # The database
    "announcement_failed": LogEvent("info", "Other processes could not be notified; they find the messages later."),
    "connect_retried": LogEvent("info", "PostgreSQL cannot be reached; Lockstep tries again."),
    "database_away": LogEvent("error", "PostgreSQL is away."),
    "database_back": LogEvent("warning", "PostgreSQL is back."),
    "database_replaced": LogEvent("warning", "The database is another one, or an older copy, from now on."),
    "group_postponed": LogEvent("warning", "Cursors of a group could not be made or removed yet; somebody holds them."),
    "ids_not_provided": LogEvent("debug", "Ids could not be moved ahead after a failover; it is tried again."),
    "ids_provided": LogEvent("info", "Ids were moved ahead after a failover."),
    "listening_retried": LogEvent(
        "info, debug", "The connection that listens for pushes was lost; Lockstep connects again."
    ),
    "lock_held": LogEvent("warning", "A call waits for a lock for long; the fields name its holder."),
    "query_hook_failed": LogEvent("error", "The function on_query raised an error itself."),
    "query_slow": LogEvent("warning", "A query was slow."),
    "queue_not_pruned": LogEvent("warning", "Messages of a queue could not be removed yet; somebody holds them."),
    "queue_removal_postponed": LogEvent("warning", "A deleted queue is removed later; somebody holds it."),
    "roles_missing": LogEvent("warning", "Roles that are to have rights on the database do not exist."),
    "tell_failed": LogEvent("error", "Waiting pops could not be notified; they find the messages a little later."),
    "transaction_retried": LogEvent("info", "A transaction conflicted with another one and is tried again."),
    # The embedded PostgreSQL
    "embedded_callback_failed": LogEvent("error", "The function on_progress raised an error itself."),
    "embedded_died": LogEvent("error", "The embedded PostgreSQL died."),
    "embedded_given_up": LogEvent("error", "The embedded PostgreSQL died too often and is not started again."),
    "embedded_progress": LogEvent("info", "The embedded PostgreSQL starts or stops; the fields say how far it is."),
    "embedded_record_failed": LogEvent("warning", "The record of the embedded PostgreSQL could not be written."),
    "embedded_restart": LogEvent("warning", "The embedded PostgreSQL is started again."),
}
"""All events that Lockstep logs, with their levels."""

REQUEST_ID: ContextVar[str | None] = ContextVar("lockstep_request_id", default=None)
"""The id of the current request: every line that is logged for it contains the id."""

_OWN_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "action", "taskName"}
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """The fields of an event."""
    return {name: value for name, value in vars(record).items() if name not in _OWN_FIELDS}


def on_one_line(value: object) -> str:
    """A text that cannot start a new line or control a terminal, whoever sent it."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), str(value))


class LogFormatter(logging.Formatter):
    """A sentence, the name of the event and its fields, for the handlers of programs that use Lockstep."""

    def format(self, record: logging.LogRecord) -> str:
        event = record.getMessage()
        known = EVENTS.get(event) if getattr(record, "action", None) == event else None
        text = event if known is None else known.text
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
        """Whether any other handler receives the records of a logger."""
        while logger is not None:
            if any(handler is not self for handler in logger.handlers):
                return True
            logger = logger.parent if logger.propagate else None
        return False


def install_last_resort() -> None:
    """Called once per process, when Lockstep is imported."""
    ours = logging.getLogger("lockstep")
    if not any(isinstance(handler, _LastResort) for handler in ours.handlers):
        handler = _LastResort(logging.WARNING)
        handler.setFormatter(LogFormatter())
        ours.addHandler(handler)

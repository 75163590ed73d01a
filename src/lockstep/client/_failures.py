"""How consumers handle failures: a text for the dead letter, and a log line."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from lockstep.client._received import ReceivedMessage
from lockstep.errors import InvalidRequest, LockstepError

logger = logging.getLogger("lockstep.client")

OnError = Callable[[Exception, Any], object]
"""Called with an error and the message, or messages, that it concerns."""

ERROR_TEXT_LENGTH_MAX = 2_000

FORKED = "the client is that of the process from which this one was forked; connect anew here"


def error_text(error: BaseException) -> str:
    """The error's kind and text, truncated."""
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return text[:ERROR_TEXT_LENGTH_MAX]


def check_on_error(on_error: OnError | None) -> None:
    """Refuse a coroutine function: it would be called but never run."""
    if inspect.iscoroutinefunction(on_error):
        raise InvalidRequest("on_error must be a plain function, not an async one")


def tell(on_error: OnError | None, error: Exception, about: Any) -> None:
    """Call the user's function. Errors in it have no effect."""
    if on_error is None:
        return
    try:
        on_error(error, about)
    except Exception:
        logger.exception("on_error_failed", extra={"action": "on_error_failed"})


def log_failed_message(message: ReceivedMessage, error: BaseException) -> None:
    logger.warning(
        "message_failed",
        extra={
            "action": "message_failed",
            "queue": message.queue,
            "partition": message.partition,
            "seq": message.seq,
            "attempt": message.attempt,
            "error": error_text(error),
        },
    )


@contextmanager
def logged_failures(queue: str) -> Iterator[None]:
    """A consumer continues when an ack fails: messages that were not acknowledged are delivered again."""
    try:
        yield
    except LockstepError as error:
        log_failed_ack(queue, error)


def log_failed_ack(queue: str, error: LockstepError) -> None:
    extra = {"action": "ack_failed", "queue": queue, "code": error.code, "error": error.message}
    logger.warning("ack_failed", extra=extra)

"""Converts answers, and missing answers, to errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct

from lockstep.client._protocol.exchange import ConnectionFailed, HttpAnswer
from lockstep.client._retry import Failure
from lockstep.core.records import AckOutcome
from lockstep.errors import (
    Forbidden,
    LockstepError,
    Overloaded,
    TooLarge,
    TransactionRolledBack,
    Unauthorized,
    Unavailable,
)


class _ErrorBody(Struct):
    error: str = ""
    code: str = ""
    details: dict[str, Any] = {}
    reason: str = ""
    """Instead of an error, in answers about the server's health."""


def _classes(error: type[LockstepError]) -> Iterator[type[LockstepError]]:
    yield error
    for child in error.__subclasses__():
        yield from _classes(child)


CLASSES = {error.code: error for error in reversed(list(_classes(LockstepError)))}
_error_body = msgspec.json.Decoder(_ErrorBody)


# Intermediaries, such as a proxy, send no codes.
_WITHOUT_CODE = {
    401: Unauthorized,
    403: Forbidden,
    413: TooLarge,
    429: Overloaded,
    502: Unavailable,
    503: Unavailable,
    504: Unavailable,
}


def failure_of(answer: HttpAnswer) -> Failure | None:
    """The failure that an answer reports; None if it reports none."""
    if 200 <= answer.status < 300:
        return None
    try:
        body = _error_body.decode(answer.body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        body = _ErrorBody()
    if body.code:
        error = CLASSES.get(body.code, LockstepError)(body.error or None, **_free(body.details))
        if type(error) is LockstepError:
            error.details |= {"code": body.code, "status": answer.status}
        elif isinstance(error, TransactionRolledBack):
            error.details["outcomes"] = _outcomes(body.details)
    else:
        error = _without_code(answer, body.error or body.reason)
    return Failure(
        error,
        # Our server gives a reason, and a call that failed there has changed nothing, unless the answer says that this
        # is unknown. An intermediary gives none.
        maybe_applied=(answer.status >= 500 and not body.code) or bool(body.details.get("maybe_applied")),
        unreachable=answer.status in (502, 503, 504),
        retry_after_seconds=_seconds(answer.retry_after),
    )


def _free(details: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in details.items() if name != "message"}


def _outcomes(details: dict[str, Any]) -> list[AckOutcome]:
    """The outcome of each ack of a transaction, as in the engine."""
    try:
        return msgspec.convert(details.get("outcomes", []), list[AckOutcome])
    except msgspec.ValidationError:
        return []


def _without_code(answer: HttpAnswer, text: str) -> LockstepError:
    error = _WITHOUT_CODE.get(answer.status, LockstepError)
    return error(text or f"the server answered HTTP {answer.status}", status=answer.status)


def _seconds(retry_after: str | None) -> float | None:
    """Retry-After in seconds. A date, which is allowed there, is useless without the server's clock."""
    return float(retry_after) if retry_after is not None and retry_after.isascii() and retry_after.isdigit() else None


def connection_failure(error: ConnectionFailed) -> Failure:
    unavailable = Unavailable(f"the server cannot be reached: {error}", maybe_applied=error.sent)
    return Failure(unavailable, maybe_applied=error.sent, unreachable=True)

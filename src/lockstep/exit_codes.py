"""The exit codes of programs, and the errors that lead to them. No other module defines exit codes."""

from __future__ import annotations

from lockstep.errors import (
    Conflict,
    DataDirectoryInUse,
    Forbidden,
    InvalidRequest,
    LockstepError,
    NotFound,
    Overloaded,
    QueueFull,
    TooLarge,
    Unauthorized,
    Unavailable,
)

FAILED, USAGE, NOT_FOUND, REFUSED, UNAVAILABLE, INTERRUPTED, PIPE_CLOSED = 1, 2, 3, 4, 5, 130, 141

EXIT_CODES: dict[int, str] = {
    0: "It is done.",
    FAILED: "It failed, or something was found that is not as it should be.",
    USAGE: "The command line, a setting or another input is not valid. Nothing was changed.",
    NOT_FOUND: "The named object does not exist.",
    REFUSED: "Refused: a conflict, a lost lease, a full queue, a limit, a data directory in use, or no permission.",
    UNAVAILABLE: "The server or the database cannot be reached, or is overloaded; try again later.",
    INTERRUPTED: "Interrupted (Ctrl-C, SIGTERM). A server that runs ends with 0 then.",
    PIPE_CLOSED: "The reader of the output closed it.",
}

# The first match counts.
_CODE_OF_ERROR: tuple[tuple[tuple[type[LockstepError], ...], int], ...] = (
    ((InvalidRequest,), USAGE),
    ((NotFound,), NOT_FOUND),
    ((Conflict, QueueFull, TooLarge, DataDirectoryInUse, Unauthorized, Forbidden), REFUSED),
    ((Unavailable, Overloaded), UNAVAILABLE),
)


def exit_code(error: LockstepError) -> int:
    return next((code for kinds, code in _CODE_OF_ERROR if isinstance(error, kinds)), FAILED)

"""Errors on their way through Spark: a failure in a task or in a callback arrives as the text of a traceback.

Ours are told without the way to them, and what Spark raises becomes ours again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from inspect import isgeneratorfunction
from typing import Any, TypeVar

from lockstep import errors
from lockstep.errors import JobFailed, LockstepError

_OURS = re.compile(r"^(?:.*?\b)?lockstep\.errors\.(\w+): (.*)$", re.MULTILINE)
_CAUSE = re.compile(r"^(?:: |Caused by: )?[\w.$]*(?:Exception|Error): (.*)$", re.MULTILINE)
_TRACEBACK = "Traceback (most recent call last):\n"
_TEXT_LENGTH_MAX = 500

M = TypeVar("M", bound=Callable[..., Any])


def told(method: M) -> M:
    """A method that Spark calls, whose errors of ours have no traceback: users read it, and look for the last line."""

    @wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        except LockstepError as error:
            raise error.with_traceback(None) from None

    @wraps(method)
    def generate(*args: Any, **kwargs: Any) -> Iterator[Any]:
        try:
            yield from method(*args, **kwargs)
        except LockstepError as error:
            raise error.with_traceback(None) from None

    return generate if isgeneratorfunction(method) else call  # type: ignore[return-value]


@contextmanager
def explained_by_spark() -> Iterator[None]:
    """Errors of Spark become ours."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise explain(error) from error


def explain(error: BaseException) -> LockstepError:
    """The error of ours that is inside what Spark raises; or else what Python, or Java, says in a line."""
    text = str(error)
    for name, message in reversed(_OURS.findall(text)):
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, LockstepError):
            return kind(message)
    return JobFailed(f"Spark says: {_line(text)[:_TEXT_LENGTH_MAX]}")


def _line(text: str) -> str:
    """The end of the last Python traceback, or else the last cause that Java names, or else the first line."""
    _, traceback, end = text.rpartition(_TRACEBACK)
    if traceback:
        raised = [line for line in end.splitlines() if line and not line[0].isspace()]
        return raised[0] if raised else text
    causes = _CAUSE.findall(text)
    return causes[-1] if causes else text.strip().partition("\n")[0]

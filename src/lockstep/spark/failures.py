"""Errors that pass through Spark: a failure in a task or in a callback arrives as the text of a traceback.

Lockstep errors are shown without a traceback, and what Spark raises becomes a Lockstep error again.
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
_OF_MACHINES = re.compile(
    r"ExecutorLostFailure|OutOfMemoryError|Python worker exited unexpectedly|Python worker failed to connect back|"
    r"Cannot run program|CANNOT_OPEN_SOCKET|Accept timed out|No space left"
)
"""Spark's messages when a process, a machine or its disk fails."""
_CRASHED = re.compile(r"Python worker exited unexpectedly")
"""Spark's messages when a process that runs a user's function was ended by that function or by the system."""
_STOPPED = re.compile(
    r"SPARK_JOB_CANCELLED|was cancelled|InterruptedException|SparkContext (?:was (?:shut|stopped)|has been shut)"
)
"""Spark's messages when its work is stopped."""
_TRACEBACK = "Traceback (most recent call last):\n"
_TEXT_LENGTH_MAX = 500

M = TypeVar("M", bound=Callable[..., Any])


def told(method: M) -> M:
    """Decorates a method that Spark calls: Lockstep errors leave it without a traceback, because users look at the last
    line.
    """

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
    """Convert Spark's errors to ours."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise explain(error) from error


def explain(error: BaseException) -> LockstepError:
    """The Lockstep error inside an error of Spark; otherwise a JobFailed with the message of Python or Java in one
    line.
    """
    text = str(error)
    for name, message in reversed(_OURS.findall(text)):
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, LockstepError):
            return kind(message)
    return JobFailed(f"Spark says: {_line(text)[:_TEXT_LENGTH_MAX]}")


def _line(text: str) -> str:
    """The last line of the last Python traceback, else the last cause that Java names, else the first line."""
    _, traceback, end = text.rpartition(_TRACEBACK)
    if traceback:
        raised = [line for line in end.splitlines() if line and not line[0].isspace()]
        return raised[0] if raised else text
    causes = _CAUSE.findall(text)
    return causes[-1] if causes else text.strip().partition("\n")[0]


def is_stopped(error: BaseException) -> bool:
    """Whether the error says that Spark was stopped."""
    return _STOPPED.search(str(error)) is not None


def is_of_machines(error: BaseException) -> bool:
    """Whether the cause is the machines and not the rows, so that a retry may succeed."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    if not isinstance(error, PySparkException | Py4JJavaError) or is_stopped(error):
        return False
    return _OF_MACHINES.search(str(error)) is not None


def is_crash(error: BaseException) -> bool:
    """Whether the process that ran a user's function died. If that happens repeatedly, the function is wrong or needs
    more memory than there is."""
    return _CRASHED.search(str(error)) is not None

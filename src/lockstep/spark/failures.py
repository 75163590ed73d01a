"""What Spark raises, as errors of ours: a failure in a task or in a callback arrives as the text of a traceback."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from lockstep import errors
from lockstep.errors import JobFailed, LockstepError

_OURS = re.compile(r"^(?:.*?\b)?lockstep\.errors\.(\w+): (.*)$", re.MULTILINE)
_CAUSE = re.compile(r"^(?:: |Caused by: )?[\w.$]*(?:Exception|Error): (.*)$", re.MULTILINE)
_TRACEBACK = "Traceback (most recent call last):\n"
_TEXT_LENGTH_MAX = 500


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

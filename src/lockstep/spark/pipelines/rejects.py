"""Messages that a step rejects: those that its function marks, and those on which it fails.

An error in a function does not identify the message, so the batch is halved until the message is found. Each part is
cached before it is tried: otherwise Spark would merge the selection of the part with the function's own expressions,
and meet the bad message anyway.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep.errors import InvalidName, InvalidPayload, InvalidRequest, LockstepError, StepFailed, TooLarge
from lockstep.spark.failures import explain, is_of_machines, is_stopped
from lockstep.spark.pipelines.diverting import ERROR as ERROR
from lockstep.spark.pipelines.diverting import divert
from lockstep.spark.pipelines.guarding import is_theirs

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_log = logging.getLogger(__name__)

WHOLLY_FAILED_MIN = 10
"""In a batch of at least this size, some messages are tried alone: if all of those fail, the step itself fails."""

SEARCHED_MAX = 100
"""Maximum number of messages of a batch that are searched for individually."""
TOLD_SECONDS = 10.0

_PROBES = (9, 0, 5, 2, 7)
"""The messages that are tried, in tenths of the batch."""
_FRAME = re.compile(r'^  File "([^"]+)", line (\d+)', re.MULTILINE)
_RAISED = re.compile(r"^(?:[\w]+\.)*(\w*(?:Error|Exception|Warning|Interrupt|Exit)|[A-Z]\w+): (.+)$", re.MULTILINE)
_SPARKS = re.compile(r"^(?:[\w.$]+(?:Exception|Error): )?(\[[A-Z_.0-9]+\] .+)$", re.MULTILINE)
_OF_ROWS = (InvalidRequest, InvalidName, InvalidPayload, TooLarge)
"""The sink's errors for rows that it refuses."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """A message that goes to the dead letters."""

    message_id: str
    error: str


def reject(frame: DataFrame, condition: Column | str, reason: Column | str) -> DataFrame:
    """Mark the rows for which the condition holds: they become dead letters with the reason instead of going to the
    sink.

    A condition in SQL may be a string. A row that was already marked keeps its first reason. In a stateful step the
    rows leave the stream here, before any state.
    """
    from pyspark.sql import functions as F  # noqa: N812

    test = F.expr(condition) if isinstance(condition, str) else condition
    text = F.lit(reason) if isinstance(reason, str) else reason
    if frame.isStreaming:
        return divert(frame, test, text)
    marked = F.when(test, F.coalesce(text.cast("string"), F.lit("rejected")))
    if ERROR in frame.columns:
        marked = F.coalesce(F.col(ERROR), marked)
    return frame.withColumn(ERROR, marked)


def may_be_of_rows(error: BaseException) -> bool:
    """Whether the content of a row may have caused the error, rather than the step's code or the machines."""
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
    from pyspark.errors import AnalysisException, ParseException, PySparkException

    if isinstance(error, LockstepError) or not isinstance(error, PySparkException | Py4JJavaError):
        return False
    if isinstance(error, AnalysisException | ParseException) or is_stopped(error) or is_of_machines(error):
        return False
    ours = explain(error)
    return _is_by_spark(ours) or type(ours) in _OF_ROWS


def _is_by_spark(error: LockstepError) -> bool:
    return error.code == "job_failed"


def cause_of(error: BaseException) -> str:
    """The cause of an error in a task, in one line."""
    if isinstance(error, LockstepError):
        return error.message
    ours = explain(error)
    if not _is_by_spark(ours):
        return ours.message
    text = str(error)
    # A Python worker's traceback ends with the error; Spark's own errors begin with their class in brackets.
    traceback = text.rpartition("Traceback (most recent call last)")[2] if "Traceback (most" in text else ""
    raised = [f"{name}: {said}" for name, said in _RAISED.findall(traceback)]
    if raised:
        return raised[0] + place_in(traceback)
    sparks = _SPARKS.findall(text)
    return str(sparks[0]) if sparks else ours.message.removeprefix("Spark says: ")


def place_in(traceback: str) -> str:
    """The last line of a traceback that belongs neither to Spark nor to us, as ` (orders.py:17)`."""
    lines = [(Path(file).name, line) for file, line in _FRAME.findall(traceback) if is_theirs(file)]
    return f" ({lines[-1][0]}:{lines[-1][1]})" if lines else ""


@contextmanager
def cached(frame: DataFrame) -> Iterator[DataFrame]:
    """The frame, computed once; later operations are not merged with earlier ones."""
    kept = frame.persist()
    try:
        yield kept
    finally:
        kept.unpersist()


def check_rejects(count: int, rejects_max: int, last: str) -> None:
    """Raises StepFailed if too many messages of a batch fail."""
    if count > rejects_max:
        raise StepFailed(f"more than {rejects_max} messages fail (rejects_max), the last one with: {last}")


class Search:
    """Finds the messages of a batch on which a step fails."""

    def __init__(self, attempt: Callable[[DataFrame], Any], frame: DataFrame, *, rejects_max: int) -> None:
        self._attempt = attempt
        self._frame = frame
        self._rejects_max = rejects_max
        self._found: list[Rejected] = []
        self._told_at = time.monotonic()

    def find(self) -> Sequence[Rejected]:
        """The messages that make a failing frame fail. Raises StepFailed if messages are not the cause, or if there are
        too many; and any other error that occurs."""
        self._attempt_nothing()
        ids = sorted({row["message_id"] for row in self._frame.select("message_id").collect()})
        if len(ids) >= WHOLLY_FAILED_MIN:
            self._probe(ids)
        self._look(ids, fails=True)
        return self._found

    def _attempt_nothing(self) -> None:
        error = self._failure(self._frame.limit(0))
        if error is not None:
            raise StepFailed(f"it fails without any message, too: {cause_of(error)}") from error

    def _probe(self, ids: Sequence[str]) -> None:
        """Raises StepFailed if messages fail everywhere in the batch."""
        error = None
        for tenth in _PROBES:
            place = len(ids) * tenth // 10
            error = self._failure_of(ids[place : place + 1])
            if error is None:
                return
        assert error is not None
        raise StepFailed(f"every message that was tried alone fails, one of them with: {cause_of(error)}") from error

    def _look(self, ids: Sequence[str], *, fails: bool) -> bool:
        """Search among some messages, in the order of their ids; returns whether all of them pass. `fails`: they are
        known to fail together."""
        if not ids:
            return True
        if len(ids) == 1 or not fails:
            error = self._failure_of(ids)
            if error is None:
                return True
            if len(ids) == 1:
                self._add(ids[0], error)
                return False
        half = len(ids) // 2
        first_passes = self._look(ids[:half], fails=False)
        self._look(ids[half:], fails=first_passes)
        return False

    def _failure_of(self, ids: Sequence[str]) -> BaseException | None:
        """The error with only these messages, if there is one."""
        with cached(self._frame.where(self._frame["message_id"].between(ids[0], ids[-1]))) as part:
            return self._failure(part)

    def _failure(self, part: DataFrame) -> BaseException | None:
        try:
            self._attempt(part)
        except Exception as error:
            if not may_be_of_rows(error):
                raise
            return error
        return None

    def _add(self, message_id: str, error: BaseException) -> None:
        self._found.append(Rejected(message_id, cause_of(error)))
        check_rejects(len(self._found), self._rejects_max, cause_of(error))
        if len(self._found) > SEARCHED_MAX:
            raise StepFailed(
                f"more than {SEARCHED_MAX} messages fail that have to be looked for one by one, the last one with: "
                f"{cause_of(error)}; mark them with reject(...), or use functions such as try_cast"
            )
        now = time.monotonic()
        if now - self._told_at > TOLD_SECONDS:
            _log.warning("%d messages found so far that fail, the last one with: %s", len(self._found), cause_of(error))
            self._told_at = now

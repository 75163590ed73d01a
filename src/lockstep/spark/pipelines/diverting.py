"""Messages that a stateful step cannot process leave the stream before its state and join its results at the end, so
that one transaction commits both.

After a stateful operator a row is no longer a single message, and messages cannot be told apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from lockstep.errors import StepFailed
from lockstep.spark.pipelines.plans import operators_over_stream

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ERROR = "_error"
"""The column with the reason of a rejected row."""

_diverted: ContextVar[list[DataFrame] | None] = ContextVar("diverted", default=None)


@contextmanager
def diverting() -> Iterator[list[DataFrame]]:
    """Collects what leaves the streams of a step while its function is called: message ids and errors."""
    found: list[DataFrame] = []
    token = _diverted.set(found)
    try:
        yield found
    finally:
        _diverted.reset(token)


def divert(frame: DataFrame, test: Column, reason: Column) -> DataFrame:
    """The stream without the rows for which the condition holds; those go to the dead letters. Raises StepFailed."""
    from pyspark.sql import functions as sf

    found = _diverted.get()
    if found is None:
        raise StepFailed("reject() takes messages from a stream in the function of a stateful step only")
    state = operators_over_stream(frame)
    if state:
        raise StepFailed(f"reject() comes after {state[-1]}, where a row is no longer one message: reject before it")
    if "message_id" not in frame.columns:
        raise StepFailed("reject() needs the column message_id, which its function has dropped before: keep it")
    holds = sf.coalesce(test, sf.lit(False))
    error = sf.coalesce(reason.cast("string"), sf.lit("rejected"))
    found.append(frame.where(holds).select("message_id", error.alias(ERROR)))
    return frame.where(~holds)

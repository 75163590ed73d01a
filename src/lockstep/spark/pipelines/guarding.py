"""Finds all messages on which Python functions of a step raise, in one pass over the batch.

While the step's function is called here, each scalar UDF that it uses gets the message id in addition to its arguments
and is guarded: its errors are recorded with the id, and its value becomes null. A pandas or Arrow UDF gets its batch in
halves until the rows are found. The output of such a pass is discarded: the batch is run again unguarded, without the
messages that were found. Messages on which unguardable functions or Spark's own expressions fail are found by searching
(rejects.py).
"""

from __future__ import annotations

import sysconfig
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.accumulators import Accumulator
    from pyspark.sql import SparkSession

Noted = list[tuple[str, str]]
"""Message ids and errors."""

_ID = "message_id"
_NOT_THEIRS = (str(Path(__file__).parents[2]), sysconfig.get_path("stdlib"))
_INSTALLED = ("site-packages", "dist-packages", "pyspark.zip")


class _Guarding(threading.local):
    """Per thread: where to record the functions' errors. Other steps run at the same time, and theirs are not
    guarded.
    """

    noted: Accumulator[Noted] | None = None


_guarding = _Guarding()


@contextmanager
def guarded(spark: SparkSession) -> Iterator[Accumulator[Noted]]:
    """Within this context, UDFs that this thread calls on columns are guarded."""
    from pyspark.accumulators import AccumulatorParam

    class _Lists(AccumulatorParam[Noted]):
        def zero(self, value: Noted) -> Noted:  # noqa: ARG002
            return []

        def addInPlace(self, value1: Noted, value2: Noted) -> Noted:  # noqa: N802
            value1.extend(value2)
            return value1

    _prepare()
    _guarding.noted = spark.sparkContext.accumulator([], _Lists())
    try:
        yield _guarding.noted
    finally:
        _guarding.noted = None


@cache
def _prepare() -> None:
    """Make UDFs check whether they are to be guarded."""
    from pyspark.sql.udf import UserDefinedFunction

    call: Callable[..., Any] = UserDefinedFunction.__call__

    def call_guarded(function: Any, *arguments: Any, **named: Any) -> Any:
        guard = None if _guarding.noted is None else _guard_of(function.evalType)
        if guard is None:
            return call(function, *arguments, **named)
        again = UserDefinedFunction(
            guard(function.func, _guarding.noted),
            function.returnType,
            name=function._name,
            evalType=function.evalType,
            deterministic=function.deterministic,
        )
        return call(again, _ID, *arguments, **named)

    UserDefinedFunction.__call__ = call_guarded  # type: ignore[assignment,method-assign]


def _guard_of(kind: int) -> Callable[..., Any] | None:
    from pyspark.util import PythonEvalType

    guards: dict[int, Callable[..., Any]] = {
        PythonEvalType.SQL_BATCHED_UDF: ByRow,
        PythonEvalType.SQL_ARROW_BATCHED_UDF: ByRow,
        PythonEvalType.SQL_SCALAR_PANDAS_UDF: ByPandas,
        PythonEvalType.SQL_SCALAR_ARROW_UDF: ByArrow,
    }
    return guards.get(kind)


@dataclass
class ByRow:
    """A function of the values of one row."""

    function: Callable[..., Any]
    noted: Accumulator[Noted]

    def __call__(self, message_id: str, *arguments: Any, **named: Any) -> Any:
        try:
            return self.function(*arguments, **named)
        except Exception as error:
            self.noted.add([(message_id, described(error))])
            return None


@dataclass
class ByPandas:
    """A function of pandas series."""

    function: Callable[..., Any]
    noted: Accumulator[Noted]

    def __call__(self, message_ids: Any, *arguments: Any, **named: Any) -> Any:
        import pandas as pd  # type: ignore[import-untyped]

        def call(first: int, end: int) -> Any:
            given = [argument.iloc[first:end] for argument in arguments]
            return self.function(*given, **{name: value.iloc[first:end] for name, value in named.items()})

        parts, bad = in_halves(call, 0, len(message_ids))
        self.noted.add([(message_ids.iloc[row], error) for row, error in bad])
        if not parts:
            return pd.Series([None] * len(message_ids))
        made = pd.concat([part.set_axis(range(first, first + len(part))) for first, part in parts])
        return made.reindex(range(len(message_ids)))


@dataclass
class ByArrow:
    """A function of Arrow arrays."""

    function: Callable[..., Any]
    noted: Accumulator[Noted]

    def __call__(self, message_ids: Any, *arguments: Any, **named: Any) -> Any:
        import pyarrow as pa

        def call(first: int, end: int) -> Any:
            given = [argument.slice(first, end - first) for argument in arguments]
            return self.function(*given, **{name: value.slice(first, end - first) for name, value in named.items()})

        parts, bad = in_halves(call, 0, len(message_ids))
        self.noted.add([(message_ids[row].as_py(), error) for row, error in bad])
        if not parts:
            return pa.nulls(len(message_ids))
        kind = parts[0][1].type
        pieces = dict(parts) | {row: pa.nulls(1, kind) for row, _ in bad}
        return pa.concat_arrays([pieces[first] for first in sorted(pieces)])


def in_halves(
    call: Callable[[int, int], Any], first: int, end: int, *, said: Callable[[Exception], str] | None = None
) -> tuple[list[tuple[int, Any]], list[tuple[int, str]]]:
    """The result of a call on rows, as parts with the index of their first row; and the rows on which it raises alone,
    with the errors."""
    try:
        return [(first, call(first, end))], []
    except Exception as error:
        if end - first <= 1:
            return [], [(first, (said or described)(error))]
    half = (first + end) // 2
    parts, bad = in_halves(call, first, half, said=said)
    more, worse = in_halves(call, half, end, said=said)
    return [*parts, *more], [*bad, *worse]


def described(error: BaseException) -> str:
    """The error, and its place in the user's own file."""
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return text + place_of(error.__traceback__)


def place_of(found: TracebackType | None) -> str:
    """The last line of a traceback that belongs neither to Spark nor to us, as ` (orders.py:17)`."""
    # Of thousands of messages the source of no line is read.
    frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(found)]
    theirs = [(file, line) for file, line in frames if is_theirs(file)]
    return f" ({Path(theirs[-1][0]).name}:{theirs[-1][1]})" if theirs else ""


@cache
def is_theirs(file: str) -> bool:
    """Whether a file belongs to the author of the step."""
    path = Path(file)
    return not (
        file.startswith("<")
        or any(path.is_relative_to(folder) for folder in _NOT_THEIRS)
        or set(_INSTALLED).intersection(path.parts)
    )


def first_of_each(noted: Noted) -> Sequence[tuple[str, str]]:
    """The first error of each message."""
    first: dict[str, str] = {}
    for message_id, error in noted:
        first.setdefault(message_id, error)
    return list(first.items())

"""Steps of a pipeline as functions of rows: tests without a server and without a database.

result = run_step(validate, [{"payload": {"id": 1, "total": 5}}], pipeline=orders)
assert result.payloads == [{"id": 1, "total": 5, "valid": True}]
"""

from __future__ import annotations

import atexit
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from lockstep.core.ids import message_id, segment_uuid7
from lockstep.core.names import DEFAULT_PARTITION
from lockstep.errors import InvalidOption, InvalidRequest, StepFailed
from lockstep.spark.read.schema import COLUMNS, DATA, ddl, struct_ddl
from lockstep.spark.session import spark_session
from lockstep.spark.write.sink_schema import COLUMNS as WRITTEN
from lockstep.spark.write.sink_schema import GIVEN_ANEW, check_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from lockstep.spark.pipelines.pipeline import Pipeline, Step

Row = Mapping[str, Any]
Rows = Sequence[Row]

_ERROR = "_error"
_CREATED_AT = datetime(2026, 1, 1, tzinfo=UTC)
_FIRST_NS = 1_767_225_600_000_000_000
_made = ExitStack()
_sessions: list[SparkSession] = []


@dataclass(frozen=True)
class StepResult:
    """The result of a step for the rows."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    """The messages to push, by column, in the order of their partitions; JSON payloads as values."""
    rejected: list[tuple[Any, str]] = field(default_factory=list)
    """The payloads that would become dead letters, with the reasons."""

    @property
    def payloads(self) -> list[Any]:
        return [row["payload"] for row in self.rows]


def run_step(
    step: Step | Callable[..., Any],
    rows: Rows | Mapping[str, Rows],
    *,
    pipeline: Pipeline | None = None,
    payload_schema: str | None = None,
    spark: SparkSession | None = None,
    **inputs: Rows | DataFrame,
) -> StepResult:
    """Call a step with rows, as one batch, and check what it returns as a run would.

    A row has the columns of a message that matter; a payload may be any JSON value. `step` is a function or a step;
    with `pipeline`, a function stands for its step, with schema, sinks and options. If a step has several parameters,
    `rows` are given by parameter, and `inputs` are the side inputs. Uses the running Spark session, or a local one that
    lasts as long as the process. Raises StepFailed, InvalidRequest, and the step's own errors.
    """
    made = _made_of(step, pipeline)
    spark = spark or _spark()
    schema = payload_schema if payload_schema is not None else getattr(made, "payload_schema", None)
    sources = rows if isinstance(rows, Mapping) else {"": rows}
    frames, misfits = {}, []
    for name, given in sources.items():
        one = schema.get(name) if isinstance(schema, Mapping) else schema
        frames[name], rejected = _frame(spark, given, one, made)
        misfits += rejected
    looked_up = {name: _looked_up(spark, value) for name, value in inputs.items()}
    function = step if made is None else made.function
    assert callable(function)
    result = function(frames[""], **looked_up) if "" in frames else function(**frames, **looked_up)
    return _result(result, made, misfits)


def _made_of(step: Any, pipeline: Pipeline | None) -> Step | None:
    if pipeline is None:
        return step if hasattr(step, "function") else None
    found = [one for one in pipeline.steps if one.function is step or one is step]
    if len(found) != 1:
        raise InvalidOption(f"{pipeline!r} has {len(found)} steps of this function: pass the step itself")
    return found[0]


def _spark() -> SparkSession:
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    if not _sessions:
        conf = {"spark.sql.shuffle.partitions": "2"}
        _sessions.append(_made.enter_context(spark_session("lockstep testing", master="local[2]", conf=conf)))
        atexit.register(_made.close)
    return _sessions[0]


def _looked_up(spark: SparkSession, value: Rows | DataFrame) -> DataFrame:
    return spark.createDataFrame([dict(row) for row in value]) if isinstance(value, Sequence) else value


def _frame(
    spark: SparkSession, rows: Rows, payload_schema: str | None, step: Step | None
) -> tuple[DataFrame, list[tuple[Any, str]]]:
    """The rows in the form of a read, and those whose payload does not fit the schema."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import DataType, StructType

    data = None if payload_schema is None else struct_ddl(payload_schema)
    schema = DataType.fromDDL(f"struct<{ddl(data=data)}>")
    assert isinstance(schema, StructType)
    kinds = to_arrow_schema(schema, timezone="UTC")
    messages = _messages(rows, _source(step))
    columns = {name: pa.array([one[name] for one in messages], kinds.field(name).type) for name in COLUMNS}
    misfits: list[tuple[Any, str]] = []
    if data is not None:
        columns[DATA] = _parsed(columns, kinds.field(DATA).type)
        misfits = _misfits(columns, f"the payload does not fit the payload_schema {payload_schema}")
    table = pa.table(columns, schema=kinds)
    if data is not None:
        table = table.filter(table.column(DATA).is_valid())
    return spark.createDataFrame(table, schema), misfits


def _source(step: Step | None) -> str:
    return step.sources[0].replace("*", "any") if step is not None else "test"


def _messages(rows: Rows, source: str) -> list[dict[str, Any]]:
    """The columns of a message; missing ones get the values that a queue would give them."""
    seqs: dict[tuple[str, str], int] = {}
    messages = []
    for number, row in enumerate(rows):
        unknown = sorted(row.keys() - COLUMNS.keys())
        if unknown:
            raise InvalidRequest(f"row {number + 1} has {', '.join(unknown)}; a message has {', '.join(COLUMNS)}")
        queue, partition = row.get("queue", source), row.get("partition", DEFAULT_PARTITION)
        seqs[queue, partition] = row.get("seq", seqs.get((queue, partition), 0) + 1)
        own_id = message_id(segment_uuid7(_FIRST_NS + number * 1_000_000), 0)
        given = {"queue": queue, "partition": partition, "seq": seqs[queue, partition], "message_id": own_id}
        given |= {"transaction_id": own_id, "created_at": _CREATED_AT, **row}
        given["payload"] = _text(given.get("payload"), given.get("encoding"))
        if isinstance(given.get("headers"), Mapping):
            given["headers"] = msgspec.json.encode(given["headers"]).decode()
        messages.append({name: given.get(name) for name in COLUMNS})
    return messages


def _text(payload: Any, encoding: str | None) -> str:
    """A payload in the form of a read."""
    if isinstance(payload, bytes):
        return payload.decode() if encoding is None else b64encode(payload).decode()
    if isinstance(payload, str) and encoding is not None:
        return payload
    return msgspec.json.encode(payload).decode()


class _GivenRows:
    """The interface that the payload parser needs of rows."""

    def __init__(self, columns: Mapping[str, pa.Array]) -> None:
        self._columns = columns

    def column(self, name: str) -> pa.Array:
        import pyarrow as pa

        return self._columns[name].cast(pa.binary()) if name == "payload" else self._columns[name]


def _parsed(columns: Mapping[str, pa.Array], kind: pa.DataType) -> pa.Array:
    from lockstep.spark.read.payloads import parse_payloads

    return parse_payloads(_GivenRows(columns), kind, mode="permissive")  # type: ignore[arg-type]


def _misfits(columns: Mapping[str, pa.Array], why: str) -> list[tuple[Any, str]]:
    payloads = columns["payload"].to_pylist()
    return [
        (_value(payloads[place], None), why) for place, fits in enumerate(columns[DATA].is_valid()) if not fits.as_py()
    ]


def _result(result: Any, step: Step | None, misfits: list[tuple[Any, str]]) -> StepResult:
    from pyspark.sql import DataFrame

    if result is None and step is not None and not step.sinks:
        return StepResult([], misfits)
    if not isinstance(result, DataFrame):
        raise InvalidRequest(f"the step returned {type(result).__name__}, and not a DataFrame")
    if step is not None and step.sinks:
        _check(result, step)
    keys = [name for name in ("partition", "seq") if name in result.columns]
    ordered = result.orderBy(*keys) if keys else result
    rows = [_said(row.asDict(recursive=True), step) for row in ordered.collect()]
    marked = [(row.get("payload"), row[_ERROR]) for row in rows if row.get(_ERROR) is not None]
    good = [{k: v for k, v in row.items() if k not in (_ERROR, DATA)} for row in rows if row.get(_ERROR) is None]
    return StepResult(good, [*misfits, *marked])


def _check(result: DataFrame, step: Step) -> None:
    """Raises StepFailed for a dropped or unknown column, InvalidRequest for a wrong type."""
    stateful = getattr(step, "stateful", False)
    wanted = [] if stateful else [*(["trace_id"] if step.traces else []), *(["seq"] if step.order else [])]
    missing = [name for name in ("partition", *wanted) if name not in result.columns]
    if missing:
        raise StepFailed(f"its function dropped the column {', '.join(missing)}: keep it")
    known = (*WRITTEN, *GIVEN_ANEW, _ERROR, DATA)
    unknown = [name for name in result.columns if name not in known]
    if unknown:
        raise StepFailed(f"its function adds the column {', '.join(unknown)}, which a message does not have")
    fields = [(one.name, one.dataType.simpleString()) for one in result.schema.fields if one.name not in (_ERROR, DATA)]
    check_schema(fields, queue=None if step.routed else step.sinks[0], ignore_unknown=True)


def _said(row: dict[str, Any], step: Step | None) -> dict[str, Any]:
    if "payload" in row:
        row["payload"] = _value(row["payload"], row.get("encoding"))
    if step is not None and step.sinks and not step.routed:
        row["queue"] = step.sinks[0]
    return row


def _value(payload: Any, encoding: str | None) -> Any:
    """A JSON payload as a value; any other payload unchanged."""
    if encoding is not None or payload is None:
        return payload
    try:
        return msgspec.json.decode(payload)
    except msgspec.DecodeError:
        return payload

"""The row of a message, in Spark and in Arrow."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from lockstep.errors import InvalidOption

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

PayloadType = Literal["string", "binary"]
HeadersType = Literal["string", "map"]
VARIANT = "variant"

COLUMNS = {
    "queue": "string",
    "partition": "string",
    "seq": "bigint",
    "message_id": "string",
    "transaction_id": "string",
    "trace_id": "string",
    "created_at": "timestamp",
    "payload": "string",
    "kind": "string",
    "reference": "string",
    "encoding": "string",
    "headers": "string",
    "producer_sub": "string",
}
"""The columns of a message and their types in SQL, in order."""

ON_REQUEST = {"expires_at": "timestamp", "attempt": "int"}
"""Columns that only the option `columns` adds to the row."""

_HEADERS = {"string": "string", "map": "map<string,string>"}

DATA = "data"
"""The column of the parsed payload."""

_STRUCT = re.compile(r"\s*struct\s*<(.*)>\s*", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class ColumnTypes:
    """Options for columns that can have several types."""

    payload: PayloadType = "string"
    headers: HeadersType = "string"

    def of(self, name: str) -> str:
        if name == "payload":
            return self.payload
        return _HEADERS[self.headers] if name == "headers" else {**COLUMNS, **ON_REQUEST}[name]


def ddl(
    columns: Sequence[str] | None = None,
    *,
    types: ColumnTypes | None = None,
    data: str | None = None,
) -> str:
    """The schema of a read. Spark parses it, including the payload's own schema, the type `data`."""
    types = types or ColumnTypes()
    names = [name for name in columns or COLUMNS if name != DATA or data is not None]
    if data is not None and DATA not in names:
        names.append(DATA)
    # The comment shows up in errors of Spark's parser.
    fields = [(n, types.of(n) if n != DATA else f"/* the option payloadSchema: */ {data}") for n in names]
    return ", ".join(f"`{name}` {kind}" for name, kind in fields)


def struct_ddl(payload_schema: str) -> str:
    """A schema of JSON payloads: as DDL, with or without `struct<>` around it, as Spark's JSON of it, or `variant`."""
    if payload_schema.strip().lower() == VARIANT:
        return VARIANT
    if payload_schema.lstrip().startswith("{"):
        return _struct_of_json(payload_schema)
    found = _STRUCT.fullmatch(payload_schema)
    return f"struct<{found[1] if found else payload_schema}>"


def _struct_of_json(payload_schema: str) -> str:
    from pyspark.sql.types import StructType

    try:
        return StructType.fromJson(json.loads(payload_schema)).simpleString()
    except KeyError as error:
        raise InvalidOption(
            f"the option payloadSchema is neither DDL nor the JSON of a schema: it has no {error}"
        ) from error
    except (ValueError, TypeError) as error:
        raise InvalidOption(f"the option payloadSchema is neither DDL nor the JSON of a schema: {error}") from error


def checked_schema(schema: StructType, types: ColumnTypes, *, is_json: bool = True) -> pa.Schema:
    """The exact schema of a read's batches. Raises InvalidOption if the user's schema replaces the source's own and
    does not fit."""
    from pyspark.sql.pandas.types import to_arrow_schema

    _check_columns(schema, types)
    found = to_arrow_schema(schema, timezone="UTC")
    if DATA in found.names and is_json:
        from lockstep.spark.read.payloads import check_type

        check_type(found.field(DATA).type)
    return found


def _check_columns(schema: StructType, types: ColumnTypes) -> None:
    for field in schema.fields:
        if field.name == DATA:
            continue
        if field.name not in COLUMNS and field.name not in ON_REQUEST:
            known = ", ".join([*COLUMNS, *ON_REQUEST])
            raise InvalidOption(f"the schema has a column {field.name!r}; a message has {known}")
        expected, found = types.of(field.name), field.dataType.simpleString()
        if found != expected:
            raise InvalidOption(f"the schema has the column {field.name!r} as {found}; it is {expected}")

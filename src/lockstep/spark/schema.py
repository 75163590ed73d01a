"""The row of a message, as Spark and as Arrow see it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from lockstep.errors import InvalidOption

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

PayloadType = Literal["string", "binary"]

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

DATA = "data"
"""The column of the parsed payload."""

_STRUCT = re.compile(r"\s*struct\s*<(.*)>\s*", re.IGNORECASE | re.DOTALL)


def ddl(
    columns: Sequence[str] | None = None, *, payload_type: PayloadType = "string", payload_schema: str | None = None
) -> str:
    """The schema of a read. Spark parses it, and with it the payload's own schema."""
    names = [name for name in columns or COLUMNS if name != DATA or payload_schema is not None]
    if payload_schema is not None and DATA not in names:
        names.append(DATA)
    fields = [(name, _type(name, payload_type) if name != DATA else _data(payload_schema)) for name in names]
    return ", ".join(f"`{name}` {kind}" for name, kind in fields)


def _data(payload_schema: str | None) -> str:
    # The remark is what an error of Spark's parser shows.
    return f"/* the option payloadSchema: */ {_struct(payload_schema or '')}"


def _type(name: str, payload_type: PayloadType) -> str:
    return payload_type if name == "payload" else COLUMNS[name]


def _struct(payload_schema: str) -> str:
    """A schema as DDL, with or without `struct<>` around it, or as the JSON that Spark writes of one."""
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


def check_schema(schema: StructType, *, payload_type: PayloadType) -> None:
    """Refuse a schema that was given in place of the source's own and does not fit it. Raises InvalidOption."""
    for field in schema.fields:
        if field.name == DATA:
            continue
        if field.name not in COLUMNS:
            raise InvalidOption(f"the schema has a column {field.name!r}; a message has {', '.join(COLUMNS)}")
        expected, found = _type(field.name, payload_type), field.dataType.simpleString()
        if found != expected:
            raise InvalidOption(f"the schema has the column {field.name!r} as {found}; it is {expected}")


def arrow_schema(schema: StructType) -> pa.Schema:
    """What the batches of a read must be, exactly."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")

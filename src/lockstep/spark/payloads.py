"""JSON payloads, parsed into the column `data` by a schema: the one place of a read that looks at single messages.

A decoder is made for the schema, which checks while it decodes. Arrow's own JSON parser is faster, but it ends the
process on a payload `null`, and does not say which row it refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date, datetime
from decimal import Decimal
from functools import lru_cache
from typing import Annotated, Any, Literal, Required, TypedDict

import msgspec
import pyarrow as pa
from msgspec import Meta

from lockstep.errors import InvalidOption, InvalidPayload
from lockstep.spark.columns import Rows
from lockstep.spark.schema import DATA

PayloadMode = Literal["failfast", "permissive"]

_INTEGERS = {pa.int8(): 8, pa.int16(): 16, pa.int32(): 32, pa.int64(): 64}
_SCALARS: Sequence[tuple[Callable[[pa.DataType], bool], Any]] = (
    (pa.types.is_boolean, bool),
    (pa.types.is_floating, float),
    (pa.types.is_string, str),
    (pa.types.is_binary, bytes),
    (pa.types.is_date, date),
    (pa.types.is_timestamp, datetime),
    (pa.types.is_decimal, Decimal),
)


def parse_payloads(rows: Rows, kind: pa.StructType, *, mode: PayloadMode) -> pa.Array:
    """A struct for each message. A payload that does not fit is an error that names its message, or null."""
    decode = _decoder(kind)
    parsed: list[Any] = []
    for place, payload in enumerate(rows.column("payload").to_pylist()):
        try:
            parsed.append(decode(payload))
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            _refuse(rows, place, error, mode)
            parsed.append(None)
    try:
        return pa.array(parsed, kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        # What no decoder can know, such as a number with too many digits.
        return _one_by_one(rows, parsed, kind, mode)


def _one_by_one(rows: Rows, parsed: list[Any], kind: pa.StructType, mode: PayloadMode) -> pa.Array:
    for place, value in enumerate(parsed):
        try:
            pa.array([value], kind)
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            _refuse(rows, place, error, mode)
            parsed[place] = None
    return pa.array(parsed, kind)


def _refuse(rows: Rows, place: int, error: Exception, mode: PayloadMode) -> None:
    if mode == "permissive":
        return
    queue, partition, seq = (rows.column(name)[place].as_py() for name in ("queue", "partition", "seq"))
    raise InvalidPayload(
        f"the payload of queue {queue!r}, partition {partition!r}, seq {seq} does not fit payloadSchema: {error}; "
        "with the option payloadMode=permissive its data is null"
    )


def check_type(kind: pa.StructType) -> None:
    """Refuse a schema that JSON is not parsed into. Raises InvalidOption, which names the field."""
    _decoder(kind)


@lru_cache(maxsize=16)
def _decoder(kind: pa.StructType) -> Callable[[bytes], Any]:
    return msgspec.json.Decoder(_type(kind, DATA) | None).decode


def _type(kind: pa.DataType, path: str) -> Any:
    """The type that msgspec decodes for an Arrow type."""
    if kind in _INTEGERS:
        bound = 2 ** (_INTEGERS[kind] - 1)
        return Annotated[int, Meta(ge=-bound, le=bound - 1)]
    for is_this, made in _SCALARS:
        if is_this(kind):
            return made
    if pa.types.is_list(kind):
        return list[_field_type(kind.value_field, path)]  # type: ignore[misc]
    if pa.types.is_map(kind) and pa.types.is_string(kind.key_type):
        return dict[str, _field_type(kind.item_field, path)]  # type: ignore[misc]
    if pa.types.is_struct(kind) and not _is_variant(kind):
        fields = {field.name: _required(field, f"{path}.{field.name}") for field in kind}
        return TypedDict(path, fields, total=False)  # type: ignore[operator]
    raise InvalidOption(f"the option payloadSchema has {path} of a type that JSON is not parsed into: {kind}")


def _is_variant(kind: pa.StructType) -> bool:
    # Spark's variant is a struct to Arrow, and is known by this alone.
    return any(b"variant" in (field.metadata or {}) for field in kind)


def _field_type(field: pa.Field, path: str) -> Any:
    made = _type(field.type, path)
    return made | None if field.nullable else made


def _required(field: pa.Field, path: str) -> Any:
    return _field_type(field, path) if field.nullable else Required[_field_type(field, path)]

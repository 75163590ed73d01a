"""Payloads parsed into the column `data` by a schema: the only part of a read that processes single messages.

For JSON, a decoder built from the schema validates while it decodes. Arrow's own JSON parser is faster, but it ends the
process on a payload `null`, and does not report the row that it refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from functools import lru_cache
from typing import Annotated, Any, Literal, Required, TypedDict

import msgspec
import pyarrow as pa
from msgspec import Meta

from lockstep.errors import InvalidOption, InvalidPayload
from lockstep.spark.payloads.formats import Misfit, PayloadSpec
from lockstep.spark.read.columns import Rows
from lockstep.spark.read.schema import DATA
from lockstep.spark.read.variants import is_variant, variant_finish

PayloadMode = Literal["failfast", "permissive"]

_HEADERS = pa.map_(pa.string(), pa.string())
_decode_headers = msgspec.json.Decoder(dict[str, str]).decode
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


@dataclass(frozen=True, slots=True)
class Payloads:
    """How to parse the payloads of a read."""

    spec: PayloadSpec = field(default_factory=PayloadSpec)
    mode: PayloadMode = "failfast"

    def parse(self, rows: Rows, kind: pa.StructType) -> pa.Array:
        """Parse each message to a struct. A payload that does not fit becomes null or raises an error that names its
        message.
        """
        decode = _decoder(kind) if self.spec.format == "json" else _spec_decoder(self.spec)
        return parse_payloads(rows, kind, mode=self.mode, decode=decode)


def parse_payloads(
    rows: Rows, kind: pa.StructType, *, mode: PayloadMode, decode: Callable[[bytes], Any] | None = None
) -> pa.Array:
    decode = decode or _decoder(kind)
    parsed: list[Any] = []
    for place, payload in enumerate(rows.column("payload").to_pylist()):
        try:
            parsed.append(decode(payload))
        except (msgspec.MsgspecError, UnicodeDecodeError, Misfit) as error:
            _refuse(rows, place, error, mode)
            parsed.append(None)
    try:
        return pa.array(parsed, kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        # Errors that no decoder can detect, such as a number with too many digits.
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
    """Refuse a schema that JSON cannot be parsed into. Raises InvalidOption, which names the field."""
    _decoder(kind)


@lru_cache(maxsize=16)
def _spec_decoder(spec: PayloadSpec) -> Callable[[bytes], Any]:
    return spec.decoder()


@lru_cache(maxsize=16)
def _decoder(kind: pa.StructType) -> Callable[[bytes], Any]:
    decode = msgspec.json.Decoder(_or_null(_type(kind, DATA))).decode
    finish = variant_finish(kind)
    if finish is None:
        return decode
    return lambda payload: finish(decode(payload))


def header_maps(headers: pa.Array) -> pa.Array:
    """Headers as maps. Most messages have none, and many have the same."""
    made = {text: list(_decode_headers(text).items()) for text in headers.unique().drop_null().to_pylist()}
    return pa.array([None if text is None else made[text] for text in headers.to_pylist()], _HEADERS)


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
    if is_variant(kind):
        return msgspec.Raw
    if pa.types.is_struct(kind):
        fields = {field.name: _required(field, f"{path}.{field.name}") for field in kind}
        return TypedDict(path, fields, total=False)  # type: ignore[operator]
    raise InvalidOption(f"the option payloadSchema has {path} of a type that JSON is not parsed into: {kind}")


def _field_type(field: pa.Field, path: str) -> Any:
    made = _type(field.type, path)
    return _or_null(made) if field.nullable else made


def _or_null(made: Any) -> Any:
    # Raw values may be null: a variant of null, as Spark's parse_json creates it.
    return made if made is msgspec.Raw else made | None


def _required(field: pa.Field, path: str) -> Any:
    return _field_type(field, path) if field.nullable else Required[_field_type(field, path)]

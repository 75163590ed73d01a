"""Avro payloads, through fastavro: records without a file header, plain or framed for a schema registry."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

from fastavro import parse_schema, schemaless_reader, schemaless_writer
from fastavro.read import SchemaResolutionError
from fastavro.schema import SchemaParseException, UnknownType

from lockstep.errors import InvalidOption
from lockstep.spark.payloads.formats import Decode, Encode, Misfit, framed, misfits, struct_of, unframed

_PRIMITIVES = {
    "boolean": "boolean",
    "int": "int",
    "long": "bigint",
    "float": "float",
    "double": "double",
    "string": "string",
    "bytes": "binary",
    "fixed": "binary",
    "enum": "string",
}
_LOGICAL = {
    "date": "date",
    "timestamp-millis": "timestamp",
    "timestamp-micros": "timestamp",
    "local-timestamp-millis": "timestamp_ntz",
    "local-timestamp-micros": "timestamp_ntz",
}
_NUMBERS = ({"int", "long"}, {"float", "double"})
_WRONG = (ValueError, TypeError, EOFError, KeyError, IndexError, AttributeError, OverflowError, ArithmeticError)
"""fastavro's errors for bytes or values that do not match their schema."""


@dataclass(frozen=True)
class AvroCodec:
    """A schema of records."""

    schema: Any

    @classmethod
    def of(cls, text: str) -> AvroCodec:
        """Raises InvalidOption."""
        codec = cls(_parsed(text))
        codec.ddl()
        return codec

    def ddl(self) -> str:
        kind = _types(self.schema)
        if not kind.startswith("struct<"):
            raise InvalidOption("the Avro schema of payloads must be a record")
        return kind

    def decoder(self, schemas: Callable[[int], Any] | None) -> Decode:
        reader = self.schema

        def decode(payload: bytes) -> Any:
            schema_id, begin = (None, 0) if schemas is None else unframed(payload)
            writer = reader if schema_id is None else _written_by(cast("Callable[[int], Any]", schemas), schema_id)
            stream = io.BytesIO(payload)
            stream.seek(begin)
            with misfits(*_WRONG, SchemaResolutionError):
                found = schemaless_reader(stream, writer, reader, False)
            if stream.tell() != len(payload):
                raise Misfit(f"{len(payload) - stream.tell()} bytes follow what its schema says")
            return found

        return decode

    def encoder(self, schema_id: int | None) -> Encode:
        def encode(value: Any) -> bytes:
            stream = io.BytesIO()
            with misfits(*_WRONG):
                schemaless_writer(stream, self.schema, value)
            return framed(schema_id, stream.getvalue())

        return encode


def _written_by(schemas: Callable[[int], Any], schema_id: int) -> Any:
    return _parsed(schemas(schema_id))


@cache
def _parsed(text: str) -> Any:
    try:
        return _parsed_after(_without_foreign(json.loads(text)))
    except (ValueError, SchemaParseException, UnknownType, TypeError, KeyError, IndexError) as error:
        raise InvalidOption(f"the Avro schema is not valid: {type(error).__name__}: {error}") from error


def _parsed_after(given: Any) -> Any:
    """A schema, or the last one of a list, in which the others are those that it refers to."""
    named: dict[str, Any] = {}
    parts = given if isinstance(given, list) else [given]
    return [parse_schema(part, named_schemas=named) for part in parts][-1]


def _without_foreign(schema: Any) -> Any:
    """The schema without logical types that Spark lacks: their values keep the underlying type."""
    if isinstance(schema, list):
        return [_without_foreign(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    logical = schema.get("logicalType")
    kept = {k: v for k, v in schema.items() if k != "logicalType" or logical in _LOGICAL or logical == "decimal"}
    for name in ("type", "items", "values"):
        if name in kept:
            kept[name] = _without_foreign(kept[name])
    if "fields" in kept:
        kept["fields"] = [_without_foreign(field) for field in kept["fields"]]
    return kept


def _types(schema: Any) -> str:
    named = dict(schema.get("__named_schemas", {})) if isinstance(schema, dict) else {}
    return _type(schema, named, ())


def _learn(schema: Any, named: dict[str, Any]) -> None:
    if isinstance(schema, dict) and schema.get("type") in ("record", "enum", "fixed"):
        named[schema["name"]] = schema


def _type(schema: Any, named: dict[str, Any], within: tuple[str, ...]) -> str:
    if isinstance(schema, list):
        return _union(schema, named, within)
    if isinstance(schema, str):
        return _PRIMITIVES[schema] if schema in _PRIMITIVES else _named(schema, named, within)
    kind = schema["type"]
    if isinstance(kind, dict | list):
        return _type(kind, named, within)
    _learn(schema, named)
    if kind in ("record", "error"):
        inside = (*within, schema["name"])
        return struct_of([(field["name"], _type(field["type"], named, inside)) for field in schema["fields"]])
    if kind == "array":
        return f"array<{_type(schema['items'], named, within)}>"
    if kind == "map":
        return f"map<string, {_type(schema['values'], named, within)}>"
    if schema.get("logicalType") == "decimal":
        return f"decimal({schema['precision']}, {schema.get('scale', 0)})"
    return _LOGICAL.get(schema.get("logicalType", ""), "") or _type(kind, named, within)


def _named(name: str, named: dict[str, Any], within: tuple[str, ...]) -> str:
    if name in within:
        raise InvalidOption(f"the Avro schema has the type {name} within itself, which Spark has no type for")
    if name not in named:
        raise InvalidOption(f"the Avro schema names the type {name}, which it does not define")
    return _type(named[name], named, within)


def _union(kinds: list[Any], named: dict[str, Any], within: tuple[str, ...]) -> str:
    some = [kind for kind in kinds if kind != "null"]
    if len(some) == 1:
        return _type(some[0], named, within)
    for numbers in _NUMBERS:
        if all(isinstance(kind, str) for kind in some) and set(some) == numbers:
            return "bigint" if "long" in numbers else "double"
    raise InvalidOption(f"the Avro schema has a union of several types, which Spark has no type for: {some}")

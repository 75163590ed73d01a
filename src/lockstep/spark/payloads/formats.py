"""The payloads of a read or a write: their format, and the source of their schema."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any, Literal, Protocol

from lockstep.errors import InvalidOption, SparkUnavailable
from lockstep.spark.payloads.registry import Registry, RegistryAddress

PayloadFormat = Literal["json", "avro", "protobuf"]
FORMATS = ("json", "avro", "protobuf")

_PACKAGES = {"avro": ("fastavro", "fastavro"), "protobuf": ("google.protobuf", "protobuf")}
_FRAME = struct.Struct(">bI")
_MAGIC = 0
"""The first byte of a payload framed for a registry; the id of its schema follows in four bytes."""


class Misfit(ValueError):
    """A payload does not match its schema."""


Decode = Callable[[bytes], Any]
Encode = Callable[[Any], bytes]


class PayloadCodec(Protocol):
    """A schema of one format."""

    def ddl(self) -> str:
        """The type of the column `data`."""
        ...

    def decoder(self, schemas: Callable[[int], Any] | None) -> Decode:
        """A function that decodes payloads; framed ones by the schema that they name. Raises Misfit."""
        ...

    def encoder(self, schema_id: int | None) -> Encode:
        """A function that encodes a value of the type `ddl`; framed if there is an id. Raises Misfit."""
        ...


@dataclass(frozen=True, slots=True)
class PayloadSpec:
    """The payload options. Travels to the executors."""

    format: PayloadFormat = "json"
    schema: str | None = None
    """For JSON: DDL or Spark's JSON; for Avro: the JSON of the schema; for Protobuf: a descriptor set in base64."""
    message: str | None = None
    """For Protobuf: the full name of the message."""
    registry: RegistryAddress | None = None
    subject: str | None = None
    schema_id: int | None = None
    """The id of the subject's latest schema."""

    def check(self) -> None:
        """Raises InvalidOption for options that exclude each other, and SparkUnavailable if a package is missing."""
        if self.format == "json":
            if self.registry is not None or self.subject is not None or self.message is not None:
                raise InvalidOption(
                    "schemaRegistry, schemaSubject and payloadMessage are for payloadFormat avro and protobuf"
                )
            return
        module, package = _PACKAGES[self.format]
        if not _is_installed(module):
            raise SparkUnavailable(f"{package} is not installed: pip install 'lockstep[{self.format}]'")
        if (self.schema is None) == (self.registry is None):
            raise InvalidOption(f"payloadFormat {self.format} needs payloadSchema, or schemaRegistry; and not both")
        if self.registry is not None and self.subject is None:
            raise InvalidOption("the option schemaSubject is missing: which subject of the registry has the schema?")
        if self.message is not None and self.format != "protobuf":
            raise InvalidOption("the option payloadMessage is for payloadFormat protobuf")

    @property
    def has_data(self) -> bool:
        """Whether there is a column `data`."""
        return self.schema is not None or self.registry is not None

    def resolved(self) -> PayloadSpec:
        """The same spec with the registry's current schema, so that all tasks use one schema."""
        if self.registry is None or self.schema is not None:
            return self
        assert self.subject is not None, "checked"
        found = Registry(self.registry).latest(self.subject)
        if found.kind.lower() != self.format:
            raise InvalidOption(
                f"the subject {self.subject!r} has schemas in {found.kind.lower()}, not in {self.format}"
            )
        return replace(self, schema=found.text, schema_id=found.id)

    def codec(self) -> PayloadCodec:
        """The codec of a resolved spec other than JSON. Raises InvalidOption for an unusable schema."""
        assert self.schema is not None, "resolved"
        if self.format == "avro":
            from lockstep.spark.payloads.avro import AvroCodec

            return AvroCodec.of(self.schema)
        from lockstep.spark.payloads.protobuf import ProtobufCodec

        return ProtobufCodec.of(self.schema, self.message)

    def decoder(self) -> Decode:
        """Decodes payloads on an executor."""
        if self.registry is None:
            return self.codec().decoder(None)
        registry = Registry(self.registry)
        return self.codec().decoder(lambda id_: registry.schema(id_).text)

    def encoder(self) -> Encode:
        return self.codec().encoder(self.schema_id)


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def framed(schema_id: int | None, body: bytes) -> bytes:
    return body if schema_id is None else _FRAME.pack(_MAGIC, schema_id) + body


def unframed(payload: bytes) -> tuple[int, int]:
    """The id of the schema of a payload, and where the payload begins. Raises Misfit."""
    if len(payload) < _FRAME.size or payload[0] != _MAGIC:
        raise Misfit("it is not framed for a schema registry: a zero byte and the id of its schema come first")
    return int(_FRAME.unpack_from(payload)[1]), _FRAME.size


@contextmanager
def misfits(*errors: type[Exception]) -> Iterator[None]:
    """Convert a library's error about a payload that does not match its schema."""
    try:
        yield
    except Misfit:
        raise
    except errors as error:
        raise Misfit(f"{type(error).__name__}: {error}") from error


def struct_of(fields: Sequence[tuple[str, str]]) -> str:
    """The DDL of a struct."""
    return "struct<" + ", ".join(f"`{name.replace('`', '``')}`: {kind}" for name, kind in fields) + ">"

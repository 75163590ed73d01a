"""Protobuf payloads: messages of a descriptor set, plain or framed for a schema registry."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from functools import cache
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, EncodeError, Message

from lockstep.errors import InvalidOption
from lockstep.spark.payloads.formats import Decode, Encode, Misfit, framed, misfits, struct_of, unframed

_F = FieldDescriptor
_TYPES = {
    _F.TYPE_BOOL: "boolean",
    _F.TYPE_INT32: "int",
    _F.TYPE_SINT32: "int",
    _F.TYPE_SFIXED32: "int",
    _F.TYPE_UINT32: "bigint",
    _F.TYPE_FIXED32: "bigint",
    _F.TYPE_INT64: "bigint",
    _F.TYPE_SINT64: "bigint",
    _F.TYPE_SFIXED64: "bigint",
    _F.TYPE_UINT64: "decimal(20, 0)",
    _F.TYPE_FIXED64: "decimal(20, 0)",
    _F.TYPE_FLOAT: "float",
    _F.TYPE_DOUBLE: "double",
    _F.TYPE_STRING: "string",
    _F.TYPE_BYTES: "binary",
    _F.TYPE_ENUM: "string",
}
_TIMESTAMP = "google.protobuf.Timestamp"
_STANDARD = "google/protobuf/"


@dataclass(frozen=True)
class ProtobufCodec:
    """One message of a descriptor set."""

    text: str
    name: str | None
    descriptor: Descriptor

    @classmethod
    def of(cls, text: str, name: str | None) -> ProtobufCodec:
        """Raises InvalidOption."""
        codec = cls(text, name, _message(text, name))
        codec.ddl()
        return codec

    def ddl(self) -> str:
        return _struct(self.descriptor, ())

    def decoder(self, schemas: Callable[[int], Any] | None) -> Decode:
        def decode(payload: bytes) -> Any:
            descriptor, body = self.descriptor, payload
            if schemas is not None:
                schema_id, begin = unframed(payload)
                path, begin = _indexes(payload, begin)
                descriptor, body = _at(schemas(schema_id), path), payload[begin:]
            message = message_factory.GetMessageClass(descriptor)()
            with misfits(DecodeError, ValueError):
                message.ParseFromString(body)
                return _values(message)

        return decode

    def encoder(self, schema_id: int | None) -> Encode:
        made = message_factory.GetMessageClass(self.descriptor)
        path = b"" if schema_id is None else _written(_path(self.text, self.descriptor))

        def encode(value: Any) -> bytes:
            with misfits(json_format.ParseError, EncodeError, ValueError, TypeError):
                message = made()
                _fill(message, value)
                return framed(schema_id, path + message.SerializeToString(deterministic=True))

        return encode


def descriptor_set(files: Sequence[tuple[str, str]]) -> str:
    """File descriptors in base64, by the names under which others import them, as one set."""
    found = descriptor_pb2.FileDescriptorSet()
    for name, encoded in files:
        try:
            file = descriptor_pb2.FileDescriptorProto.FromString(b64decode(encoded, validate=True))
        except (ValueError, DecodeError) as error:
            raise InvalidOption(
                "the schema registry does not give Protobuf schemas in serialized form: give payloadSchema instead"
            ) from error
        file.name = name or file.name or "payload.proto"
        found.file.append(file)
    return b64encode(found.SerializeToString()).decode()


@cache
def _files(text: str) -> tuple[descriptor_pool.DescriptorPool, tuple[str, ...]]:
    """A pool with the files of a set, and their names in order."""
    try:
        given = descriptor_pb2.FileDescriptorSet.FromString(b64decode(text, validate=True))
    except (ValueError, DecodeError) as error:
        raise InvalidOption(
            "payloadSchema is no descriptor set in base64, as `protoc --include_imports -o` makes it"
        ) from error
    pool = descriptor_pool.DescriptorPool()
    names = {file.name for file in given.file}
    for file in given.file:
        for imported in file.dependency:
            if imported not in names and imported.startswith(_STANDARD):
                _add_standard(pool, imported)
    try:
        for file in given.file:
            pool.Add(file)
        return pool, tuple(pool.FindFileByName(file.name).name for file in given.file)
    except (TypeError, KeyError, ValueError) as error:
        raise InvalidOption(f"the Protobuf descriptors lack something that they import: {error}") from error


def _add_standard(pool: descriptor_pool.DescriptorPool, name: str) -> None:
    """Standard files of protobuf, such as google/protobuf/timestamp.proto."""
    from importlib import import_module

    module = import_module(f"{name.removesuffix('.proto').replace('/', '.')}_pb2")
    pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)


def _message(text: str, name: str | None) -> Descriptor:
    pool, files = _files(text)
    if name is not None:
        try:
            return pool.FindMessageTypeByName(name)
        except KeyError:
            raise InvalidOption(f"the Protobuf descriptors have no message {name!r}") from None
    messages = list(pool.FindFileByName(files[-1]).message_types_by_name.values()) if files else []
    if not messages:
        raise InvalidOption("the Protobuf descriptors have no message")
    # By convention of registries, the first message is the default.
    return messages[0]


def _at(text: str, path: Sequence[int]) -> Descriptor:
    """A message by its position in the last file: the index of each message within the enclosing one."""
    pool, files = _files(text)
    try:
        found = list(pool.FindFileByName(files[-1]).message_types_by_name.values())[path[0]]
        for index in path[1:]:
            found = found.nested_types[index]
        return found
    except IndexError:
        raise Misfit(f"its schema has no message at {list(path)}") from None


def _path(text: str, descriptor: Descriptor) -> list[int]:
    path: list[int] = []
    while descriptor.containing_type is not None:
        path.insert(0, list(descriptor.containing_type.nested_types).index(descriptor))
        descriptor = descriptor.containing_type
    pool, files = _files(text)
    top = list(pool.FindFileByName(files[-1]).message_types_by_name.values())
    if descriptor not in top:
        raise InvalidOption(f"the message {descriptor.full_name} is not in the file that the registry has")
    return [top.index(descriptor), *path]


def _written(path: Sequence[int]) -> bytes:
    if list(path) == [0]:
        return b"\0"
    return b"".join(_varint(number << 1) for number in (len(path), *path))


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*encoded, number])


def _indexes(payload: bytes, begin: int) -> tuple[list[int], int]:
    """The index of the message of a framed payload in its file, and the offset where it starts."""
    count, begin = _zigzag(payload, begin)
    if count == 0:
        return [0], begin
    path = []
    for _ in range(count):
        index, begin = _zigzag(payload, begin)
        path.append(index)
    return path, begin


def _zigzag(payload: bytes, begin: int) -> tuple[int, int]:
    number = shift = 0
    for place in range(begin, min(begin + 5, len(payload))):
        number |= (payload[place] & 0x7F) << shift
        shift += 7
        if payload[place] < 0x80:
            if number & 1:
                break
            return number >> 1, place + 1
    raise Misfit("it does not say which message of its schema it is")


def _struct(descriptor: Descriptor, within: tuple[str, ...]) -> str:
    if descriptor.full_name in within:
        raise InvalidOption(f"the message {descriptor.full_name} is within itself, which Spark has no type for")
    inside = (*within, descriptor.full_name)
    return struct_of([(field.name, _type(field, inside)) for field in descriptor.fields])


def _type(field: FieldDescriptor, within: tuple[str, ...]) -> str:
    if _is_map(field):
        key, value = field.message_type.fields
        return f"map<{_type(key, within)}, {_type(value, within)}>"
    kind = _single(field, within)
    return f"array<{kind}>" if field.is_repeated else kind


def _single(field: FieldDescriptor, within: tuple[str, ...]) -> str:
    if field.message_type is None:
        return _TYPES[field.type]
    return "timestamp" if field.message_type.full_name == _TIMESTAMP else _struct(field.message_type, within)


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def _values(message: Message) -> dict[str, Any]:
    """The fields of a message: null if an optional field is unset, otherwise at least its default."""
    return {field.name: _value(message, field) for field in message.DESCRIPTOR.fields}


def _value(message: Message, field: FieldDescriptor) -> Any:
    if _is_map(field):
        _, kind = field.message_type.fields
        return [(key, _plain(value, kind)) for key, value in getattr(message, field.name).items()]
    if field.is_repeated:
        return [_plain(value, field) for value in getattr(message, field.name)]
    if field.has_presence and not message.HasField(field.name):
        return None
    return _plain(getattr(message, field.name), field)


def _plain(value: Any, field: FieldDescriptor) -> Any:
    if field.message_type is not None:
        if field.message_type.full_name == _TIMESTAMP:
            return value.seconds * 1_000_000 + value.nanos // 1000
        return _values(value)
    if field.enum_type is not None:
        found = field.enum_type.values_by_number.get(value)
        return str(value) if found is None else found.name
    return Decimal(value) if field.type in (_F.TYPE_UINT64, _F.TYPE_FIXED64) else value


def _fill(message: Message, value: dict[str, Any]) -> None:
    for field in message.DESCRIPTOR.fields:
        given = value.get(field.name)
        if given is not None:
            _set(message, field, given)


def _set(message: Message, field: FieldDescriptor, given: Any) -> None:
    if _is_map(field):
        _, kind = field.message_type.fields
        entries = getattr(message, field.name)
        for key, one in given.items() if isinstance(given, dict) else given:
            if kind.message_type is not None:
                _fill_one(entries[key], kind, one)
            else:
                entries[key] = _stored(one, kind)
    elif field.is_repeated:
        for one in given:
            if field.message_type is not None:
                _fill_one(getattr(message, field.name).add(), field, one)
            else:
                getattr(message, field.name).append(_stored(one, field))
    elif field.message_type is not None:
        part = getattr(message, field.name)
        part.SetInParent()
        _fill_one(part, field, given)
    else:
        setattr(message, field.name, _stored(given, field))


def _fill_one(message: Any, field: FieldDescriptor, given: Any) -> None:
    if field.message_type.full_name == _TIMESTAMP:
        assert isinstance(given, datetime)
        message.FromDatetime(given)
    else:
        _fill(message, given)


def _stored(value: Any, field: FieldDescriptor) -> Any:
    if field.enum_type is not None:
        found = field.enum_type.values_by_name.get(value)
        if found is None:
            raise Misfit(f"{value!r} is no value of {field.enum_type.full_name}")
        return found.number
    return int(value) if isinstance(value, Decimal) else value

"""Avro, Protobuf and a schema registry: payloads of other formats become typed rows, and rows become payloads."""

from __future__ import annotations

import io
import json
from base64 import b64encode
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from fastavro import parse_schema, schemaless_writer
from google.protobuf import descriptor_pb2, timestamp_pb2

from lockstep.errors import InvalidOption, Unavailable
from lockstep.spark.options import ReadOptions
from lockstep.spark.payloads import registry as registries
from lockstep.spark.payloads.formats import Misfit, PayloadSpec, framed
from lockstep.spark.payloads.protobuf import descriptor_set
from lockstep.spark.payloads.registry import RegistryAddress
from support.schema_registry import FakeRegistry, schema_registry

AVRO = {
    "type": "record",
    "name": "shop.Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "total", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}},
        {"name": "note", "type": ["null", "string"], "default": None},
        {
            "name": "lines",
            "type": {
                "type": "array",
                "items": {
                    "type": "record",
                    "name": "Line",
                    "fields": [{"name": "sku", "type": {"type": "string", "logicalType": "uuid"}}],
                },
            },
        },
        {"name": "tags", "type": {"type": "map", "values": "int"}},
        {"name": "last", "type": ["null", "Line"], "default": None},
    ],
}
ORDER = {
    "id": 7,
    "total": Decimal("12.50"),
    "at": datetime(2026, 5, 1, 12, 0, 0, 5, tzinfo=UTC),
    "day": date(2026, 5, 1),
    "state": "PAID",
    "note": None,
    "lines": [{"sku": "a"}],
    "tags": {"x": 1},
    "last": {"sku": "b"},
}
ORDER_DDL = (
    "struct<`id`: bigint, `total`: decimal(10, 2), `at`: timestamp, `day`: date, `state`: string, `note`: string, "
    "`lines`: array<struct<`sku`: string>>, `tags`: map<string, int>, `last`: struct<`sku`: string>>"
)


def avro(value: Any, schema: Any = AVRO) -> bytes:
    stream = io.BytesIO()
    schemaless_writer(stream, parse_schema(json.loads(json.dumps(schema))), value)
    return stream.getvalue()


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    registries._schema.cache_clear()
    with schema_registry() as served:
        yield served


def spec_of(registry: FakeRegistry, kind: Any = "avro", subject: str = "orders-value", **more: Any) -> PayloadSpec:
    return PayloadSpec(kind, registry=RegistryAddress(registry.url, **more), subject=subject)


def test_avro_becomes_typed_rows_and_back() -> None:
    spec = PayloadSpec("avro", json.dumps(AVRO))
    assert spec.codec().ddl() == ORDER_DDL
    assert spec.decoder()(avro(ORDER)) == ORDER
    assert spec.encoder()(ORDER) == avro(ORDER)


@pytest.mark.parametrize("payload", [b"", b"\xff\xff", avro(ORDER)[:-3], avro(ORDER) + b"more", b"{}"])
def test_avro_that_does_not_fit_is_a_misfit(payload: bytes) -> None:
    with pytest.raises(Misfit):
        PayloadSpec("avro", json.dumps(AVRO)).decoder()(payload)


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ("nothing", "is not valid"),
        ('"string"', "must be a record"),
        ('{"type":"record","name":"R","fields":[{"name":"r","type":["null","R"]}]}', "R within itself"),
        ('{"type":"record","name":"R","fields":[{"name":"r","type":["int","string"]}]}', "union of several types"),
        ('{"type":"record","name":"R","fields":[{"name":"r","type":"Other"}]}', "is not valid"),
    ],
)
def test_avro_schema_that_cannot_be_used_is_refused(schema: str, says: str) -> None:
    with pytest.raises(InvalidOption, match=says):
        PayloadSpec("avro", schema).codec()


def test_avro_unions_of_numbers_are_the_larger() -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "n", "type": ["int", "long", "null"]}]}
    assert PayloadSpec("avro", json.dumps(schema)).codec().ddl() == "struct<`n`: bigint>"


def test_registry_says_by_which_schema_each_payload_was_written(registry: FakeRegistry) -> None:
    fields = [{"name": "id", "type": "int"}]
    old = {"type": "record", "name": "Order", "fields": fields}
    new = {**old, "fields": [*fields, {"name": "note", "type": "string", "default": "none"}]}
    first = registry.register("orders-value", json.dumps(old))
    second = registry.register("orders-value", json.dumps(new))
    spec = spec_of(registry).resolved()
    assert spec.codec().ddl() == "struct<`id`: int, `note`: string>"
    decode = spec.decoder()
    assert decode(framed(first, avro({"id": 1}, old))) == {"id": 1, "note": "none"}
    assert decode(framed(second, avro({"id": 2, "note": "x"}, new))) == {"id": 2, "note": "x"}
    asked = len(registry.asked)
    decode(framed(first, avro({"id": 3}, old)))
    assert len(registry.asked) == asked
    assert spec.encoder()({"id": 2, "note": "x"}) == framed(second, avro({"id": 2, "note": "x"}, new))
    with pytest.raises(Misfit, match="not framed"):
        decode(avro({"id": 1}, old))
    with pytest.raises(InvalidOption, match="does not know /schemas/ids/999"):
        decode(framed(999, b""))


def test_registry_gives_avro_schemas_with_what_they_refer_to(registry: FakeRegistry) -> None:
    line = {"type": "record", "name": "shop.Line", "fields": [{"name": "sku", "type": "string"}]}
    registry.register("line", json.dumps(line))
    order = {"type": "record", "name": "shop.Order", "fields": [{"name": "line", "type": "shop.Line"}]}
    references = [{"name": "shop.Line", "subject": "line", "version": 1}]
    id_ = registry.register("orders-value", json.dumps(order), references=references)
    spec = spec_of(registry).resolved()
    assert spec.codec().ddl() == "struct<`line`: struct<`sku`: string>>"
    assert spec.decoder()(framed(id_, b"\x02a")) == {"line": {"sku": "a"}}


def test_registry_that_is_busy_is_asked_again_and_one_that_is_away_is_unavailable(registry: FakeRegistry) -> None:
    registry.register("orders-value", json.dumps(AVRO))
    registry.failures = 1
    assert spec_of(registry).resolved().schema_id == 100
    registry.failures = 100
    with pytest.raises(Unavailable, match="status 503"):
        spec_of(registry).resolved()
    with pytest.raises(Unavailable, match="does not answer"):
        PayloadSpec("avro", registry=RegistryAddress("http://127.0.0.1:1"), subject="s").resolved()
    registry.failures = 0
    with pytest.raises(InvalidOption, match="does not know /subjects/other"):
        spec_of(registry, subject="other").resolved()
    with pytest.raises(InvalidOption, match="has schemas in avro, not in protobuf"):
        spec_of(registry, "protobuf").resolved()


def test_registry_takes_a_password_from_a_variable(registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    registry.register("orders-value", json.dumps(AVRO))
    registry.password = "me:secret"
    with pytest.raises(InvalidOption, match="refuses"):
        spec_of(registry).resolved()
    with pytest.raises(InvalidOption, match="REGISTRY_AUTH, which is not set here"):
        spec_of(registry, auth_env="REGISTRY_AUTH").resolved()
    monkeypatch.setenv("REGISTRY_AUTH", "me:secret")
    assert spec_of(registry, auth_env="REGISTRY_AUTH").resolved().schema_id == 100


def protobuf_file() -> descriptor_pb2.FileDescriptorProto:
    """`message Order { … }` of shop.proto, as protoc describes it."""
    kind = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="shop.proto", package="shop", syntax="proto3", dependency=["google/protobuf/timestamp.proto"]
    )
    file.enum_type.add(name="State").value.extend(
        [
            descriptor_pb2.EnumValueDescriptorProto(name="NEW", number=0),
            descriptor_pb2.EnumValueDescriptorProto(name="PAID", number=1),
        ]
    )
    file.message_type.add(name="Other")
    order = file.message_type.add(name="Order")
    line = order.nested_type.add(name="Line")
    line.field.add(name="sku", number=1, type=kind.TYPE_STRING, label=kind.LABEL_OPTIONAL)
    entry = order.nested_type.add(name="TagsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=kind.TYPE_STRING, label=kind.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=kind.TYPE_INT32, label=kind.LABEL_OPTIONAL)
    for number, (name, type_, label, more) in enumerate(
        [
            ("id", kind.TYPE_INT64, kind.LABEL_OPTIONAL, {}),
            ("huge", kind.TYPE_UINT64, kind.LABEL_OPTIONAL, {}),
            ("state", kind.TYPE_ENUM, kind.LABEL_OPTIONAL, {"type_name": ".shop.State"}),
            ("at", kind.TYPE_MESSAGE, kind.LABEL_OPTIONAL, {"type_name": ".google.protobuf.Timestamp"}),
            ("lines", kind.TYPE_MESSAGE, kind.LABEL_REPEATED, {"type_name": ".shop.Order.Line"}),
            ("tags", kind.TYPE_MESSAGE, kind.LABEL_REPEATED, {"type_name": ".shop.Order.TagsEntry"}),
            ("last", kind.TYPE_MESSAGE, kind.LABEL_OPTIONAL, {"type_name": ".shop.Order.Line"}),
        ],
        start=1,
    ):
        order.field.add(name=name, number=number, type=type_, label=label, **more)
    return file


def encoded_file(file: descriptor_pb2.FileDescriptorProto) -> str:
    return b64encode(file.SerializeToString()).decode()


PROTO_ROW = {
    "id": 7,
    "huge": Decimal(2**64 - 1),
    "state": "PAID",
    "at": datetime(2026, 5, 1, 12, 0, 0, 5, tzinfo=UTC),
    "lines": [{"sku": "a"}, {"sku": "b"}],
    "tags": {"x": 1},
    "last": None,
}
PROTO_DDL = (
    "struct<`id`: bigint, `huge`: decimal(20, 0), `state`: string, `at`: timestamp, "
    "`lines`: array<struct<`sku`: string>>, `tags`: map<string, int>, `last`: struct<`sku`: string>>"
)


def test_protobuf_becomes_typed_rows_and_back() -> None:
    spec = PayloadSpec("protobuf", descriptor_set([("", encoded_file(protobuf_file()))]), "shop.Order")
    assert spec.codec().ddl() == PROTO_DDL
    payload = spec.encoder()(PROTO_ROW)
    found = spec.decoder()(payload)
    micros = int(PROTO_ROW["at"].timestamp()) * 1_000_000 + 5  # type: ignore[attr-defined]
    assert found == {**PROTO_ROW, "at": micros, "tags": [("x", 1)]}
    # Arrow makes of it what Spark expects.
    kind = pa.struct([("at", pa.timestamp("us", "UTC")), ("tags", pa.map_(pa.string(), pa.int32()))])
    assert pa.array([found], kind).to_pylist() == [{"at": PROTO_ROW["at"], "tags": [("x", 1)]}]
    with pytest.raises(Misfit):
        spec.decoder()(b"\xff")
    with pytest.raises(Misfit, match=r"no value of shop\.State"):
        spec.encoder()({"state": "LOST"})


def test_protobuf_of_a_registry_is_framed_with_its_place(registry: FakeRegistry) -> None:
    id_ = registry.register(
        "orders-value", 'syntax = "proto3"; …', kind="PROTOBUF", serialized=encoded_file(protobuf_file())
    )
    spec = PayloadSpec(
        "protobuf", registry=RegistryAddress(registry.url), subject="orders-value", message="shop.Order"
    ).resolved()
    payload = spec.encoder()(PROTO_ROW)
    # One index, and it is 1: Order is the second message of the file.
    assert payload.startswith(framed(id_, b"\x02\x02"))
    assert spec.decoder()(payload)["lines"] == [{"sku": "a"}, {"sku": "b"}]
    first = PayloadSpec("protobuf", registry=RegistryAddress(registry.url), subject="orders-value").resolved()
    assert first.encoder()({}) == framed(id_, b"\x00")
    for wrong in (framed(id_, b""), framed(id_, b"\x02\x63"), framed(id_, b"\x02\x0e")):
        with pytest.raises(Misfit):
            spec.decoder()(wrong)


def test_protobuf_schema_that_cannot_be_used_is_refused() -> None:
    with pytest.raises(InvalidOption, match="no descriptor set in base64"):
        PayloadSpec("protobuf", "nothing!").codec()
    schema = descriptor_set([("", encoded_file(protobuf_file()))])
    with pytest.raises(InvalidOption, match=r"no message 'shop\.Nothing'"):
        PayloadSpec("protobuf", schema, "shop.Nothing").codec()
    recursive = descriptor_pb2.FileDescriptorProto(name="r.proto", syntax="proto3")
    kind = descriptor_pb2.FieldDescriptorProto
    node = recursive.message_type.add(name="Node")
    node.field.add(name="next", number=1, type=kind.TYPE_MESSAGE, label=kind.LABEL_OPTIONAL, type_name=".Node")
    with pytest.raises(InvalidOption, match="Node is within itself"):
        PayloadSpec("protobuf", descriptor_set([("", encoded_file(recursive))])).codec()
    importing = descriptor_pb2.FileDescriptorProto(name="i.proto", dependency=["other.proto"])
    with pytest.raises(InvalidOption, match="lack something that they import"):
        PayloadSpec("protobuf", descriptor_set([("", encoded_file(importing))])).codec()
    assert timestamp_pb2.DESCRIPTOR.name == "google/protobuf/timestamp.proto"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"payloadFormat": "xml"}, "none of json, avro, protobuf"),
        ({"payloadFormat": "avro"}, "needs payloadSchema, or schemaRegistry"),
        ({"payloadFormat": "avro", "schemaRegistry": "http://h:1"}, "schemaSubject is missing"),
        ({"payloadFormat": "avro", "schemaRegistry": "ftp://h"}, "not an address"),
        ({"payloadFormat": "avro", "schemaRegistry": "http://a:secret@h"}, "name a variable"),
        ({"schemaRegistry": "http://h:1", "schemaSubject": "s"}, "are for payloadFormat avro and protobuf"),
        ({"payloadFormat": "avro", "payloadSchema": "{}", "payloadMessage": "m"}, "is for payloadFormat protobuf"),
        ({"schemaRegistryAuthEnv": "X"}, "needs the option schemaRegistry"),
    ],
)
def test_options_that_do_not_go_together_are_refused(given: dict[str, str], says: str) -> None:
    with pytest.raises(InvalidOption, match=says) as refused:
        ReadOptions.of({"queue": "q", **given})
    assert "secret" not in str(refused.value)

"""Payloads parsed by a schema, and payloads that do not fit it."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, MapType, StringType, StructType, VariantType
from pyspark.sql.variant_utils import VariantUtils

from lockstep.core.codec import Codec
from lockstep.errors import InvalidOption, InvalidPayload
from lockstep.spark.read.columns import Rows, StoredSegment
from lockstep.spark.read.payloads import PayloadMode, check_type, header_maps, parse_payloads


def rows(*payloads: bytes) -> Rows:
    count = len(payloads)
    segment = StoredSegment(
        id=1,
        queue="orders",
        uuid=bytes(16),
        created_us=0,
        codec=int(Codec.PLAIN),
        message_count=count,
        body=None,
        plain=[list(payloads), *[None] * 7],
        partition_ids=[7],
        first_seqs=[100],
        counts=[count],
        ordinals=[0],
    )
    return Rows([segment], {7: "lane"})


def parse(kind: pa.DataType, *payloads: bytes, mode: PayloadMode = "failfast") -> list[Any]:
    parsed = parse_payloads(rows(*payloads), pa.struct([("v", kind)]), mode=mode)
    parsed.validate(full=True)
    return [None if value is None else value["v"] for value in parsed.to_pylist()]


@pytest.mark.parametrize(
    ("kind", "payload", "value"),
    [
        (pa.bool_(), b'{"v":true}', True),
        (pa.int8(), b'{"v":-128}', -128),
        (pa.int64(), b'{"v":9223372036854775807}', 2**63 - 1),
        (pa.float64(), b'{"v":1}', 1.0),
        (pa.string(), '{"v":"ü"}'.encode(), "ü"),
        (pa.binary(), b'{"v":"YWJj"}', b"abc"),
        (pa.date32(), b'{"v":"2026-01-02"}', date(2026, 1, 2)),
        (pa.timestamp("us", "UTC"), b'{"v":"2026-01-02T03:04:05+01:00"}', datetime(2026, 1, 2, 2, 4, 5, tzinfo=UTC)),
        (pa.decimal128(10, 2), b'{"v":12.5}', Decimal("12.50")),
        (pa.list_(pa.int32()), b'{"v":[1,null]}', [1, None]),
        (pa.map_(pa.string(), pa.int32()), b'{"v":{"a":1}}', [("a", 1)]),
        (pa.struct([("x", pa.int32())]), b'{"v":{"x":1,"unknown":2}}', {"x": 1}),
        (pa.int32(), b"{}", None),
        (pa.int32(), b'{"v":null}', None),
        (pa.int32(), b" {\n}", None),
    ],
)
def test_types(kind: pa.DataType, payload: bytes, value: Any) -> None:
    assert parse(kind, payload) == [value]


def test_null_is_no_data() -> None:
    assert parse_payloads(rows(b"null"), pa.struct([("v", pa.int32())]), mode="failfast").to_pylist() == [None]


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        (pa.int32(), b'{"v":"1"}'),
        (pa.int32(), b'{"v":1.5}'),
        (pa.int8(), b'{"v":128}'),
        (pa.string(), b'{"v":1}'),
        (pa.date32(), b'{"v":"tomorrow"}'),
        (pa.decimal128(4, 2), b'{"v":12345.678}'),
        (pa.int32(), b"[1]"),
        (pa.int32(), b"not json"),
        (pa.int32(), b"\xff\xfe"),
        (pa.int32(), b""),
        (pa.int32(), b"{}\n{}"),
    ],
)
def test_payload_that_does_not_fit_is_named_or_null(kind: pa.DataType, payload: bytes) -> None:
    with pytest.raises(InvalidPayload, match=r"queue 'orders', partition 'lane', seq 101 does not fit payloadSchema"):
        parse(kind, b"{}", payload, b"{}")
    good = parse_payloads(rows(b"{}", payload, b"{}"), pa.struct([("v", kind)]), mode="permissive").to_pylist()
    assert good == [{"v": None}, None, {"v": None}]


def test_field_that_must_be_there() -> None:
    kind = pa.struct([pa.field("v", pa.int32(), nullable=False)])
    with pytest.raises(InvalidPayload, match="missing required field `v`"):
        parse_payloads(rows(b"{}"), kind, mode="failfast")


def test_type_that_json_has_not_is_an_error_that_names_the_field() -> None:
    with pytest.raises(InvalidOption, match=r"payloadSchema has data\.v of a type"):
        check_type(pa.struct([("v", pa.map_(pa.int64(), pa.int64()))]))


def variants(**fields: Any) -> pa.StructType:
    schema = StructType()
    for name, kind in fields.items():
        schema = schema.add(name, kind)
    return pa.struct(list(to_arrow_schema(schema, timezone="UTC")))


def test_variant_holds_json_of_any_shape() -> None:
    kind = variants(v=VariantType(), many=ArrayType(VariantType()), named=MapType(StringType(), VariantType()))
    check_type(kind)
    payload = b'{"v": {"a": [1, 2.5, null, true, "x"]}, "many": [1, "y"], "named": {"k": {"z": 1}}}'
    [found, empty] = parse_payloads(rows(payload, b"{}"), kind, mode="failfast").to_pylist()
    assert said(found["v"]) == {"a": [1, 2.5, None, True, "x"]}
    assert [said(one) for one in found["many"]] == [1, "y"]
    assert said(dict(found["named"])["k"]) == {"z": 1}
    assert empty == {"v": None, "many": None, "named": None}


def test_payload_as_a_whole_is_a_variant() -> None:
    kind = variants(data=VariantType()).field("data").type
    found = parse_payloads(rows(b"[1]", b'"x"', b"null", b"7"), kind, mode="failfast").to_pylist()
    assert [said(one) for one in found] == [[1], "x", None, 7]
    with pytest.raises(InvalidPayload, match="seq 100"):
        parse_payloads(rows(b"nothing"), kind, mode="failfast")


def said(variant: dict[str, bytes]) -> Any:
    return json.loads(VariantUtils.to_json(variant["value"], variant["metadata"]))


def test_headers_are_maps() -> None:
    headers = pa.array(['{"a":"b","c":"d"}', None, "{}", '{"a":"b","c":"d"}'])
    maps = header_maps(headers)
    assert maps.type == pa.map_(pa.string(), pa.string())
    assert maps.to_pylist() == [[("a", "b"), ("c", "d")], None, [], [("a", "b"), ("c", "d")]]

"""Payload formats through Spark itself: written as Avro and Protobuf, read in types, variants and maps."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from test_payload_formats import encoded_file, protobuf_file

from lockstep.core.messages import Batch, Columns
from lockstep.errors import InvalidPayload
from lockstep.spark.failures import explain
from lockstep.spark.payloads.protobuf import descriptor_set
from lockstep.storage.postgres.store import PostgresStore
from support.builders import batch
from support.schema_registry import schema_registry

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.xdist_group("spark")

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "tags", "type": {"type": "map", "values": "string"}},
        {"name": "note", "type": ["null", "string"], "default": None},
    ],
}
ROWS = """
    select 'p' as partition, named_struct('id', id, 'at', timestamp '2026-05-01 12:00:00', 'tags', map('k', 'v'),
    'note', if(id = 1, 'first', null)) as payload from range(1, 3)
"""


def read(spark: SparkSession, dsn: str, queue: str, **options: str) -> DataFrame:
    return spark.read.format("lockstep").options(dsn=dsn, queue=queue, **options).load()


async def test_avro_of_a_registry_is_written_and_read(spark: SparkSession, database_dsn: str) -> None:
    store = PostgresStore(database_dsn)
    with schema_registry() as registry:
        registry.register("orders-value", json.dumps(ORDER))
        avro = {"payloadFormat": "avro", "schemaRegistry": registry.url, "schemaSubject": "orders-value"}
        spark.sql(ROWS).write.format("lockstep").options(dsn=database_dsn, queue="q", **avro).mode("append").save()
        found = read(spark, database_dsn, "q", **avro)
        assert found.schema["data"].dataType.simpleString() == (
            "struct<id:bigint,at:timestamp,tags:map<string,string>,note:string>"
        )
        rows = found.selectExpr("encoding", "data.id", "string(data.at)", "data.tags['k']", "data.note").collect()
        assert sorted(map(tuple, rows)) == [
            ("avro", 1, "2026-05-01 12:00:00", "v", "first"),
            ("avro", 2, "2026-05-01 12:00:00", "v", None),
        ]
        await store.push([Batch("q", "p", Columns([b"{}"]))])
        unframed = read(spark, database_dsn, "q", **avro).select("data")
        with pytest.raises(Exception, match="not framed") as refused:
            unframed.collect()
        assert isinstance(explain(refused.value), InvalidPayload)
        lenient = read(spark, database_dsn, "q", payloadMode="permissive", **avro)
        assert lenient.where("data is null").count() == 1
    await store.close()


async def test_protobuf_is_written_and_read(spark: SparkSession, database_dsn: str) -> None:
    schema = descriptor_set([("", encoded_file(protobuf_file()))])
    options = {"payloadFormat": "protobuf", "payloadSchema": schema, "payloadMessage": "shop.Order"}
    rows = spark.sql(
        "select named_struct('id', 7, 'state', 'PAID', 'at', timestamp '2026-05-01 12:00:00', "
        "'lines', array(named_struct('sku', 'a')), 'tags', map('x', 1)) as payload"
    )
    rows.write.format("lockstep").options(dsn=database_dsn, queue="q", **options).mode("append").save()
    found = read(spark, database_dsn, "q", **options)
    told = found.selectExpr(
        "data.id", "data.state", "string(data.at)", "data.lines[0].sku", "data.tags['x']", "data.last"
    )
    assert [tuple(row) for row in told.collect()] == [(7, "PAID", "2026-05-01 12:00:00", "a", 1, None)]


async def test_variants_and_header_maps(spark: SparkSession, database_dsn: str) -> None:
    store = PostgresStore(database_dsn)
    await store.push([batch("q", 2, headers=[b'{"a":"b"}', None])])
    found = read(spark, database_dsn, "q", payloadSchema="variant", headersType="map")
    rows = found.selectExpr("variant_get(data, '$.n', 'int') as n", "headers['a'] as a").collect()
    assert sorted((row["n"], row["a"]) for row in rows) == [(1, "b"), (2, None)]
    mixed = read(spark, database_dsn, "q", payloadSchema="n variant")
    assert sorted(row[0] for row in mixed.selectExpr("cast(data.n as int)").collect()) == [1, 2]
    await store.close()

"""The examples of the guides to Spark do what the guides say, run as a user would run them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from docs.blocks import ROOT, blocks_of
from lockstep.core.messages import Batch
from support.schema_registry import schema_registry
from support.spark_reads import Producer
from support.spark_writes import problems, query, stored

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.xdist_group("spark-pipelines")

TESTS = Path(__file__).parents[1]
SCHEMA = json.dumps(
    {
        "type": "record",
        "name": "order",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "total", "type": "double"},
            {"name": "note", "type": ["null", "string"], "default": None},
        ],
    }
)
RUN_SECONDS = 400


def pieces_of(guide: str, places: Mapping[str, str]) -> list[str]:
    """The Python of a guide, at places that are here."""
    found = [block.source for block in blocks_of(ROOT / "docs/guides" / guide)]
    for given, here in places.items():
        assert any(given in piece for piece in found), f"{guide} does not name {given}"
        found = [piece.replace(given, here) for piece in found]
    return found


def run(arguments: Sequence[str], dsn: str, folder: Path, said: str = "") -> subprocess.CompletedProcess[str]:
    ended = subprocess.run(
        [sys.executable, *arguments],
        input=said,
        env={**os.environ, "LOCKSTEP_DSN": dsn, "PYTHONPATH": str(TESTS), "SPARK_LOCAL_IP": "127.0.0.1"},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-4000:]
    return ended


def push(dsn: str, queue: str, *payloads: Any, partition: str = "Default") -> None:
    producer = Producer(dsn)
    producer.pushed(Batch.of(queue, [json.dumps(payload).encode() for payload in payloads], partition=partition))
    producer.close()


def payloads(dsn: str, queue: str) -> dict[str, list[Any]]:
    return {name: [one.json() for one in many] for name, many in stored(dsn, queue).items()}


BEGIN = f"""
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
spark.conf.set("spark.sql.shuffle.partitions", "2")
spark.sparkContext.setLogLevel("ERROR")
schema = '''{SCHEMA}'''
frame = spark.createDataFrame([("ann", 1, 9.5, None)], "customer string, id bigint, total double, note string")
def read_all(stream, name):
    stream.writeStream.format("noop").option("checkpointLocation", name).start()
    until_done()
def until_done():
    for one in spark.streams.active:
        one.processAllAvailable()
        one.stop()
"""
AFTER = {
    "late = (": "assert (orders.count(), late.count()) == (3, 1)",
    "variant_get": "assert [row[0] for row in _.collect()] == ['c1']",
    "queuePattern": "read_all(tenants, 'tenants')",
    "awaitTermination": "assert spark.read.parquet('orders.parquet').count() == 3",
    "placed = ": "until_done()",
    "struct(id, total, note)": "",
    'queue="orders-avro", payloadFormat="avro", payloadSchema=schema).load()': (
        "assert [tuple(row) for row in orders.select('partition', 'data.*').collect()] == [('ann', 1, 9.5, None)]"
    ),
    "schemaRegistry": "read_all(orders, 'registry')",
    "def both": (
        "numbered = spark.readStream.format('lockstep').options(queue='orders').load().select('partition', 'payload')\n"
        "_ = numbered.writeStream.foreachBatch(both).option('checkpointLocation', 'both').start(); until_done()"
    ),
    '"mode", "lease"': "read_all(_, 'lease')",
}
"""What is done with the names that a piece makes, by something that it has."""


def test_guide_to_spark(database_dsn: str, tmp_path: Path) -> None:
    order = {"order_id": "a", "total": 150.0, "items": [{"sku": "s", "qty": 1}], "customer": "ann"}
    push(database_dsn, "orders", order, {**order, "total": 5.0}, {**order, "customer": "bob"} | {"total": 7.0})
    push(database_dsn, "events", {"customer": {"id": "c1"}})
    push(database_dsn, "tenant-a-orders", {"n": 1})
    push(database_dsn, "order-intake", {"n": 1})
    with schema_registry() as registry:
        registry.register("orders-value", SCHEMA)
        pieces = pieces_of("spark.md", {"http://registry:8081": registry.url, "/var/lib/orders": str(tmp_path)})
        # What is read has to be written first.
        pieces.sort(key=lambda piece: ("late = (" not in piece, "struct(id, total" not in piece))
        fill = (
            "written = frame.selectExpr('customer as partition', 'struct(id, total, note) as payload')\n"
            f"given = dict(payloadFormat='avro', schemaRegistry='{registry.url}', schemaSubject='orders-value')\n"
            "written.write.format('lockstep').options(queue='orders-registry', **given).mode('append').save()"
        )
        program = [BEGIN, fill]
        for piece in pieces:
            [then] = [then for sign, then in AFTER.items() if sign in piece]
            program += [piece, then]
        run(["-m", "support.guide_runner"], database_dsn, tmp_path, json.dumps(program))
    assert payloads(database_dsn, "payment") == {
        "ann": [{"customer": "ann", "total": 150.0}, {"customer": "ann", "total": 5.0}],
        "bob": [{"customer": "bob", "total": 7.0}],
    }
    assert [len(payloads(database_dsn, queue)["Default"]) for queue in ("left", "right")] == [3, 3]
    assert query(database_dsn, "select count(*) from lockstep.consumer_group where name = 'billing'") == [(1,)]
    assert problems(database_dsn) == []


def test_guide_to_pipelines(spark: SparkSession, database_dsn: str, tmp_path: Path) -> None:
    countries = str(tmp_path / "countries")
    spark.createDataFrame([("de", 0.2)], "code string, vat double").write.parquet(countries)
    here = {"s3a://reference/countries": countries, "postgresql://user@host/database": database_dsn}
    *defined, run_itself = pieces_of("pipelines.md", here)
    assert "orders.run(once=True" in run_itself
    end = 'if __name__ == "__main__":\n    orders.main()\n'
    assert end in defined[0]
    (tmp_path / "orders.py").write_text("\n\n".join([defined[0].replace(end, ""), *defined[1:]]) + f"\n\n{end}")
    at, later = "2026-05-01T10:00:00Z", "2026-05-03T10:00:00Z"
    order = {"number": 1, "total": 10.0, "at": at, "paid_at": at, "sku": "lamp", "country": "de"}
    push(database_dsn, "order-intake", order, {**order, "number": 2, "total": 0}, partition="eu-1")
    push(database_dsn, "order-intake", {**order, "number": 3, "at": later, "paid_at": later}, partition="us-1")
    push(database_dsn, "clicks", {"id": "a"}, {"id": "b"}, {"id": "a"})
    push(database_dsn, "price", {"sku": "lamp", "price": 1.0}, {"sku": "lamp", "price": 2.5})
    command = ["-m", "lockstep", "pipeline"]
    assert "validate" in run([*command, "plan", "orders.py"], database_dsn, tmp_path).stdout
    run([*command, "run", "orders.py", "--once"], database_dsn, tmp_path)
    assert {name: [one["number"] for one in many] for name, many in payloads(database_dsn, "payment").items()} == {
        "eu-1": [1],
        "us-1": [3],
    }
    assert {queue: list(payloads(database_dsn, queue)) for queue in ("eu", "us")} == {"eu": ["eu-1"], "us": ["us-1"]}
    [hour] = payloads(database_dsn, "revenue")["eu-1"]
    assert (hour["total"], hour["window"]["start"]) == (10.0, "2026-05-01T10:00:00.000Z")
    assert payloads(database_dsn, "clicks-once") == {"Default": [{"id": "a"}, {"id": "b"}]}
    assert sorted(one["number"] for many in payloads(database_dsn, "matched").values() for one in many) == [1, 3]
    assert payloads(database_dsn, "priced")["eu-1"] == [{"sku": "lamp", "price": 3.0}] * 2
    dead = "select error from lockstep.dead_letter"
    assert query(database_dsn, dead) == [("an order must cost something",)]
    # The last piece runs the same pipeline from a program: there is nothing new.
    [once, _] = run_itself.strip().splitlines()
    run(["-c", f"from orders import orders\n{once}"], database_dsn, tmp_path)
    assert len(payloads(database_dsn, "payment")["eu-1"]) == 1
    assert problems(database_dsn) == []


def test_guides_to_jobs(spark: SparkSession, database_dsn: str, tmp_path: Path) -> None:
    push(database_dsn, "orders", {"id": 1, "total": 2.5}, {"id": 2, "total": 4.0})
    job = [*("-m", "lockstep", "job", "archive", "orders", "--dsn", database_dsn)]
    [reading] = pieces_of(
        "jobs/archive.md", {"/srv/orders": str(tmp_path / "delta"), "/srv/catalog.db": f"{tmp_path}/c.db"}
    )
    catalog = ["--catalog", f"sqlite:///{tmp_path}/c.db"]
    typed = ["--payload-schema", "id BIGINT, total DOUBLE"]
    run([*job, "--to", str(tmp_path / "delta"), "--format", "delta", *typed], database_dsn, tmp_path)
    run([*job, "--to", str(tmp_path / "orders"), "--format", "iceberg", *typed, *catalog], database_dsn, tmp_path)
    names: dict[str, Any] = {}
    exec(reading, names)
    assert list(names["frame"]["seq"]) == [1, 2]
    [program] = pieces_of("jobs/README.md", {"/srv/archive": str(tmp_path / "archive"), "QUEUES_DSN": "LOCKSTEP_DSN"})
    assert "orders 2" in run(["-c", program], database_dsn, tmp_path).stdout
    assert spark.read.parquet(str(tmp_path / "archive")).count() == 2

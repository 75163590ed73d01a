"""Reading as Spark does, without Spark: offsets go through JSON, and each batch is planned, read and committed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import psycopg
import pyarrow as pa
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType, TimestampType

from lockstep.core.messages import Batch
from lockstep.spark.options import ReadOptions
from lockstep.spark.read.batch import plan_batch
from lockstep.spark.read.offsets import Offset
from lockstep.spark.read.payloads import Payloads
from lockstep.spark.read.schema import COLUMNS, ON_REQUEST, ColumnTypes, PayloadType, checked_schema
from lockstep.spark.read.segment_reader import ArrowReader
from lockstep.spark.read.stream import SnapshotStream, SnapshotTask
from lockstep.storage.postgres.cache import NameCache
from lockstep.storage.postgres.encryption import Encryption
from lockstep.storage.postgres.push.conversation import push_now
from lockstep.storage.postgres.within import converse

_TYPES = {"string": StringType(), "bigint": LongType(), "int": IntegerType(), "timestamp": TimestampType()}


def row_schema(columns: Iterable[str] = COLUMNS, *, payload_type: PayloadType = "string") -> pa.Schema:
    """The Arrow schema of a read of some columns."""
    types = {**_TYPES, "payload": BinaryType() if payload_type == "binary" else StringType()}
    kinds = {**COLUMNS, **ON_REQUEST}
    fields = [StructField(name, types["payload"] if name == "payload" else types[kinds[name]]) for name in columns]
    return checked_schema(StructType(fields), ColumnTypes(payload=payload_type))


def read_options(dsn: str, **options: Any) -> ReadOptions:
    return ReadOptions.of({"dsn": dsn, **{name: str(value) for name, value in options.items()}})


def read_tasks(
    options: ReadOptions, tasks: Iterable[SnapshotTask], schema: pa.Schema | None = None
) -> list[dict[str, Any]]:
    """The rows of some tasks, in their order."""
    schema = schema or row_schema(payload_type=options.payload_type)
    rows: list[dict[str, Any]] = []
    for task in tasks:
        payloads = Payloads(options.payloads, options.payload_mode)
        reader = ArrowReader(options.access, task.scope, schema, payloads, task.watch, task.witness)
        for batch in reader.read(task.segments):
            batch.validate(full=True)
            assert batch.schema.equals(schema)
            rows += batch.to_pylist()
    return rows


def read_batch(dsn: str, *, schema: pa.Schema | None = None, **options: Any) -> list[dict[str, Any]]:
    """A batch read."""
    parsed = read_options(dsn, **options)
    return read_tasks(parsed, plan_batch(parsed), schema)


class Query:
    """A streaming query: a stream, its checkpoint, and what it has read."""

    def __init__(self, dsn: str, **options: Any) -> None:
        self.options = read_options(dsn, **options)
        self.now = 0.0
        self.pauses = 0
        self.stream = self._stream()
        self.checkpoint: list[dict[str, Any]] = []
        """The ends of all batches; what is there first is what Spark begins with."""
        self.batches: list[list[dict[str, Any]]] = []

    def _stream(self) -> SnapshotStream:
        return SnapshotStream(self.options, clock=lambda: self.now, pause=self._pause)

    def _pause(self, seconds: float) -> None:
        self.pauses += 1
        self.now += seconds

    def start(self) -> dict[str, Any]:
        if self.checkpoint:
            return self.checkpoint[-1]
        return _stored(self.stream.initial())

    def latest(self, *, limited: bool = True) -> dict[str, Any] | None:
        """The end of the next batch; None if there is none."""
        # Spark asks an idle stream more often than the stream asks the database: not so here.
        self.now += 1
        start = Offset.of(self.start())
        end = self.stream.latest(start, limited=limited)
        return None if end is start else _stored(end)

    def step(self, *, limited: bool = True, commit: bool = True) -> list[dict[str, Any]] | None:
        """One batch; None if there is nothing to read."""
        start, end = self.start(), self.latest(limited=limited)
        if end is None:
            return None
        rows = self.replay(start, end)
        self.checkpoint.append(end)
        self.batches.append(rows)
        if commit:
            self.stream.commit(Offset.of(end))
        return rows

    def replay(self, start: dict[str, Any], end: dict[str, Any]) -> list[dict[str, Any]]:
        """The rows between two offsets."""
        return read_tasks(self.options, self.stream.plan(Offset.of(start), Offset.of(end)))

    def drain(self, *, limited: bool = True) -> list[dict[str, Any]]:
        """All batches until nothing is left."""
        rows: list[dict[str, Any]] = []
        while (found := self.step(limited=limited)) is not None:
            rows += found
        return rows

    def restart(self) -> None:
        """The driver's process is another one; the checkpoint is the same."""
        self.stream.close()
        self.stream = self._stream()

    def rows(self) -> Iterator[dict[str, Any]]:
        for batch in self.batches:
            yield from batch

    def close(self) -> None:
        self.stream.close()


def _stored(offset: Offset) -> dict[str, Any]:
    """As Spark's log gives it back."""
    stored: dict[str, Any] = json.loads(json.dumps(offset.as_json()))
    assert Offset.of(stored) == offset
    return stored


class Producer:
    """A session whose transactions a test spells out."""

    def __init__(self, dsn: str, *, encryption: Encryption | None = None) -> None:
        self.connection = psycopg.connect(dsn)
        self._names = NameCache(10_000)
        self._encryption = encryption or Encryption()

    def push(self, *batches: Batch) -> None:
        """Push within the transaction that is open, or opened by this."""
        converse(self.connection, push_now(batches, self._names, encryption=self._encryption, at=None))

    def commit(self) -> None:
        self.connection.commit()

    def rollback(self) -> None:
        self.connection.rollback()
        self._names.clear()

    def pushed(self, *batches: Batch) -> None:
        self.push(*batches)
        self.commit()

    def close(self) -> None:
        self.connection.close()


def numbers_of(rows: Iterable[dict[str, Any]]) -> list[int]:
    """The numbers in the payloads of `builders.batch`."""
    return [json.loads(row["payload"])["n"] for row in rows]


def assert_in_order(rows: Iterable[dict[str, Any]]) -> dict[tuple[str, str], int]:
    """Each partition's messages came one after the other, from the first on, and none twice; how many of each."""
    reached: dict[tuple[str, str], int] = {}
    for row in rows:
        lane = row["queue"], row["partition"]
        assert row["seq"] == reached.get(lane, 0) + 1, f"{lane}: {row['seq']} after {reached.get(lane, 0)}"
        reached[lane] = row["seq"]
    return reached

"""PostgreSQL tables other than messages as DataFrames: read on the driver in pages, and passed on as Arrow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
from psycopg import RawServerCursor

from lockstep.storage.postgres import sql

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PAGE_ROWS = 10_000

TIME = pa.timestamp("us", tz="UTC")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def instant(micros: int) -> datetime:
    """A time collected as microseconds: collected as a timestamp, it would be in the time zone of this process."""
    return _EPOCH + timedelta(microseconds=micros)


def read_table(
    spark: SparkSession, connection: psycopg.Connection[Any], query: str, arguments: Sequence[Any], schema: pa.Schema
) -> DataFrame:
    """The rows of a query from `sql/queries/`; its columns are those of the schema, in order."""
    return spark.createDataFrame(pa.Table.from_batches(_pages(connection, query, arguments, schema), schema))


def _pages(
    connection: psycopg.Connection[Any], query: str, arguments: Sequence[Any], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    # A server-side cursor, so that the driver holds only one page of rows besides their converted form.
    with connection.transaction(), RawServerCursor(connection, "lockstep_job") as cursor:
        cursor.execute(sql.query(query), arguments)
        while rows := cursor.fetchmany(PAGE_ROWS):
            columns = [
                pa.array(values, field.type) for values, field in zip(zip(*rows, strict=True), schema, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)

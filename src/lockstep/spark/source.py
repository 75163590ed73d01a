"""The Spark data source `lockstep`: thin wrappers around the readers and writers, which do not need Spark.

There is no pushFilters: in Spark 4.3 a filter that a Python source took stays in force for later queries on the same
DataFrame. And a source that has the method cannot be read at all while a setting of Spark forbids it, as it does by
default. Options narrow a read instead.

Spark starts a Python process for each request, and for a sink one per batch. Modules that only some of them need are
therefore imported where they are used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)

from lockstep.errors import InvalidOption
from lockstep.spark.failures import told
from lockstep.spark.options import ReadOptions
from lockstep.spark.read.schema import ddl, struct_ddl

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

NAME = "lockstep"


class LockstepSource(DataSource):
    """Messages of queues as rows, and vice versa."""

    @classmethod
    def name(cls) -> str:
        return NAME

    @told
    def schema(self) -> str:
        options = self._read_options()
        columns = ddl(options.columns, types=options.types, data=_data(options))
        # For an invalid list of columns, Spark would show the wrong position.
        return f"struct<{columns}>"

    @told
    def reader(self, schema: StructType) -> DataSourceReader:
        options = self._read_options()
        if options.mode == "lease":
            raise InvalidOption("mode lease is for streams: a batch read has no consumer group to share")
        from lockstep.spark.read.spark_readers import BatchReader

        return BatchReader(options, schema)

    @told
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        options = self._read_options()
        if options.mode == "lease":
            from lockstep.spark.lease.lease_stream import lease_stream_reader

            return lease_stream_reader(self.options, schema)
        from lockstep.spark.read.spark_readers import StreamReader

        return StreamReader(options, schema)

    @told
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from lockstep.spark.write.sink import batch_writer

        return batch_writer(self.options, schema, overwrite)

    @told
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: ARG002, N802
        from lockstep.spark.write.sink import stream_writer

        return stream_writer(self.options, schema)

    def _read_options(self) -> ReadOptions:
        return ReadOptions.of(self.options)


def _data(options: ReadOptions) -> str | None:
    """The type of the parsed payload."""
    spec = options.payloads.resolved()
    if spec.schema is None:
        return None
    return struct_ddl(spec.schema) if spec.format == "json" else spec.codec().ddl()

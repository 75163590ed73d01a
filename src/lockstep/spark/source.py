"""The data source `lockstep` of Spark: thin shells around the readers and writers, which need no Spark.

There is no pushFilters: in Spark 4.3 a filter that a Python source took stays in force for later queries on the same
DataFrame. Options narrow a read instead.

Spark starts a Python for each thing that it asks, for a sink one for every batch: so what only some of them need is
imported where it is used.
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
from lockstep.spark.schema import ddl

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

NAME = "lockstep"


class LockstepSource(DataSource):
    """Messages of queues as rows, and rows as messages."""

    @classmethod
    def name(cls) -> str:
        return NAME

    @told
    def schema(self) -> str:
        options = self._read_options()
        columns = ddl(options.columns, payload_type=options.payload_type, payload_schema=options.payload_schema)
        # Of a list of columns that it cannot parse, Spark shows the wrong place.
        return f"struct<{columns}>"

    @told
    def reader(self, schema: StructType) -> DataSourceReader:
        options = self._read_options()
        if options.mode == "lease":
            raise InvalidOption("mode lease is for streams: a batch read has no consumer group to share")
        from lockstep.spark.readers import BatchReader

        return BatchReader(options, schema)

    @told
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        options = self._read_options()
        if options.mode == "lease":
            from lockstep.spark.leases import lease_stream_reader

            return lease_stream_reader(self.options, schema)
        from lockstep.spark.readers import StreamReader

        return StreamReader(options, schema)

    @told
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from lockstep.spark.sink import batch_writer

        return batch_writer(self.options, schema, overwrite)

    @told
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        from lockstep.spark.sink import stream_writer

        return stream_writer(self.options, schema, overwrite)

    def _read_options(self) -> ReadOptions:
        return ReadOptions.of(self.options)

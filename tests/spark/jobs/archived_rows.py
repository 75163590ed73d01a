"""Archives made of rows, for tests of what reads one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from lockstep.core.ids import message_id, segment_uuid7
from lockstep.spark.database import Access
from lockstep.spark.jobs.archives import ArchiveWriter
from lockstep.spark.jobs.files import ArchiveFolder
from lockstep.spark.jobs.manifest import Manifest
from lockstep.spark.read.schema import ColumnTypes, ddl

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TIME = datetime(2026, 5, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Row:
    """A message of an archive; each in a segment of its own."""

    queue: str
    partition: str
    seq: int
    payload: str = "null"
    trace_id: str | None = None
    created_at: datetime = TIME

    def values(self, number: int) -> tuple[object, ...]:
        own_id = message_id(segment_uuid7(int(self.created_at.timestamp() * 1e9) + number * 1_000_000), 0)
        payload = self.payload.encode()
        place = (self.queue, self.partition, self.seq)
        return (*place, own_id, own_id, self.trace_id, self.created_at, payload, *[None] * 5)


def write_archive(spark: SparkSession, dsn: str, location: Path, rows: Sequence[Row]) -> None:
    """One batch more in the archive."""
    files = ArchiveFolder(spark, str(location))
    values = [row.values(number) for number, row in enumerate(rows)]
    with Access(dsn=dsn).connect() as connection:
        writer = ArchiveWriter(spark, files, Manifest(connection, files.location))
        writer.open()
        writer.write(spark.createDataFrame(values, ddl(types=ColumnTypes(payload="binary"))), f"test {uuid4()}", 0)
        writer.close()

"""An archive as Parquet: how messages are stored in it, how a batch is added exactly once, and how they are read.

A batch is written to a temporary folder, its files are recorded in the manifest and moved to their final place, and
then the batch is committed. A crash in between leaves files that the manifest knows and no reader reads; the next run
removes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import date, datetime
from functools import reduce
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote
from uuid import uuid4

from pyspark.sql import functions as sf

from lockstep.errors import ArchiveNotFound
from lockstep.spark.database import Access
from lockstep.spark.jobs.files import ArchiveFolder, StoredFile
from lockstep.spark.jobs.formats.publishing import Publisher
from lockstep.spark.jobs.formats.settings import ArchiveSettings, open_table, settled
from lockstep.spark.jobs.manifest import Manifest, NewFile
from lockstep.spark.jobs.tables import instant
from lockstep.spark.read import schema

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

BATCH = "archive_batch"
"""The column with the batch of a message. Within a partition, batch and seq give the order, even if the queue was
deleted in the meantime and counts from 1 again."""
MERGE = "merge "
"""Prefix of the names of queries that have merged files."""
STAGING = "_staging"
CHECKPOINTS = "_checkpoints"

DDL = f"{schema.ddl(types=schema.ColumnTypes(payload='binary'))}, `day` string, `{BATCH}` bigint"
"""The columns of an archive; payloads are stored unchanged. An archive with a payload schema has `data` as well."""

_TIMESTAMPS = "spark.sql.parquet.outputTimestampType"


@dataclass(frozen=True, slots=True)
class Written:
    """The result of a batch."""

    messages: int = 0
    files: int = 0
    bytes: int = 0

    def __add__(self, other: Written) -> Written:
        return Written(self.messages + other.messages, self.files + other.files, self.bytes + other.bytes)


@dataclass(frozen=True, slots=True)
class Selection:
    """Selects messages of an archive; a field that is None selects all."""

    queues: tuple[str, ...] | None = None
    partitions: tuple[str, ...] | None = None
    trace_ids: tuple[str, ...] | None = None
    from_at: datetime | None = None
    """Created at or after."""
    to_at: datetime | None = None
    """Created before."""


def as_archived(messages: DataFrame, batch_id: int) -> DataFrame:
    """Messages in the form in which they are written: with their day in UTC, and sorted, so that files are small and
    fast to search.
    """
    in_utc = sf.to_utc_timestamp("created_at", sf.current_timezone())
    return (
        messages.withColumn("payload", sf.col("payload").cast("binary"))
        .withColumn("day", sf.date_format(in_utc, "yyyy-MM-dd"))
        .withColumn(BATCH, sf.lit(batch_id).cast("bigint"))
        .sortWithinPartitions("queue", "day", "partition", "seq")
    )


def selected(messages: DataFrame, where: Selection) -> DataFrame:
    """The messages of a selection."""
    conditions: list[Column] = []
    for name, values in (("queue", where.queues), ("partition", where.partitions), ("trace_id", where.trace_ids)):
        if values is not None:
            conditions.append(sf.col(name).isin(list(values)))
    if where.from_at is not None:
        conditions.append(sf.col("created_at") >= sf.lit(where.from_at))
    if where.to_at is not None:
        conditions.append(sf.col("created_at") < sf.lit(where.to_at))
    return reduce(lambda found, condition: found.where(condition), conditions, messages)


def find_settings(manifest: Manifest) -> ArchiveSettings | None:
    """The settings that an archive keeps; None if it keeps none yet."""
    found = manifest.settings()
    return None if found is None else ArchiveSettings(*found)  # type: ignore[arg-type]


class ArchiveWriter:
    """Writes batches to one archive, to which no other run may write in the meantime."""

    def __init__(
        self, spark: SparkSession, files: ArchiveFolder, manifest: Manifest, access: Access | None = None
    ) -> None:
        self._spark = spark
        self._files = files
        self._manifest = manifest
        self._access = access or Access()
        self._publisher = Publisher(manifest, None)

    def open(self, asked: ArchiveSettings | None = None) -> ArchiveSettings:
        """Become the only writer, remove the leftovers of dead runs, and publish what they did not publish.

        Returns the settings that the archive keeps. Raises Conflict."""
        self._manifest.lock()
        settings = self._settle(asked or ArchiveSettings())
        # Under the lock, so that only leftovers are removed.
        for path in self._manifest.left_over():
            self._files.remove(path)
        self._manifest.discard()
        self._files.remove(STAGING)
        self._publisher.publish()
        return settings

    def _settle(self, asked: ArchiveSettings) -> ArchiveSettings:
        kept = find_settings(self._manifest)
        found = settled(asked, kept, self._files.location)
        table = open_table(found, self._files.location, DDL, self._access)
        self._publisher = Publisher(self._manifest, table)
        if found != kept:
            self._publisher.check_unused()
            self._manifest.keep_settings(**asdict(found))
        return found

    def close(self) -> None:
        self._manifest.unlock()

    def write(self, messages: DataFrame, query: str, batch: int, *, alone: bool = False) -> Written:
        """Add a batch to the archive, unless it was added before; with `alone` it replaces all contents."""
        batch_id, committed = self._manifest.begin(query, batch)
        if committed:
            return Written()
        files = self._written(as_archived(messages, batch_id), batch_id)
        gone = self._manifest.commit(batch_id, alone=alone)
        self._publisher.publish()
        for path in gone:
            self._files.remove(path)
        return files

    def merge(self, messages: DataFrame, paths: Sequence[str]) -> Written:
        """Rewrite messages of the archive in place of the files that hold them, which stay on disk for now."""
        batch_id, _ = self._manifest.begin(f"{MERGE}{uuid4()}", 0)
        files = self._written(messages, batch_id)
        self._manifest.merge(batch_id, paths)
        self._publisher.publish()
        return files

    def expire(self, before: date) -> Written:
        """Remove earlier days from the archive. Their files stay on disk for now."""
        files, messages, size = self._manifest.expire(before)
        self._publisher.publish()
        return Written(messages, files, size)

    def delete_removed(self, *, seconds: float) -> int:
        """Delete files that left the archive at least this long ago; returns their number."""
        paths = self._manifest.removed(seconds=seconds)
        for path in paths:
            self._files.remove(path)
        self._manifest.forget(paths)
        return len(paths)

    def _written(self, messages: DataFrame, batch_id: int) -> Written:
        """The files of a batch, moved to their final place and recorded in the manifest."""
        staging = f"{STAGING}/{batch_id}"
        self._stage(messages, staging)
        staged = list(self._files.parquet(staging)) if self._files.exists(staging) else []
        files = self._described(staging, staged, batch_id)
        self._manifest.stage(batch_id, files)
        for source, file in zip(staged, files, strict=True):
            self._files.move(source.path, file.path)
        self._files.remove(staging)
        return Written(sum(f.messages for f in files), len(files), sum(f.bytes for f in files))

    def _stage(self, messages: DataFrame, staging: str) -> None:
        writer = messages.write.partitionBy("queue", "day").option("compression", "zstd").mode("overwrite")
        writer.parquet(self._files.full(staging))

    def _described(self, staging: str, staged: Sequence[StoredFile], batch_id: int) -> list[NewFile]:
        """The files to be written, with their contents."""
        if not staged:
            return []
        contents = self._contents(staging)
        described = []
        for file in staged:
            queue, day, name = _place(file.path)
            messages, first_at, last_at = contents[queue, day, name]
            path = f"{'/'.join(file.path.split('/')[-3:-1])}/{batch_id:012d}-{name}"
            described.append(NewFile(path, queue, date.fromisoformat(day), messages, file.bytes, first_at, last_at))
        return described

    def _contents(self, staging: str) -> dict[tuple[str, str, str], tuple[int, datetime, datetime]]:
        """By queue, day and file name: the number of messages and their period. Reads one column."""
        # As microseconds, because collect() converts a timestamp to the time zone of this process.
        micros = sf.unix_micros("created_at")
        rows = (
            self._spark.read.schema(DDL)
            .parquet(self._files.full(staging))
            .groupBy("queue", "day", sf.col("_metadata.file_name").alias("name"))
            .agg(sf.count("*").alias("n"), sf.min(micros).alias("first"), sf.max(micros).alias("last"))
            .collect()
        )
        return {(r["queue"], r["day"], r["name"]): (r["n"], instant(r["first"]), instant(r["last"])) for r in rows}


def write_times_as_such(spark: SparkSession) -> None:
    """Times in the files follow the Parquet standard, so that readers can skip what they do not need."""
    spark.conf.set(_TIMESTAMPS, "TIMESTAMP_MICROS")


def _place(path: str) -> tuple[str, str, str]:
    """Queue, day and name of a file. Spark escapes characters that a folder name cannot contain."""
    queue, day, name = path.split("/")[-3:]
    return unquote(queue.removeprefix("queue=")), unquote(day.removeprefix("day=")), name


def read_archive(spark: SparkSession, files: ArchiveFolder, manifest: Manifest | None, where: Selection) -> DataFrame:
    """The messages of an archive in a selection. Without a manifest, all files in the location are read, which may be
    more than the archive if a run died. Raises ArchiveNotFound."""
    if manifest is not None:
        named = manifest.files(queues=where.queues, from_at=where.from_at, to_at=where.to_at)
        if not named and not manifest.files() and find_settings(manifest) is None:
            raise ArchiveNotFound(f"the database knows of no archive {manifest.archive}", archive=manifest.archive)
        paths = [files.full(file.path) for file in named]
        return selected(_read(spark, files, paths), where)
    if not files.exists(""):
        raise ArchiveNotFound(f"there is nothing at {files.location}", archive=files.location)
    return selected(_read(spark, files, [files.location]), where)


def _read(spark: SparkSession, files: ArchiveFolder, paths: Iterable[str]) -> DataFrame:
    found: list[Any] = list(paths)
    if not found:
        return spark.createDataFrame([], DDL)
    return spark.read.schema(DDL).option("basePath", files.location).parquet(*found)

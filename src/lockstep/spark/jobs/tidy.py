"""Tidy: merges small files of an archive, removes old days, and deletes files that are no longer read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING

import msgspec
from pyspark.sql import functions as sf

from lockstep.errors import ArchiveNotFound, InvalidOption
from lockstep.spark.database import Access
from lockstep.spark.failures import explained_by_spark
from lockstep.spark.jobs.archives import BATCH, ArchiveWriter, Written, find_settings, write_times_as_such
from lockstep.spark.jobs.files import ArchiveFolder
from lockstep.spark.jobs.manifest import Manifest, NewFile
from lockstep.spark.jobs.options import check_location, check_positive

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TARGET_BYTES = 128 * 1024 * 1024
GRACE_SECONDS = 86_400.0


@dataclass(frozen=True)
class TidyOptions:
    """What to tidy, and how."""

    location: str
    access: Access = field(default_factory=Access)
    target_bytes: int = TARGET_BYTES
    """Approximate size of merged files; files of at least half this size are not merged again."""
    expire_days: int | None = None
    """Remove days that ended this many days ago, in UTC; None: remove none."""
    grace_seconds: float = GRACE_SECONDS
    """How long files stay on disk after they left the archive, for readers with an older list."""

    def __post_init__(self) -> None:
        check_location(self.location)
        check_positive("target_bytes", self.target_bytes)
        check_positive("expire_days", self.expire_days)
        if self.grace_seconds < 0:
            raise InvalidOption(f"grace_seconds must not be negative: {self.grace_seconds}")


class Tidied(msgspec.Struct, frozen=True, kw_only=True):
    """The result of tidying."""

    merged_files: int = 0
    into_files: int = 0
    expired_files: int = 0
    expired_messages: int = 0
    deleted_files: int = 0
    """Files merged or expired earlier whose grace period is over."""


Progress = Callable[[Tidied], None]
"""Called with the result so far, after every queue and day."""


def job(
    spark: SparkSession, options: TidyOptions, *, progress: Progress | None = None, now: datetime | None = None
) -> Tidied:
    """Tidy an archive. Raises ArchiveNotFound, and Conflict if another run writes to it."""
    spark = spark.newSession()  # for a separate setting
    write_times_as_such(spark)
    with explained_by_spark(), options.access.connect() as connection:
        files = ArchiveFolder(spark, options.location)
        manifest = Manifest(connection, files.location)
        if find_settings(manifest) is None and not manifest.table_files():
            raise ArchiveNotFound(f"the database knows of no archive {files.location}", archive=files.location)
        writer = ArchiveWriter(spark, files, manifest, options.access)
        writer.open()
        done = _expire(writer, options, now or datetime.now(UTC))
        for group in mergeable(manifest.table_files(), options.target_bytes):
            written = writer.merge(_read(spark, files, group, options.target_bytes), [file.path for file in group])
            done = _with(done, group, written)
            if progress is not None:
                progress(done)
        deleted = writer.delete_removed(seconds=options.grace_seconds)
        writer.close()
    return msgspec.structs.replace(done, deleted_files=deleted)


def _expire(writer: ArchiveWriter, options: TidyOptions, now: datetime) -> Tidied:
    if options.expire_days is None:
        return Tidied()
    expired = writer.expire(now.astimezone(UTC).date() - timedelta(days=options.expire_days))
    return Tidied(expired_files=expired.files, expired_messages=expired.messages)


def _with(done: Tidied, group: Sequence[NewFile], written: Written) -> Tidied:
    return msgspec.structs.replace(
        done, merged_files=done.merged_files + len(group), into_files=done.into_files + written.files
    )


def mergeable(files: Sequence[NewFile], target_bytes: int) -> Iterator[list[NewFile]]:
    """The small files of each queue and day that has several of them."""
    small: defaultdict[tuple[str, date], list[NewFile]] = defaultdict(list)
    for file in files:
        if file.bytes * 2 < target_bytes:
            small[file.queue, file.day].append(file)
    return (group for _, group in sorted(small.items()) if len(group) > 1)


def _read(spark: SparkSession, files: ArchiveFolder, group: Sequence[NewFile], target_bytes: int) -> DataFrame:
    """The messages of some files, in order, with as many partitions as there are to be files."""
    count = -(-sum(file.bytes for file in group) // target_bytes)
    # Older files may lack the column `data`.
    found = spark.read.option("mergeSchema", "true").parquet(*[files.full(file.path) for file in group])
    # If Spark took these from folder names, a queue 007 would become the number 7.
    messages = found.withColumn("queue", sf.lit(group[0].queue)).withColumn("day", sf.lit(group[0].day.isoformat()))
    return messages.repartitionByRange(count, "partition", BATCH, "seq").sortWithinPartitions("partition", BATCH, "seq")

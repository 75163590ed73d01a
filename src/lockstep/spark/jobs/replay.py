"""Replay: puts messages of an archive back into a queue, with their ids and in their order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
from pyspark.sql import Window
from pyspark.sql import functions as sf

from lockstep.core.names import check_name
from lockstep.spark.database import Access
from lockstep.spark.failures import explained_by_spark
from lockstep.spark.jobs.archives import BATCH, Selection, read_archive
from lockstep.spark.jobs.files import ArchiveFolder
from lockstep.spark.jobs.manifest import Manifest
from lockstep.spark.jobs.options import (
    check_location,
    check_positive,
    check_queues,
    check_times,
    check_trace_ids,
)
from lockstep.spark.jobs.restoring import Archived, Restorer
from lockstep.spark.transactions import prepare
from lockstep.storage.postgres.encryption import Encryption

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TARGET = "target_queue"

_RESTORED_DDL = "restored bigint, duplicates bigint, segments bigint"
_RESTORED = pa.schema([("restored", pa.int64()), ("duplicates", pa.int64()), ("segments", pa.int64())])
_COLUMNS = (
    TARGET,
    "partition",
    "message_id",
    "created_at",
    "payload",
    "transaction_id",
    "trace_id",
    "kind",
    "reference",
    "encoding",
    "headers",
    "producer_sub",
)
"""In the order of the fields of `Archived`."""


@dataclass(frozen=True, kw_only=True)
class ReplayOptions(Selection):
    """Which messages to replay, and the target."""

    location: str
    access: Access = field(default_factory=Access)
    to_queue: str | None = None
    """None: each message goes to the queue that it was in."""
    keep_created_at: bool = False
    """Messages keep their creation time, which retention and expiry use; otherwise it is the time of the replay."""
    files_only: bool = False
    """Read all files in the location of the archive, whatever its manifest says; for a database that has lost it."""
    parallelism: int | None = None
    """Number of tasks that write at the same time; None: as many as Spark has cores."""
    dry_run: bool = False

    def __post_init__(self) -> None:
        check_location(self.location)
        if self.queues is not None:
            check_queues(self.queues)
        if self.to_queue is not None:
            check_name(self.to_queue, what="queue")
        check_times(self.from_at, self.to_at)
        check_trace_ids(self.trace_ids)
        check_positive("parallelism", self.parallelism)


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a replay."""

    messages: int
    """Messages that the options select."""
    restored: int
    duplicates: int
    """Messages that are already stored, with the same id or transaction id."""
    dry_run: bool = False


def job(spark: SparkSession, options: ReplayOptions) -> Replayed:
    """Replay the messages that the options select. Raises ArchiveNotFound, QueueFull; messages restored before the
    error stay, and a second run continues after them."""
    with explained_by_spark():
        files = ArchiveFolder(spark, options.location)
        with options.access.connect() as connection:
            manifest = None if options.files_only else Manifest(connection, files.location)
            messages = targeted(read_archive(spark, files, manifest, options), options.to_queue)
        if options.dry_run:
            return Replayed(messages=distinct_messages(messages), restored=0, duplicates=0, dry_run=True)
        parallelism = options.parallelism or spark.sparkContext.defaultParallelism
        ordered = in_restoring_order(messages, parallelism)
        restored = restore(ordered, options.access, keep_created_at=options.keep_created_at).collect()
    total, duplicates = sum(row["restored"] for row in restored), sum(row["duplicates"] for row in restored)
    return Replayed(messages=total + duplicates, restored=total, duplicates=duplicates)


def targeted(messages: DataFrame, to_queue: str | None) -> DataFrame:
    """Messages with their target queue."""
    return messages.withColumn(TARGET, sf.col("queue") if to_queue is None else sf.lit(to_queue))


def distinct_messages(messages: DataFrame) -> int:
    """The number of distinct messages: a message that was restored and archived again counts once."""
    return messages.select("queue", "partition", "message_id").distinct().count()


def in_restoring_order(messages: DataFrame, parallelism: int) -> DataFrame:
    """A partition in one task, in the order of its messages, and those of one segment together where possible.

    Ids rise with the seqs, and ordering by id keeps segments whole. This fails only if the clock of the database went
    back: then partitions are restored one after the other, and a segment with many partitions in many pieces.
    """
    placed = messages.repartition(parallelism, TARGET, "partition")
    if ids_rise(messages):
        return placed.sortWithinPartitions("message_id", BATCH, "seq")
    return placed.sortWithinPartitions("queue", "partition", BATCH, "seq")


def ids_rise(messages: DataFrame) -> bool:
    """Whether ids are in the order of the messages in every partition."""

    first = sf.min(sf.struct(BATCH, "seq")).alias("place")
    keys = messages.groupBy("queue", "partition", "message_id").agg(first)
    before = sf.lag("message_id").over(Window.partitionBy("queue", "partition").orderBy("place"))
    return keys.withColumn("before", before).where("message_id < before").isEmpty()


def restore(messages: DataFrame, access: Access, *, keep_created_at: bool) -> DataFrame:
    """Restore the messages; returns the result of each task."""
    return messages.select(*_COLUMNS).mapInArrow(_task(access, keep_created_at), _RESTORED_DDL)


def _task(access: Access, keep_created_at: bool) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def restored(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        encryption = Encryption.of(access.config())
        with access.connect() as connection:
            prepare(connection)
            restorer = Restorer(connection, encryption=encryption, keep_created_at=keep_created_at)
            done = restorer.restore(message for batch in batches for message in archived(batch))
        counts = [[done.restored], [done.duplicates], [done.segments]]
        yield pa.RecordBatch.from_arrays([pa.array(count, pa.int64()) for count in counts], schema=_RESTORED)

    return restored


def archived(batch: pa.RecordBatch) -> Iterator[Archived]:
    """The rows of a batch. A transaction id equal to the message's own id was not set by the producer."""
    columns = [batch.column(name).to_pylist() for name in _COLUMNS]
    ids = columns[_COLUMNS.index("message_id")]
    given = columns[_COLUMNS.index("transaction_id")]
    headers = columns[_COLUMNS.index("headers")]
    columns[_COLUMNS.index("transaction_id")] = [None if t == i else t for t, i in zip(given, ids, strict=True)]
    columns[_COLUMNS.index("headers")] = [None if text is None else text.encode() for text in headers]
    return map(Archived, *columns)

"""Compact: the latest message per key of an archive, as an archive of its own."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from uuid import uuid4

import msgspec
from pyspark.sql import functions as sf

from lockstep.errors import Conflict, InvalidOption
from lockstep.spark.database import Access
from lockstep.spark.failures import explained_by_spark
from lockstep.spark.jobs.archives import BATCH, ArchiveWriter, Selection, read_archive, write_times_as_such
from lockstep.spark.jobs.files import ArchiveFolder
from lockstep.spark.jobs.manifest import Manifest
from lockstep.spark.jobs.options import check_location, check_queues

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

PARTITION = "partition"
KEY = "compact_key"
QUERY = "compact "
"""Prefix of the names of queries that have written a compacted archive."""

_JSON_PATH = re.compile(r"""\$(\.[^.\[\]'"\s]+|\[[0-9]+\]|\['[^']+'\])+""")


@dataclass(frozen=True)
class CompactOptions:
    """What to compact, and the target."""

    location: str
    to_location: str
    """Output of an earlier run in this location is replaced."""
    access: Access = field(default_factory=Access)
    key: str = PARTITION
    """`partition`, or the path of a value in the JSON of the payload, such as `$.customer.id`."""
    queues: tuple[str, ...] | None = None
    files_only: bool = False
    """Read all files in the location of the archive, whatever its manifest says."""

    def __post_init__(self) -> None:
        check_location(self.location)
        check_location(self.to_location, "the location of the compacted archive")
        if self.queues is not None:
            check_queues(self.queues)
        if self.key != PARTITION and not _JSON_PATH.fullmatch(self.key):
            raise InvalidOption(f"the key {self.key!r} is neither partition nor a JSON path such as $.customer.id")


class Compacted(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a compaction."""

    messages: int
    """Messages in the archive."""
    kept: int
    without_key: int
    """Messages without a value under the path, which are left out."""
    files: int
    bytes: int


def job(spark: SparkSession, options: CompactOptions) -> Compacted:
    """Write the latest message per key. Raises ArchiveNotFound, and Conflict if another run writes to the target, or if
    it contains something that no compaction has written."""
    spark = spark.newSession()  # for a separate setting
    write_times_as_such(spark)
    with explained_by_spark(), options.access.connect() as connection:
        source, target = ArchiveFolder(spark, options.location), ArchiveFolder(spark, options.to_location)
        if source.location == target.location:
            raise InvalidOption("an archive is not compacted in place: name another location")
        manifest = None if options.files_only else Manifest(connection, source.location)
        messages = with_key(read_archive(spark, source, manifest, Selection(queues=options.queues)), options.key)
        counted = messages.agg(sf.count("*").alias("all"), sf.count(KEY).alias("keyed")).head()
        assert counted is not None
        compacted = Manifest(connection, target.location)
        writer = ArchiveWriter(spark, target, compacted, options.access)
        writer.open()
        if compacted.has_others(QUERY):
            raise Conflict(f"{target.location} is an archive of messages, which would be lost: name another location")
        kept = latest(messages, by_partition=options.key == PARTITION)
        written = writer.write(kept, f"{QUERY}{uuid4()}", 0, alone=True)
        writer.close()
    return Compacted(
        messages=counted["all"],
        kept=written.messages,
        without_key=counted["all"] - counted["keyed"],
        files=written.files,
        bytes=written.bytes,
    )


def with_key(messages: DataFrame, key: str) -> DataFrame:
    """Messages with their key; null if the payload has none."""
    value = sf.col(PARTITION) if key == PARTITION else sf.get_json_object(sf.col("payload").cast("string"), key)
    return messages.withColumn(KEY, value)


def latest(messages: DataFrame, *, by_partition: bool) -> DataFrame:
    """The last message of each queue and key.

    Within a partition that is the one with the highest position. Partitions have no order relative to each other:
    between them, the one that was created last wins.
    """
    order: list[str | Column] = [BATCH, "seq"] if by_partition else ["created_at", BATCH, "seq", "message_id"]
    columns = [name for name in messages.columns if name != KEY]
    newest = sf.max_by(sf.struct(*columns), sf.struct(*order)).alias("newest")
    return (
        messages.where(sf.col(KEY).isNotNull()).groupBy("queue", KEY).agg(newest).select("newest.*").drop("day", BATCH)
    )

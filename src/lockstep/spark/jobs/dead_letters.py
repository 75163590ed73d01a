"""Dead letters by cause: errors that differ only in numbers, ids and quoted words form one class."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, TypeVar

import msgspec
import pyarrow as pa
from pyspark.sql import Window
from pyspark.sql import functions as sf

from lockstep.core.records import DeadLetter, DeadLetterFilter
from lockstep.errors import InvalidOption, NotFound
from lockstep.spark.database import Access
from lockstep.spark.failures import explained_by_spark
from lockstep.spark.jobs.options import check_positive, check_times
from lockstep.spark.jobs.tables import TIME, instant, read_table
from lockstep.storage.postgres.store import PostgresStore

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

T = TypeVar("T")

REDRIVE_BATCH = 1_000
FINGERPRINT_LENGTH = 12
PATTERN_LENGTH_MAX = 500
NO_ERROR = "(no error text)"

# Applied in this order. A quote inside a word is an apostrophe.
_REPLACEMENTS = (
    (r"""(?<!\w)(?:'[^']*'|"[^"]*"|`[^`]*`)(?!\w)""", "<text>"),
    (r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b", "<id>"),
    (r"\b0[xX][0-9a-fA-F]+\b", "<id>"),
    (r"\b(?=[0-9a-fA-F]*[0-9])(?=[0-9a-fA-F]*[a-fA-F])[0-9a-fA-F]{8,}\b", "<id>"),
    (r"[0-9]+(?:[.,:][0-9]+)*", "<n>"),
    (r"\s+", " "),
)
_FINGERPRINT = re.compile(f"[0-9a-f]{{{FINGERPRINT_LENGTH}}}")

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("queue", pa.string()),
        ("partition", pa.string()),
        ("seq", pa.int64()),
        ("group", pa.string()),
        ("attempts", pa.int32()),
        ("error", pa.string()),
        ("failed_at", TIME),
    ]
)


@dataclass(frozen=True)
class DeadLetterOptions:
    """Which dead letters, and what to do with them."""

    access: Access = field(default_factory=Access)
    queue: str | None = None
    group: str | None = None
    from_at: datetime | None = None
    """Failed at or after."""
    to_at: datetime | None = None
    """Failed before."""
    examples: int = 3
    """Number of dead letters per class that are shown in full."""
    limit: int = 100
    """Maximum number of classes."""

    def __post_init__(self) -> None:
        check_times(self.from_at, self.to_at)
        check_positive("limit", self.limit)
        if self.examples < 0:
            raise InvalidOption(f"examples must not be negative, not {self.examples}")

    @property
    def where(self) -> tuple[str | None, str | None, datetime | None, datetime | None]:
        return self.queue, self.group, self.from_at, self.to_at


class DeadLetterClass(msgspec.Struct, frozen=True, kw_only=True):
    """Dead letters with the same cause."""

    fingerprint: str
    pattern: str
    """The error without its variable parts."""
    count: int
    queues: list[str]
    groups: list[str]
    partitions: int
    attempts_max: int
    first_at: datetime
    last_at: datetime
    examples: list[DeadLetter]
    """The newest."""


def job(spark: SparkSession, options: DeadLetterOptions) -> list[DeadLetterClass]:
    """The classes of dead letters, largest first."""
    with explained_by_spark():
        letters = _letters(spark, options)
        found = classes(letters, examples=options.examples).limit(options.limit).collect()
    wanted = [identity for row in found for identity in row["examples"]]
    shown = _on_store(options.access, lambda store: _load(store, wanted))
    return [
        DeadLetterClass(
            fingerprint=row["fingerprint"],
            pattern=row["pattern"],
            count=row["count"],
            queues=sorted(row["queues"]),
            groups=sorted(row["groups"]),
            partitions=row["partitions"],
            attempts_max=row["attempts_max"],
            first_at=instant(row["first_at"]),
            last_at=instant(row["last_at"]),
            examples=[shown[identity] for identity in row["examples"] if identity in shown],
        )
        for row in found
    ]


def redrive(
    spark: SparkSession,
    options: DeadLetterOptions,
    fingerprint: str,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> int:
    """Push the messages of one class again; returns their number. Dead letters whose copies were completed in a dead
    queue stay. Calls `progress` with the number done and the total. Raises NotFound if there is no such class."""
    check_fingerprint(fingerprint)
    with explained_by_spark():
        letters = fingerprinted(_letters(spark, options))
        rows = letters.where(sf.col("fingerprint") == fingerprint).select("id").orderBy("id").collect()
    if not rows:
        raise NotFound(f"no dead letter has the fingerprint {fingerprint}", fingerprint=fingerprint)
    ids = [row["id"] for row in rows]
    return _on_store(options.access, lambda store: _redrive(store, ids, progress))


def check_fingerprint(fingerprint: str) -> None:
    if not _FINGERPRINT.fullmatch(fingerprint):
        text = f"{fingerprint!r} is no fingerprint: it has {FINGERPRINT_LENGTH} hexadecimal digits"
        raise InvalidOption(f"{text}; `lockstep job dead-letters` shows those that there are")


def _letters(spark: SparkSession, options: DeadLetterOptions) -> DataFrame:
    with options.access.connect() as connection:
        return read_table(spark, connection, "dead_letter_errors", options.where, SCHEMA)


def pattern(error: Column) -> Column:
    """An error without the parts that vary between occurrences."""
    for found, instead in _REPLACEMENTS:
        error = sf.regexp_replace(error, found, instead)
    text = sf.substring(sf.trim(error), 1, PATTERN_LENGTH_MAX)
    return sf.when(sf.coalesce(text, sf.lit("")) == "", NO_ERROR).otherwise(text)


def fingerprinted(letters: DataFrame) -> DataFrame:
    """Dead letters with the pattern of their error, and a short name for the pattern."""
    fingerprint = sf.substring(sf.sha2("pattern", 256), 1, FINGERPRINT_LENGTH)
    return letters.withColumn("pattern", pattern(sf.col("error"))).withColumn("fingerprint", fingerprint)


def classes(letters: DataFrame, *, examples: int) -> DataFrame:
    """A row for each class, largest first; times in microseconds, examples as ids, newest first."""
    place = sf.struct("queue", "partition")
    newest_first = Window.partitionBy("fingerprint").orderBy(sf.desc("failed_at"), sf.desc("id"))
    example = sf.when(sf.col("age") <= examples, sf.struct("age", "id"))
    return (
        fingerprinted(letters)
        .withColumn("age", sf.row_number().over(newest_first))
        .groupBy("fingerprint", "pattern")
        .agg(
            sf.count("*").alias("count"),
            sf.collect_set("queue").alias("queues"),
            sf.collect_set("group").alias("groups"),
            sf.count_distinct(place).alias("partitions"),
            sf.max("attempts").alias("attempts_max"),
            sf.unix_micros(sf.min("failed_at")).alias("first_at"),
            sf.unix_micros(sf.max("failed_at")).alias("last_at"),
            sf.array_sort(sf.collect_list(example)).getField("id").alias("examples"),
        )
        .orderBy(sf.desc("count"), "fingerprint")
    )


def _on_store(access: Access, work: Callable[[PostgresStore], Awaitable[T]]) -> T:
    """The result of work on a store. Runs in a separate thread, because the current one has a running event loop in a
    notebook.
    """
    config = access.config()
    dsn = config.dsn
    assert dsn is not None

    async def worked() -> T:
        store = PostgresStore(dsn, config=config)
        try:
            return await work(store)
        finally:
            await store.close()

    with ThreadPoolExecutor(1) as apart:
        return apart.submit(lambda: asyncio.run(worked())).result()


async def _load(store: PostgresStore, ids: Sequence[int]) -> dict[int, DeadLetter]:
    """Dead letters by id, without those that were redriven in the meantime."""
    found: dict[int, DeadLetter] = {}
    for start in range(0, len(ids), REDRIVE_BATCH):
        chunk = tuple(ids[start : start + REDRIVE_BATCH])
        page = await store.dead_letters(DeadLetterFilter(ids=chunk), limit=len(chunk))
        found.update({letter.id: letter for letter in page.items})
    return found


async def _redrive(store: PostgresStore, ids: Sequence[int], progress: Callable[[int, int], None] | None) -> int:
    moved = 0
    for start in range(0, len(ids), REDRIVE_BATCH):
        chunk = tuple(ids[start : start + REDRIVE_BATCH])
        moved += await store.redrive(DeadLetterFilter(ids=chunk), limit=len(chunk), done=False)
        if progress is not None:
            progress(min(start + REDRIVE_BATCH, len(ids)), len(ids))
    return moved

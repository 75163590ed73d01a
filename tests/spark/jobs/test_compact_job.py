"""Compaction: the latest message per key, and nothing else."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
from archived_rows import Row, write_archive

from lockstep.errors import ArchiveNotFound, Conflict, InvalidOption
from lockstep.spark.database import Access
from lockstep.spark.jobs import compact, replay
from lockstep.spark.jobs.archives import DDL
from lockstep.spark.jobs.compact import CompactOptions, latest, with_key
from lockstep.storage.postgres.store import PostgresStore
from support.builders import pop

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.xdist_group("spark")

NOW = datetime(2026, 5, 1, tzinfo=UTC)


def frame(spark: SparkSession, *rows: tuple[str, int, str, int]) -> DataFrame:
    """Messages by partition, seq, payload and batch; each created a second after the one before."""
    full = [
        ("q", p, s, f"id-{n}", None, None, NOW + timedelta(seconds=n), text.encode(), *[None] * 5, "2026-05-01", b)
        for n, (p, s, text, b) in enumerate(rows)
    ]
    return spark.createDataFrame(full, DDL)


def payloads(messages: DataFrame) -> list[str]:
    return sorted(bytes(row["payload"]).decode() for row in messages.collect())


def test_last_of_each_partition_is_the_one_that_came_last(spark: SparkSession) -> None:
    """A queue that was made again counts from 1: the later batch wins."""
    messages = frame(spark, ("a", 1, "1", 1), ("a", 2, "2", 1), ("b", 7, "3", 1), ("b", 1, "4", 2))
    assert payloads(latest(with_key(messages, "partition"), by_partition=True)) == ["2", "4"]


def test_key_is_a_value_in_the_payload(spark: SparkSession) -> None:
    messages = frame(
        spark,
        ("a", 1, '{"who":{"id":1},"n":1}', 1),
        ("b", 1, '{"who":{"id":1},"n":2}', 1),
        ("a", 2, '{"who":{"id":"x"},"n":3}', 1),
        ("a", 3, '{"who":null}', 1),
        ("a", 4, "not json", 1),
    )
    keyed = with_key(messages, "$.who.id")
    assert [row[compact.KEY] for row in keyed.orderBy("created_at").collect()] == ["1", "1", "x", None, None]
    assert payloads(latest(keyed, by_partition=False)) == ['{"who":{"id":"x"},"n":3}', '{"who":{"id":1},"n":2}']


async def test_archive_is_compacted_into_another_and_again(
    spark: SparkSession, database_dsn: str, tmp_path: Path
) -> None:
    access = Access(dsn=database_dsn)
    source, target = tmp_path / "all", tmp_path / "latest"
    compacting = CompactOptions(location=str(source), to_location=str(target), access=access)
    write_archive(spark, database_dsn, source, [Row("q", "a", 1, "1"), Row("q", "a", 2, "2"), Row("q", "b", 1, "3")])
    first = compact.job(spark, compacting)
    assert (first.messages, first.kept, first.without_key) == (3, 2, 0)
    write_archive(spark, database_dsn, source, [Row("q", "b", 2, "4", created_at=NOW + timedelta(hours=1))])
    second = compact.job(spark, compacting)
    assert (second.messages, second.kept) == (4, 2)
    assert named_files(database_dsn) == files_in(target)
    archived = files_in(source)
    with pytest.raises(Conflict, match=f"{source} is an archive of messages, which would be lost"):
        compact.job(spark, CompactOptions(location=str(target), to_location=str(source), access=access))
    assert files_in(source) == archived
    done = replay.job(spark, replay.ReplayOptions(location=str(target), access=access, to_queue="copy"))
    assert done.restored == 2
    store = PostgresStore(database_dsn)
    popped = await pop(store, "copy", batch=10, partitions=10)
    assert sorted(popped.payloads()) == [b"2", b"4"]
    await store.close()


def named_files(dsn: str) -> set[str]:
    """Of the compacted archive."""
    with psycopg.connect(dsn) as connection:
        named = connection.execute(
            "select f.path from lockstep.archive_file f join lockstep.archive_batch b on b.id = f.batch_id "
            "where b.archive like '%/latest'"
        )
        return {path for (path,) in named}


def files_in(location: Path) -> set[str]:
    return {str(path.relative_to(location)) for path in location.rglob("*.parquet")}


def test_bad_input_is_a_clear_error(spark: SparkSession, database_dsn: str, tmp_path: Path) -> None:
    access = Access(dsn=database_dsn)
    with pytest.raises(InvalidOption, match="neither partition nor a JSON path"):
        CompactOptions(location="a", to_location="b", key="customer")
    with pytest.raises(InvalidOption, match="compacted archive is empty"):
        CompactOptions(location="a", to_location="")
    with pytest.raises(InvalidOption, match="not compacted in place"):
        compact.job(spark, CompactOptions(location=str(tmp_path), to_location=f"{tmp_path}/.", access=access))
    with pytest.raises(ArchiveNotFound):
        compact.job(spark, CompactOptions(location=str(tmp_path), to_location=str(tmp_path / "b"), access=access))

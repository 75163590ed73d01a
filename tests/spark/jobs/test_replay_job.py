"""Replays: archive, delete, replay gives the same messages with the same ids, in the same order."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import msgspec
import pytest

from lockstep.core.messages import Batch, Columns, Message
from lockstep.core.policy import queue_options
from lockstep.core.records import MessageFilter
from lockstep.errors import ArchiveNotFound, InvalidOption, InvalidRequest, QueueFull
from lockstep.spark.database import Access
from lockstep.spark.jobs import archive, replay
from lockstep.spark.jobs.archive import ArchiveOptions
from lockstep.spark.jobs.archives import DDL
from lockstep.spark.jobs.replay import Replayed, ReplayOptions
from lockstep.storage.postgres.store import PostgresStore
from support.builders import batch, push_n
from support.soak import soak_only

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.xdist_group("spark")


def run(spark: SparkSession, dsn: str, location: Path, **options: Any) -> Replayed:
    return replay.job(spark, ReplayOptions(location=str(location), access=Access(dsn=dsn), **options))


def run_archive(spark: SparkSession, dsn: str, location: Path, *queues: str) -> None:
    archive.job(spark, ArchiveOptions(location=str(location), queues=queues, access=Access(dsn=dsn)))


async def stored(store: PostgresStore, queue: str) -> list[Message]:
    """By partition and seq."""
    page = await store.messages(MessageFilter(queue=queue), limit=1000)
    return sorted((view.message for view in page.items), key=lambda message: (message.partition, message.seq))


def same(messages: list[Message]) -> list[Message]:
    """All but the ids of partitions and the time at which a message came."""
    return [msgspec.structs.replace(one, partition_id=0, created_at=None) for one in messages]


def mixed(numbers: random.Random, count: int) -> list[Batch]:
    """A push over several partitions, with all that a message can have."""
    return [
        Batch(
            "q",
            partition,
            Columns(
                [numbers.randbytes(20) if partition == "b" else b'{"n":%d}' % n for n in range(count)],
                transaction_ids=[str(uuid4()) if n % 2 else f"{uuid4()}!" for n in range(count)],
                trace_ids=[str(uuid4()) if n % 3 else None for n in range(count)],
                kinds=[None if n % 2 else "made" for n in range(count)],
                encodings=["raw" if partition == "b" else None] * count,
                headers=[b'{"n":"%d"}' % n if n % 2 else None for n in range(count)],
                producer_subs=["shop"] * count,
            ),
        )
        for partition in ("a", "b", "c")
    ]


async def test_archive_delete_replay_gives_the_same_messages(
    spark: SparkSession, database_dsn: str, tmp_path: Path
) -> None:
    store = PostgresStore(database_dsn)
    for count in (3, 1, 4):
        await store.push(mixed(random.Random(count), count))
    await push_n(store, "q", 2, partition="a")
    run_archive(spark, database_dsn, tmp_path, "q")
    before = await stored(store, "q")
    await store.delete_queue("q")
    assert run(spark, database_dsn, tmp_path, dry_run=True) == Replayed(
        messages=26, restored=0, duplicates=0, dry_run=True
    )
    assert run(spark, database_dsn, tmp_path, keep_created_at=True) == Replayed(messages=26, restored=26, duplicates=0)
    after = await stored(store, "q")
    assert same(after) == same(before)
    assert [m.created_at for m in after] == [m.created_at for m in before]
    assert run(spark, database_dsn, tmp_path) == Replayed(messages=26, restored=0, duplicates=26)
    # What was restored is archived as any other message, and the archive still has each of them once to give.
    run_archive(spark, database_dsn, tmp_path, "q")
    assert run(spark, database_dsn, tmp_path, dry_run=True).messages == 26
    await store.delete_queue("q")
    assert run(spark, database_dsn, tmp_path, files_only=True).restored == 26
    assert same(await stored(store, "q")) == same(before)
    assert await store.verify() == []
    await store.close()


@soak_only
async def test_replay_of_a_part_to_another_queue(spark: SparkSession, database_dsn: str, tmp_path: Path) -> None:
    store = PostgresStore(database_dsn)
    trace = str(uuid4())
    await store.push([batch("q", 3, partition="a", trace_ids=[None, trace, None]), batch("q", 2, partition="b")])
    await push_n(store, "other", 1)
    between = datetime.now(UTC)
    await push_n(store, "q", 2, partition="a", start=4)
    run_archive(spark, database_dsn, tmp_path, "q", "other")
    originals = {(m.partition, m.seq): m.id for m in await stored(store, "q")}

    async def copied(queue: str, **options: Any) -> list[tuple[str, str]]:
        run(spark, database_dsn, tmp_path, to_queue=queue, queues=("q",), **options)
        return [(m.partition, m.id) for m in await stored(store, queue)]

    assert await copied("traced", trace_ids=(trace,)) == [("a", originals["a", 2])]
    assert await copied("later", from_at=between) == [("a", originals["a", 4]), ("a", originals["a", 5])]
    some = await copied("b", partitions=("b",), to_at=between)
    assert some == [("b", originals["b", 1]), ("b", originals["b", 2])]
    # A segment with gaps is read as any other.
    read = spark.read.format("lockstep").options(queue="b", dsn=database_dsn).load().orderBy("seq")
    assert [(row["partition"], row["message_id"]) for row in read.collect()] == some
    # The rest of the same segment comes after it.
    await copied("b")
    assert [m.partition for m in await stored(store, "b")] == ["a"] * 5 + ["b"] * 2
    assert await store.verify() == []
    await store.close()


@soak_only
async def test_full_queue_is_a_clear_error(spark: SparkSession, database_dsn: str, tmp_path: Path) -> None:
    store = PostgresStore(database_dsn)
    await push_n(store, "q", 3)
    run_archive(spark, database_dsn, tmp_path, "q")
    await store.configure("small", queue_options(max_size=2))
    with pytest.raises(QueueFull, match="queue small holds 0 of at most 2 pending messages; 3 more do not fit"):
        run(spark, database_dsn, tmp_path, to_queue="small")
    assert (await store.queue("small")).messages == 0
    await store.close()


def test_order_survives_a_clock_that_went_back(spark: SparkSession) -> None:
    """Ids that fall within a partition do not say the order of its messages: then batch and seq do."""
    now = datetime.now(UTC)
    places = [
        ("q", "a", 1, "00000000-0000-7000-8000-000000000000"),
        ("q", "a", 2, "00000000-0000-7000-8000-000000000001"),
    ]
    fallen = [
        ("q", "a", 3, "00000000-0000-6000-8000-000000000000"),
        ("q", "b", 1, "00000000-0000-6000-8000-000000000001"),
    ]

    def frame(rows: list[tuple[str, str, int, str]], batch_id: int) -> Any:
        full = [(q, p, s, i, i, None, now, b"", None, None, None, None, None, "", batch_id) for q, p, s, i in rows]
        return spark.createDataFrame(full, DDL)

    rising = replay.targeted(frame(places, 1), None)
    assert replay.ids_rise(rising)
    # The same messages again, as after a replay that was archived, change nothing.
    assert replay.ids_rise(rising.unionByName(replay.targeted(frame(places[::-1], 2), None)))
    falling = rising.unionByName(replay.targeted(frame(fallen, 1), None))
    assert not replay.ids_rise(falling)
    ordered = [(r["partition"], r["seq"]) for r in replay.in_restoring_order(falling, 1).collect()]
    assert ordered == [("a", 1), ("a", 2), ("a", 3), ("b", 1)]


def test_bad_input_is_a_clear_error(spark: SparkSession, database_dsn: str, tmp_path: Path) -> None:
    with pytest.raises(ArchiveNotFound, match="knows of no archive"):
        run(spark, database_dsn, tmp_path / "nowhere")
    with pytest.raises(ArchiveNotFound, match="there is nothing at"):
        run(spark, database_dsn, tmp_path / "nowhere", files_only=True)
    early, late = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)
    with pytest.raises(InvalidOption, match="ends before it begins"):
        ReplayOptions(location="x", from_at=late, to_at=early)
    with pytest.raises(InvalidOption, match="has no zone"):
        ReplayOptions(location="x", from_at=datetime(2026, 1, 1))  # noqa: DTZ001
    with pytest.raises(InvalidRequest, match="trace id is not a UUID"):
        ReplayOptions(location="x", trace_ids=("nonsense",))
    with pytest.raises(InvalidOption, match="parallelism"):
        ReplayOptions(location="x", parallelism=0)

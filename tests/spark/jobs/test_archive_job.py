"""Archives: every message once, whatever dies; and retention waits for them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from datetime import UTC, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow.parquet as pq
import pytest
from archived_rows import TIME, Row, write_archive

from lockstep.core.policy import queue_options
from lockstep.core.records import MessageFilter
from lockstep.errors import Conflict, InvalidName, InvalidOption, JobFailed, LockstepError, QueueNotFound, Unavailable
from lockstep.spark.database import Access
from lockstep.spark.jobs import archive
from lockstep.spark.jobs.archive import ArchiveOptions, QueueArchived
from lockstep.spark.jobs.archives import STAGING, Selection, read_archive
from lockstep.spark.jobs.files import ArchiveFolder
from lockstep.spark.jobs.manifest import Manifest
from lockstep.storage.postgres.store import PostgresStore
from support.builders import batch, push_n
from support.databases import away
from support.spark_writes import wait_for_waiter
from support.until import until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.xdist_group("spark")


def options(dsn: str, location: Path, *queues: str, **more: Any) -> ArchiveOptions:
    return ArchiveOptions(location=str(location), queues=queues, access=Access(dsn=dsn), **more)


def archived(spark: SparkSession, dsn: str, location: Path, **where: Any) -> DataFrame:
    files = ArchiveFolder(spark, str(location))
    with Access(dsn=dsn).connect() as connection:
        return read_archive(spark, files, Manifest(connection, files.location), Selection(**where))


def keys(messages: DataFrame) -> list[tuple[str, str, int]]:
    return sorted(
        (r["queue"], r["partition"], r["seq"]) for r in messages.select("queue", "partition", "seq").collect()
    )


def named_files(dsn: str) -> set[str]:
    with psycopg.connect(dsn) as connection:
        rows = connection.execute(
            "select f.path from lockstep.archive_file f join lockstep.archive_batch b on b.id = f.batch_id "
            "where b.committed_at is not null"
        )
        return {row[0] for row in rows}


def present_files(location: Path) -> set[str]:
    return {str(path.relative_to(location)) for path in location.rglob("*.parquet")}


async def test_files_hold_every_message_once_and_as_it_is(
    spark: SparkSession, database_dsn: str, tmp_path: Path
) -> None:
    store = PostgresStore(database_dsn)
    odd = "odd/näme=1"
    await store.push(
        [
            batch(
                "q", 3, partition="a", trace_ids=[None, "0190c1d2-7a57-7c3e-9f00-1c0ffee00000", None], kinds=["k"] * 3
            ),
            batch("q", 2, partition="b", headers=[b'{"x":"y"}', None], transaction_ids=["one", None]),
            batch(odd, 1),
        ]
    )
    first = archive.job(spark, options(database_dsn, tmp_path, "q", odd))
    assert [(one.queue, one.batches, one.messages) for one in first] == [("q", 1, 5), (odd, 1, 1)]
    await push_n(store, "q", 4, partition="a", start=4)
    [second] = archive.job(spark, options(database_dsn, tmp_path, "q"))
    assert (second.batches, second.messages) == (1, 4)
    assert present_files(tmp_path) == named_files(database_dsn)
    messages = archived(spark, database_dsn, tmp_path)
    assert keys(messages) == [
        (odd, "Default", 1),
        *[("q", "a", seq) for seq in range(1, 8)],
        *[("q", "b", seq) for seq in range(1, 3)],
    ]
    rows = {(r["partition"], r["seq"]): r for r in messages.where("queue = 'q'").collect()}
    assert bytes(rows["a", 2]["payload"]) == b'{"n":2}'
    assert rows["a", 2]["trace_id"] == "0190c1d2-7a57-7c3e-9f00-1c0ffee00000"
    assert (rows["b", 1]["transaction_id"], rows["b", 1]["headers"]) == ("one", '{"x":"y"}')
    assert rows["b", 2]["transaction_id"] == rows["b", 2]["message_id"]
    assert rows["a", 1]["archive_batch"] < rows["a", 4]["archive_batch"]
    shown = (await store.messages(MessageFilter(queue="q"))).items
    check_layout(tmp_path, {f"day={one.message.created_at.astimezone(UTC):%Y-%m-%d}" for one in shown})
    await store.close()


def test_selection_narrows_what_is_read(spark: SparkSession, database_dsn: str, tmp_path: Path) -> None:
    trace = "0190c1d2-7a57-7c3e-9f00-1c0ffee00000"
    messages = [
        Row("q", "a", 1, trace_id=trace),
        Row("q", "a", 2, created_at=TIME + timedelta(days=1)),
        Row("q", "b", 1),
        Row("r", "a", 1),
    ]
    write_archive(spark, database_dsn, tmp_path, messages)
    assert keys(archived(spark, database_dsn, tmp_path, queues=("r",))) == [("r", "a", 1)]
    assert keys(archived(spark, database_dsn, tmp_path, partitions=("b",))) == [("q", "b", 1)]
    assert keys(archived(spark, database_dsn, tmp_path, trace_ids=(trace,))) == [("q", "a", 1)]
    late = TIME + timedelta(hours=1)
    assert keys(archived(spark, database_dsn, tmp_path, from_at=late)) == [("q", "a", 2)]
    assert len(keys(archived(spark, database_dsn, tmp_path, to_at=late))) == 3
    assert keys(archived(spark, database_dsn, tmp_path, to_at=TIME)) == []


def check_layout(location: Path, days: set[str]) -> None:
    folder = location / "queue=q"
    assert {path.name for path in folder.iterdir()} == days
    file = next(folder.rglob("*.parquet"))
    assert pq.ParquetFile(file).metadata.row_group(0).column(0).compression == "ZSTD"
    assert str(pq.read_schema(file).field("created_at").type) == "timestamp[us, tz=UTC]"


class Died(Exception):
    """What a process that dies leaves is what is left when this is raised."""


async def test_batch_that_spark_forgot_is_not_archived_again(
    spark: SparkSession, database_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run dies after the batch is committed, and before Spark notes that it is done with it."""
    store = PostgresStore(database_dsn)
    await push_n(store, "q", 3)

    def commit(self: Manifest, batch_id: int, **given: Any) -> list[str]:
        real_commit(self, batch_id, **given)
        raise Died

    real_commit = Manifest.commit
    with monkeypatch.context() as dying:
        dying.setattr(Manifest, "commit", commit)
        with pytest.raises(LockstepError, match="Died"):
            archive.job(spark, options(database_dsn, tmp_path, "q"))
    await push_n(store, "q", 2, start=4)
    archive.job(spark, options(database_dsn, tmp_path, "q"))
    assert keys(archived(spark, database_dsn, tmp_path)) == [("q", "Default", seq) for seq in range(1, 6)]
    assert present_files(tmp_path) == named_files(database_dsn)
    assert not (tmp_path / STAGING).exists() or not list((tmp_path / STAGING).rglob("*.parquet"))
    await store.close()


KILLED_WHEN_MOVED = """
import os, signal, sys
from lockstep.spark.database import Access
from lockstep.spark.jobs import archive
from lockstep.spark.jobs.manifest import Manifest
from lockstep.spark.session import spark_session

commit = Manifest.commit

def kill(self, batch_id, **given):
    if batch_id == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return commit(self, batch_id, **given)

Manifest.commit = kill
location, dsn = sys.argv[1:]
with spark_session("killed", master="local[1]", environment={"LOCKSTEP_DSN": dsn}) as spark:
    archive.job(spark, archive.ArchiveOptions(location=location, queues=("q",), batch_messages_max=10))
"""


def killed_run(location: Path, dsn: str) -> int:
    program = [sys.executable, "-c", KILLED_WHEN_MOVED, str(location), dsn]
    # What it cannot clean up goes with the files of the test.
    environ = {**os.environ, "TMPDIR": str(location.parent)}
    return subprocess.run(program, capture_output=True, timeout=180, check=False, env=environ).returncode


async def test_kill_in_the_middle_leaves_an_exact_manifest(
    spark: SparkSession, database_dsn: str, tmp_path: Path
) -> None:
    store = PostgresStore(database_dsn)
    for number in range(6):
        await push_n(store, "q", 5, start=5 * number)
    location = tmp_path / "archive"
    assert killed_run(location, database_dsn) == -signal.SIGKILL
    assert len(present_files(location)) > len(named_files(database_dsn)) == 1
    archive.job(spark, options(database_dsn, location, "q", batch_messages_max=10))
    assert keys(archived(spark, database_dsn, location)) == [("q", "Default", seq) for seq in range(1, 31)]
    assert present_files(location) == named_files(database_dsn)
    await store.close()


async def test_database_that_goes_away_is_unavailable_and_nothing_is_lost(
    spark: SparkSession, database_dsn: str, tmp_path: Path
) -> None:
    store = PostgresStore(database_dsn)
    for number in range(3):
        await push_n(store, "q", 2, start=2 * number)

    def cut_off(_: QueueArchived) -> None:
        with psycopg.connect(database_dsn, autocommit=True) as connection:
            connection.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity "
                "where datname = current_database() and application_name = 'lockstep-spark'"
            )

    with pytest.raises(Unavailable):
        archive.job(spark, options(database_dsn, tmp_path, "q", batch_messages_max=2), progress=cut_off)
    archive.job(spark, options(database_dsn, tmp_path, "q", batch_messages_max=2))
    assert keys(archived(spark, database_dsn, tmp_path)) == [("q", "Default", seq) for seq in range(1, 7)]
    assert present_files(tmp_path) == named_files(database_dsn)
    await store.close()


async def test_retention_waits_for_the_archive(spark: SparkSession, database_dsn: str, tmp_path: Path) -> None:
    store = PostgresStore(database_dsn)
    await store.configure("q", queue_options(retention_enabled=True, retention_seconds=1))
    await push_n(store, "q", 3)
    archive.job(spark, options(database_dsn, tmp_path, "q"))
    archive.job(spark, options(database_dsn, tmp_path, "q"))  # tells that the batch before is not asked for any more
    await push_n(store, "q", 2, start=4)
    await store.database.fetch("age", "update lockstep.segment set created_at = created_at - interval '1 hour'")
    assert (await store.prune("retention", limit=100)).messages == 3
    assert (await store.queue("q")).messages == 2
    await store.close()


async def test_follow_archives_until_it_is_stopped(spark: SparkSession, database_dsn: str, tmp_path: Path) -> None:
    store = PostgresStore(database_dsn)
    await push_n(store, "q", 3)
    stop = threading.Event()
    seen: list[QueueArchived] = []

    def progress(one: QueueArchived) -> None:
        seen.append(one)
        if one.messages == 3:
            with psycopg.connect(database_dsn) as connection:
                connection.execute("select lockstep.push('q', 'Default', '4')")
        else:
            stop.set()

    following = options(database_dsn, tmp_path, "q", follow=True, interval_seconds=0.1)
    [done] = archive.job(spark, following, progress=progress, stop=stop)
    assert [one.messages for one in seen] == [3, 4]
    assert (done.batches, done.messages) == (2, 4)
    await store.close()


async def test_follow_outlives_a_database_that_is_away(
    spark: SparkSession, database_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with psycopg.connect(database_dsn) as connection:
        connection.execute("select lockstep.push('q', 'Default', '1')")
    stop = threading.Event()
    seen: list[QueueArchived] = []
    told: list[str] = []
    monkeypatch.setattr(archive._log, "warning", lambda text, *values: told.append(text % values))
    following = options(database_dsn, tmp_path, "q", follow=True, interval_seconds=0.1)
    with ThreadPoolExecutor(1) as beside:
        ran = beside.submit(archive.job, spark, following, progress=seen.append, stop=stop)
        try:
            await until(lambda: seen or ran.done(), seconds=120)
            with away(database_dsn):
                await until(lambda: len(told) >= 2 or ran.done(), seconds=120)
            with psycopg.connect(database_dsn) as connection:
                connection.execute("select lockstep.push('q', 'Default', '2')")
            await until(lambda: len(seen) == 2 or ran.done(), seconds=120)
        finally:
            stop.set()
        [done] = await asyncio.to_thread(ran.result, 120)
    assert (done.batches, done.messages) == (2, 2)
    assert f"the archive {tmp_path} is started again in 0." in told[0]
    assert archived(spark, database_dsn, tmp_path).count() == 2


@pytest.mark.parametrize("follow", [True, False])
async def test_batch_that_is_being_written_when_it_is_stopped_is_finished(
    spark: SparkSession, database_dsn: str, tmp_path: Path, follow: bool
) -> None:
    store = PostgresStore(database_dsn)
    for number in (1, 2):
        await push_n(store, "q", start=number)
    await store.close()
    stop = threading.Event()
    one_by_one = options(database_dsn, tmp_path, "q", follow=follow, interval_seconds=0.1, batch_messages_max=1)
    with ThreadPoolExecutor(1) as beside, psycopg.connect(database_dsn) as holding:

        def hold_the_next(one: QueueArchived) -> None:
            if one.batches == 1:
                holding.execute("lock table lockstep.archive_file in share mode")

        ran = beside.submit(archive.job, spark, one_by_one, progress=hold_the_next, stop=stop)
        waiting = partial(wait_for_waiter, database_dsn, "archive_stage", seconds=120, alive=lambda: not ran.done())
        await asyncio.to_thread(waiting)
        stop.set()
        # It waits for the batch, and the batch for us.
        assert (await asyncio.to_thread(wait, [ran], timeout=1)).not_done
        holding.rollback()
        [done] = ran.result(60)
    assert (done.batches, done.messages) == (2, 2)
    assert archived(spark, database_dsn, tmp_path).count() == 2


async def test_bad_input_is_a_clear_error(spark: SparkSession, database_dsn: str, tmp_path: Path) -> None:
    store = PostgresStore(database_dsn)
    await push_n(store, "q")
    with pytest.raises(QueueNotFound, match="'nowhere'"):
        archive.job(spark, options(database_dsn, tmp_path, "nowhere"))
    location = ArchiveFolder(spark, str(tmp_path)).location
    with Access(dsn=database_dsn).connect() as connection:
        Manifest(connection, location).lock()
        with pytest.raises(Conflict, match="another run writes to the archive"):
            archive.job(spark, options(database_dsn, tmp_path, "q"))
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(JobFailed):
        archive.job(spark, options(database_dsn, file, "q"))
    with pytest.raises(InvalidOption, match="at least one queue"):
        options(database_dsn, tmp_path)
    with pytest.raises(InvalidName):
        options(database_dsn, tmp_path, "")
    with pytest.raises(InvalidOption, match="location"):
        ArchiveOptions(location=" ", queues=("q",))
    with pytest.raises(InvalidOption, match="batch_messages_max"):
        options(database_dsn, tmp_path, "q", batch_messages_max=0)
    await store.close()

"""Archives as tables: Delta and Iceberg show every message once, whatever dies, and others read them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pandas as pd
import psycopg
import pyarrow as pa
import pyspark
import pytest
from deltalake import DeltaTable

from lockstep.core.messages import Batch, Columns
from lockstep.errors import Conflict, InvalidOption, JobFailed, LockstepError
from lockstep.spark.database import Access
from lockstep.spark.jobs import archive, replay, tidy
from lockstep.spark.jobs.archive import ArchiveOptions
from lockstep.spark.jobs.archives import DDL, find_settings
from lockstep.spark.jobs.files import ArchiveFolder
from lockstep.spark.jobs.formats.delta import DeltaVersion
from lockstep.spark.jobs.formats.iceberg import IcebergVersion, check_catalog, open_catalog
from lockstep.spark.jobs.formats.publishing import Publisher
from lockstep.spark.jobs.formats.settings import ArchiveSettings, open_table, table_uri
from lockstep.spark.jobs.manifest import Manifest
from lockstep.storage.postgres.store import PostgresStore
from support.builders import batch, push_n
from support.clock import SetClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.xdist_group("spark")

SCHEMA = "n INT, name STRING"
TABLES = ("delta", "iceberg")


def options(dsn: str, location: Path, *queues: str, **settings: Any) -> ArchiveOptions:
    return ArchiveOptions(
        location=str(location),
        queues=queues or ("q",),
        access=Access(dsn=dsn),
        settings=ArchiveSettings(**settings),
        batch_messages_max=10,
    )


def delta(_: str, location: Path) -> pa.Table:
    return DeltaTable(str(location)).to_pyarrow_table()


def iceberg(dsn: str, location: Path) -> pa.Table:
    return open_catalog(Access(dsn=dsn), None).load_table(f"lockstep.{location.name}").scan().to_arrow()


VERSIONS = {"delta": DeltaVersion, "iceberg": IcebergVersion}
READ: dict[str, Callable[[str, Path], pa.Table]] = {"delta": delta, "iceberg": iceberg}


def seqs(table: pa.Table) -> list[int]:
    return sorted(table.column("seq").to_pylist())


def manifest_files(dsn: str, location: Path) -> list[str]:
    with Access(dsn=dsn).connect() as connection:
        manifest = Manifest(connection, f"file:{location}")
        return [f"{location}/{file.path}" for file in manifest.table_files()]


@pytest.mark.parametrize("kind", TABLES)
async def test_table_holds_every_message_once_and_typed(
    spark: SparkSession, database_dsn: str, tmp_path: Path, kind: str
) -> None:
    store = PostgresStore(database_dsn)
    odd = "odd/näme=1 %7"
    await store.push([batch("q", 3), batch(odd, 2)])
    archive.job(spark, options(database_dsn, tmp_path / "a", "q", odd, format=kind, payload_schema=SCHEMA))
    await push_n(store, "q", 2, start=4)
    await store.push([Batch("q", "Default", Columns([b"[1]"]))])
    # What the archive is need not be said again.
    archive.job(spark, options(database_dsn, tmp_path / "a", "q", odd))
    found = READ[kind](database_dsn, tmp_path / "a")
    rows = {(row["queue"], row["seq"]): row for row in found.to_pylist()}
    assert sorted(rows) == [(odd, 1), (odd, 2), *[("q", seq) for seq in range(1, 7)]]
    assert rows["q", 4]["data"] == {"n": 4, "name": None}
    assert rows["q", 4]["payload"] == b'{"n":4}'
    assert rows["q", 6]["data"] is None
    assert str(found.schema.field("created_at").type) == "timestamp[us, tz=UTC]"
    await store.close()


@pytest.mark.parametrize("kind", TABLES)
async def test_duckdb_pandas_and_spark_read_the_archive(
    spark: SparkSession, database_dsn: str, tmp_path: Path, kind: str
) -> None:
    store = PostgresStore(database_dsn)
    await push_n(store, "q", 3)
    location = tmp_path / "a"
    archive.job(spark, options(database_dsn, location, format=kind, payload_schema=SCHEMA))
    table = READ[kind](database_dsn, location)
    with duckdb.connect() as duck:
        duck.register("messages", table)
        assert duck.sql("select queue, sum(data.n) from messages group by queue").fetchall() == [("q", 6)]
        files = manifest_files(database_dsn, location)
        assert duck.sql(f"select count(*) from read_parquet({files}, hive_partitioning=true)").fetchall() == [(3,)]
    frame = pd.read_parquet(files[0])
    assert [value["n"] for value in frame["data"]] == [1, 2, 3]
    # The log of a table is not in the way of whoever reads the files.
    assert spark.read.parquet(str(location)).selectExpr("sum(data.n)").head() == (6,)
    await store.close()


async def test_spark_reads_the_delta_table(spark: SparkSession, database_dsn: str, tmp_path: Path) -> None:
    if not list((Path(pyspark.__file__).parent / "jars").glob("delta-spark*.jar")):
        pytest.skip("the jar io.delta:delta-spark is not in PySpark's folder jars: it is on Maven, and not on PyPI")
    store = PostgresStore(database_dsn)
    await push_n(store, "q", 3)
    archive.job(spark, options(database_dsn, tmp_path / "a", format="delta"))
    assert spark.read.format("delta").load(str(tmp_path / "a")).count() == 3
    await store.close()


@pytest.mark.parametrize("kind", TABLES)
async def test_table_of_an_archive_that_had_none_has_what_was_archived_before(
    spark: SparkSession, database_dsn: str, tmp_path: Path, kind: str
) -> None:
    store = PostgresStore(database_dsn)
    await push_n(store, "q", 3)
    archive.job(spark, options(database_dsn, tmp_path / "a"))
    archive.job(spark, options(database_dsn, tmp_path / "a", format=kind, payload_schema=SCHEMA))
    await push_n(store, "q", 1, start=4)
    archive.job(spark, options(database_dsn, tmp_path / "a"))
    rows = READ[kind](database_dsn, tmp_path / "a").sort_by("seq").to_pylist()
    assert [(row["seq"], row["data"]) for row in rows] == [(1, None), (2, None), (3, None), (4, {"n": 4, "name": None})]
    await store.close()


class Died(Exception):
    """What a process that dies leaves is what is left when this is raised."""


def dying(patch: pytest.MonkeyPatch, made: type, name: str, *, after: bool) -> None:
    """The second call of a method is the last thing that happens, or the last but itself."""
    real = getattr(made, name)
    calls: list[int] = []

    def call(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == 2 and not after:
            raise Died
        found = real(*args, **kwargs)
        if len(calls) == 2:
            raise Died
        return found

    patch.setattr(made, name, call)


@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.parametrize("moment", ["files written", "manifest committed", "table committed"])
async def test_death_at_any_moment_neither_loses_nor_doubles(
    spark: SparkSession, database_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, moment: str
) -> None:
    store = PostgresStore(database_dsn)
    for number in range(3):
        await push_n(store, "q", 10, start=10 * number)
    location = tmp_path / "a"
    with monkeypatch.context() as patch:
        made = VERSIONS[kind] if moment == "table committed" else Manifest
        dying(patch, made, "commit", after=moment != "files written")
        with pytest.raises(LockstepError, match="Died"):
            archive.job(spark, options(database_dsn, location, format=kind))
    assert seqs(READ[kind](database_dsn, location)) == list(range(1, 21 if moment == "table committed" else 11))
    archive.job(spark, options(database_dsn, location))
    assert seqs(READ[kind](database_dsn, location)) == list(range(1, 31))
    await store.close()


KILLED = """
import os, signal, sys
from lockstep.spark.database import Access
from lockstep.spark.jobs import archive
from lockstep.spark.jobs.archive import ArchiveOptions
from lockstep.spark.jobs.formats.settings import ArchiveSettings
from lockstep.spark.jobs.manifest import Manifest
from lockstep.spark.session import spark_session

commit, seen = Manifest.commit, []

def kill(self, *args, **given):
    found = commit(self, *args, **given)
    seen.append(1)
    if len(seen) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return found

Manifest.commit = kill
kind, location, dsn = sys.argv[1:]
with spark_session("killed", master="local[1]", environment={"LOCKSTEP_DSN": dsn}) as spark:
    settings = ArchiveSettings(format=kind)
    archive.job(spark, ArchiveOptions(location=location, queues=("q",), batch_messages_max=10, settings=settings))
"""


def killed_run(kind: str, location: Path, dsn: str) -> int:
    environ = {**os.environ, "TMPDIR": str(location.parent)}
    program = [sys.executable, "-c", KILLED, kind, str(location), dsn]
    return subprocess.run(program, capture_output=True, timeout=300, check=False, env=environ).returncode


@pytest.mark.parametrize("kind", TABLES)
async def test_kill_between_manifest_and_table_is_made_up_for(
    spark: SparkSession, database_dsn: str, tmp_path: Path, kind: str
) -> None:
    store = PostgresStore(database_dsn)
    for number in range(3):
        await push_n(store, "q", 10, start=10 * number)
    location = tmp_path / "a"
    assert killed_run(kind, location, database_dsn) == -signal.SIGKILL
    assert seqs(READ[kind](database_dsn, location)) == list(range(1, 11))
    archive.job(spark, options(database_dsn, location))
    assert seqs(READ[kind](database_dsn, location)) == list(range(1, 31))
    await store.close()


@pytest.mark.parametrize("kind", TABLES)
async def test_run_that_lost_its_archive_publishes_nothing_twice(
    spark: SparkSession, database_dsn: str, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has loaded the table and stands still; another run publishes the same batch before it goes on."""
    store = PostgresStore(database_dsn)
    await push_n(store, "q", 3)
    location = tmp_path / "a"
    overtaken: list[bool] = []
    real = Manifest.table_files

    def table_files(self: Manifest) -> Any:
        found = real(self)
        if found and not overtaken:
            overtaken.append(True)
            with Access(dsn=database_dsn).connect() as connection:
                other = Manifest(connection, self.archive)
                settings = find_settings(other)
                assert settings is not None
                Publisher(other, open_table(settings, self.archive, DDL, Access(dsn=database_dsn))).publish()
        return found

    monkeypatch.setattr(Manifest, "table_files", table_files)
    archive.job(spark, options(database_dsn, location, format=kind))
    assert overtaken
    assert seqs(READ[kind](database_dsn, location)) == [1, 2, 3]
    await store.close()


@pytest.mark.parametrize("kind", ["parquet", *TABLES])
async def test_tidy_merges_small_files_and_expires_old_days(
    spark: SparkSession, database_dsn: str, tmp_path: Path, kind: str
) -> None:
    noon = datetime.now(UTC).replace(hour=12) - timedelta(days=1)
    store = PostgresStore(database_dsn, clock=SetClock(noon))  # files are by day, and all of these are of one
    location = tmp_path / "a"
    for number in range(3):
        await store.push([batch(queue, start=number) for queue in ("q", "007")])
        archive.job(spark, options(database_dsn, location, "q", "007", format=kind, payload_schema=SCHEMA))
    assert len(manifest_files(database_dsn, location)) == 6
    tidying = tidy.TidyOptions(location=str(location), access=Access(dsn=database_dsn))
    done = tidy.job(spark, tidying)
    assert (done.merged_files, done.into_files, done.deleted_files) == (6, 2, 0)
    assert len(list(location.rglob("*.parquet"))) == 8
    assert tidy.job(spark, tidying).merged_files == 0
    check_messages(database_dsn, location, kind)
    replayed = replay.ReplayOptions(location=str(location), access=Access(dsn=database_dsn), to_queue="again")
    assert replay.job(spark, replayed).restored == 6
    hasty = tidy.TidyOptions(location=str(location), access=Access(dsn=database_dsn), grace_seconds=0)
    assert tidy.job(spark, hasty).deleted_files == 6
    check_messages(database_dsn, location, kind)
    assert len(list(location.rglob("*.parquet"))) == 2
    later = noon + timedelta(days=3)
    expiring = tidy.TidyOptions(location=str(location), access=Access(dsn=database_dsn), expire_days=2, grace_seconds=0)
    done = tidy.job(spark, expiring, now=later)
    assert (done.expired_files, done.expired_messages, done.deleted_files) == (2, 6, 2)
    if kind != "parquet":
        assert READ[kind](database_dsn, location).num_rows == 0
    assert list(location.rglob("*.parquet")) == []
    await store.close()


def check_messages(dsn: str, location: Path, kind: str) -> None:
    expected = sorted((queue, n) for queue in ("q", "007") for n in range(3))
    with duckdb.connect() as duck:
        files = manifest_files(dsn, location)
        found = duck.sql(
            f"select queue, data.n from read_parquet({files}, hive_partitioning=true, hive_types={{'queue': varchar}})"
        ).fetchall()
        assert sorted(found) == expected
    if kind != "parquet":
        rows = READ[kind](dsn, location).to_pylist()
        assert sorted((row["queue"], row["data"]["n"]) for row in rows) == expected


async def test_archive_stays_what_it_is(spark: SparkSession, database_dsn: str, tmp_path: Path) -> None:
    store = PostgresStore(database_dsn)
    await push_n(store, "q", 1)
    location = tmp_path / "a"
    archive.job(spark, options(database_dsn, location, format="delta", payload_schema=SCHEMA))
    with pytest.raises(Conflict, match="has a format already, delta"):
        archive.job(spark, options(database_dsn, location, format="iceberg"))
    with pytest.raises(Conflict, match="has a payload schema already"):
        archive.job(spark, options(database_dsn, location, payload_schema="other STRING"))
    archive.job(spark, options(database_dsn, location, format="delta", payload_schema="n INT, name STRING"))
    with pytest.raises(InvalidOption, match="payload schema is not DDL"):
        archive.job(spark, options(database_dsn, tmp_path / "b", payload_schema="n NOTHING"))
    # A database that does not know the archive takes nothing out of its table.
    with psycopg.connect(database_dsn) as connection:
        connection.execute("delete from lockstep.archive_batch")
        connection.execute("delete from lockstep.archive")
    with pytest.raises(Conflict, match="1 files that this database does not know"):
        archive.job(spark, options(database_dsn, location, format="delta"))
    assert delta(database_dsn, location).num_rows == 1
    await store.close()


async def test_catalog_of_your_own(spark: SparkSession, database_dsn: str, tmp_path: Path) -> None:
    store = PostgresStore(database_dsn)
    await push_n(store, "q", 2)
    uri = f"sqlite:///{tmp_path}/catalog.db"
    given = {"format": "iceberg", "catalog": uri, "table_name": "lake.orders"}
    archive.job(spark, options(database_dsn, tmp_path / "a", **given))
    catalog = open_catalog(Access(dsn=database_dsn), uri)
    assert seqs(catalog.load_table("lake.orders").scan().to_arrow()) == [1, 2]
    with pytest.raises(Conflict, match=r"has a table lake\.orders already, at"):
        archive.job(spark, options(database_dsn, tmp_path / "b", **given))
    with pytest.raises(Conflict, match="has a catalog already"):
        archive.job(spark, options(database_dsn, tmp_path / "a", catalog="sqlite:////elsewhere.db"))
    await store.close()


async def test_table_that_cannot_be_written_is_a_clear_error(
    spark: SparkSession, database_dsn: str, tmp_path: Path
) -> None:
    store = PostgresStore(database_dsn)
    await push_n(store, "q", 2)
    nowhere = f"sqlite:///{tmp_path}/no/folder.db"
    with pytest.raises(JobFailed, match="the Iceberg catalog cannot be used"):
        archive.job(spark, options(database_dsn, tmp_path / "a", format="iceberg", catalog=nowhere))
    await store.close()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"format": "orc"}, "an archive is parquet, delta, iceberg"),
        ({"format": "delta", "table_name": "a.b"}, "are for iceberg, not for delta"),
        ({"table_name": "orders"}, r"is like lockstep\.orders"),
        ({"catalog": "nothing"}, "not an address such as"),
        ({"catalog": "postgresql+psycopg://user:secret@host/db"}, "has no password"),
    ],
)
def test_bad_settings_are_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(LockstepError, match=says) as refused:
        ArchiveSettings(**given).check()
    assert "secret" not in str(refused.value)


def test_catalog_without_password_is_taken() -> None:
    assert check_catalog("sqlite:////srv/catalog.db") == "sqlite:////srv/catalog.db"


def test_location_is_one_for_hadoop_and_for_the_libraries(spark: SparkSession, tmp_path: Path) -> None:
    assert table_uri(ArchiveFolder(spark, str(tmp_path)).location) == f"file://{tmp_path}"
    assert table_uri("s3a://bucket/archive") == "s3://bucket/archive"
    assert table_uri("hdfs://host/archive") == "hdfs://host/archive"

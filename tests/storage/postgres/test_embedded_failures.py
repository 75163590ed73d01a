"""What the embedded PostgreSQL says when it cannot start, and that it changes nothing then."""

from __future__ import annotations

import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep.errors import (
    DataDirectoryUnusable,
    DataDirectoryVersion,
    EmbeddedError,
    ServerStartFailed,
)
from lockstep.storage.postgres.embedded import EmbeddedPostgres
from lockstep.storage.postgres.embedded.programs import program_failure
from support.databases import scratch_directory
from support.embedded_tools import (
    ORDINARY_USER,
    SMALL,
    Host,
    add_cluster,
    is_root,
    notes,
    ordinary_python,
    processes_in,
    small_disk,
)


@pytest.fixture
def root() -> Iterator[Path]:
    with scratch_directory() as directory:
        yield directory


@pytest.fixture
def data_dir(root: Path) -> Path:
    """A data directory that has a cluster already."""
    return add_cluster(root / "data")


def write_without_end(path: Path) -> None:
    with open(path, "wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)


def mounted(disk: Path | None) -> Path:
    if disk is None:
        pytest.skip("mounting a tmpfs is not allowed here")
    return disk


def test_cluster_of_another_major_version_is_refused(data_dir: Path) -> None:
    version_file = data_dir / "pgdata/PG_VERSION"
    version_file.write_text("16\n")
    with pytest.raises(DataDirectoryVersion) as caught:
        EmbeddedPostgres(data_dir).start()
    assert "made by PostgreSQL 16" in caught.value.message
    assert "runs PostgreSQL 18" in caught.value.message
    assert "pg_dump" in caught.value.message
    assert caught.value.details == {"found": "16", "expected": "18"}
    version_file.write_text("18\n")
    with EmbeddedPostgres(data_dir, settings=SMALL) as server:
        assert notes(server.dsn) == [1]


def test_folder_that_holds_something_else_is_refused(root: Path) -> None:
    (root / "pgdata").mkdir()
    (root / "pgdata/thesis.txt").write_text("mine")
    with pytest.raises(DataDirectoryUnusable, match=r"pgdata (belongs to|holds files)"):
        EmbeddedPostgres(root).start()
    assert (root / "pgdata/thesis.txt").read_text() == "mine"


def test_file_in_place_of_the_directory_is_refused(root: Path) -> None:
    (root / "data").write_text("a file")
    with pytest.raises(DataDirectoryUnusable, match=f"{root}/data"):
        EmbeddedPostgres(root / "data").start()
    with pytest.raises(DataDirectoryUnusable, match="Not a directory"):
        EmbeddedPostgres(root / "data" / "below").start()


def test_read_only_file_system_is_refused() -> None:
    with small_disk("100m") as disk:
        data_dir = add_cluster(mounted(disk) / "data")
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        for path in (data_dir, mounted(disk) / "new"):
            with pytest.raises(DataDirectoryUnusable, match=r"Read-only file system.*writable file system"):
                EmbeddedPostgres(path).start()


def test_full_disk_during_initialisation_leaves_no_cluster() -> None:
    with small_disk("20m") as disk:
        with pytest.raises(DataDirectoryUnusable, match=r"No space left on device.*Free some space"):
            EmbeddedPostgres(mounted(disk) / "data").start()
        left = {path.name for path in (mounted(disk) / "data").iterdir()}
        assert left <= {"lockstep.json", "lockstep.lock"}


def test_full_disk_at_start_is_refused_until_there_is_space() -> None:
    with small_disk("120m") as disk:
        data_dir = add_cluster(mounted(disk) / "data")
        with EmbeddedPostgres(data_dir, settings=SMALL):
            pass
        ballast = mounted(disk) / "ballast"
        with pytest.raises(OSError, match="No space left"):
            write_without_end(ballast)
        with pytest.raises(DataDirectoryUnusable, match=r"No space left on device.*Free some space"):
            EmbeddedPostgres(data_dir, settings=SMALL).start()
        ballast.unlink()
        with EmbeddedPostgres(data_dir, settings=SMALL) as server:
            assert notes(server.dsn) == [1]


@pytest.mark.skipif(not is_root(), reason="only root's server runs as another user")
@pytest.mark.parametrize("place", ["data", "below/data"])
def test_directory_that_bars_the_way_is_named_and_left_as_it_is(root: Path, place: str) -> None:
    barrier = root / "private"
    barrier.mkdir(mode=0o700)
    with pytest.raises(DataDirectoryUnusable) as caught:
        EmbeddedPostgres(barrier / place).start()
    assert f"cannot enter {barrier}." in caught.value.message
    assert f"chmod o+x {barrier}" in caught.value.message
    assert stat.S_IMODE(barrier.stat().st_mode) == 0o700


@pytest.mark.skipif(not is_root(), reason="needs another user's directory")
def test_directory_that_an_ordinary_user_may_not_write_is_refused(root: Path) -> None:
    python = ordinary_python()
    if python is None:
        pytest.skip(f"no Python of this version that the user {ORDINARY_USER} can execute")
    for path in (root / "data", root):
        with Host(path, python=python, user=ORDINARY_USER) as host:
            said = host.wait_for("error", "dsn")
        assert said["error"] == "DataDirectoryUnusable"
        assert "Permission denied" in said["message"]


@pytest.mark.skipif(not is_root(), reason="needs a folder of root's")
def test_folder_of_root_is_to_be_handed_over(root: Path) -> None:
    (root / "pgdata").mkdir()
    with pytest.raises(DataDirectoryUnusable, match=r"belongs to root, .*\. Hand it over with: chown -R "):
        EmbeddedPostgres(root, settings=SMALL).start()


@pytest.mark.skipif(not is_root(), reason="needs a cluster of another user")
def test_cluster_of_another_user_than_the_named_one_is_refused(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = (data_dir / "pgdata").owner()
    named = next(name for name in ("nobody", "daemon") if name != owner)
    monkeypatch.setenv("LOCKSTEP_POSTGRES_USER", named)
    with pytest.raises(DataDirectoryUnusable, match=f"belongs to {owner}, but PostgreSQL is to run as {named}"):
        EmbeddedPostgres(data_dir).start()


def test_any_other_failure_shows_the_end_of_the_log(data_dir: Path) -> None:
    server = EmbeddedPostgres(data_dir, settings={"shared_buffers": "plenty"})
    with pytest.raises(ServerStartFailed, match='invalid value for parameter "shared_buffers": "plenty"'):
        server.start()
    assert not server.is_running()
    with EmbeddedPostgres(data_dir, settings=SMALL) as other:
        assert notes(other.dsn) == [1]


def test_start_that_takes_too_long_is_stopped(data_dir: Path) -> None:
    with pytest.raises(ServerStartFailed, match="not ready after 0 seconds"):
        EmbeddedPostgres(data_dir, start_timeout=0.0, settings=SMALL).start()
    assert processes_in(data_dir / "pgdata") == []


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (
            'FATAL:  could not write lock file "postmaster.pid": No space left on device',
            DataDirectoryUnusable,
        ),
        ('FATAL:  could not open file "x": Read-only file system', DataDirectoryUnusable),
        ('FATAL:  could not open directory "x": Permission denied', DataDirectoryUnusable),
        ("FATAL:  could not create shared memory segment: No space left on device", ServerStartFailed),
        ('FATAL:  data directory "x" has wrong ownership', ServerStartFailed),
    ],
)
def test_log_line_decides_the_error(line: str, kind: type[EmbeddedError]) -> None:
    error = program_failure("PostgreSQL", Path("/data"), f"LOG:  starting\n{line}\nLOG:  shut down\n")
    assert type(error) is kind
    assert line in error.message

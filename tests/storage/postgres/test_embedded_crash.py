"""The embedded PostgreSQL after `kill -9` of any of its parts, and beside other processes."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from lockstep.errors import DataDirectoryInUse, ServerStartFailed
from lockstep.storage.postgres.embedded import EmbeddedPostgres, launcher, running_dsn
from lockstep.storage.postgres.embedded.processes import ProcessIdentity, identify, send_signal
from lockstep.storage.postgres.embedded.programs import bundled_install, launch_command, server_account
from lockstep.storage.postgres.embedded.server import RESTART_ATTEMPTS_MAX
from support.databases import scratch_directory
from support.embedded_tools import (
    SMALL,
    Host,
    add_cluster,
    can_connect,
    notes,
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


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process of the server's user that has nothing to do with PostgreSQL."""
    user = server_account(Path("/nowhere")).uid
    with subprocess.Popen(["sleep", "1000"], user=user) as process:
        yield process
        process.kill()


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def write_record(data_dir: Path, **fields: object) -> None:
    (data_dir / "lockstep.json").write_text(json.dumps(fields))


def test_start_after_the_postmaster_was_killed_recovers(data_dir: Path) -> None:
    progress: list[str] = []
    server = EmbeddedPostgres(data_dir, settings=SMALL, restart=False, on_progress=progress.append)
    query(server.start(), "insert into note values (2)")
    kill(postmaster_pid(data_dir))
    wait_until(lambda: not server.is_running())
    assert running_dsn(data_dir) is None
    assert notes(server.start()) == [1, 2]
    assert "recovering after a crash …" in progress
    assert progress[-1] == "ready"
    server.stop()


def test_start_after_all_processes_were_killed_recovers(data_dir: Path) -> None:
    server = EmbeddedPostgres(data_dir, settings=SMALL, restart=False)
    query(server.start(), "insert into note values (2)")
    for pid in processes_in(data_dir / "pgdata"):
        kill(pid)
    wait_until(lambda: not server.is_running())
    assert notes(server.start()) == [1, 2]
    server.stop()


def test_killed_postmaster_is_restarted_while_a_client_reconnects(data_dir: Path) -> None:
    progress: list[str] = []
    with EmbeddedPostgres(data_dir, settings=SMALL, on_progress=progress.append) as server:
        for number in (2, 3):
            pid = postmaster_pid(data_dir)
            query(server.dsn, f"insert into note values ({number})")
            kill(pid)
            wait_until(lambda: can_connect(server.dsn) and postmaster_pid(data_dir) != pid)  # noqa: B023
        wait_until(server.is_running)
        assert notes(server.dsn) == [1, 2, 3]
        assert running_dsn(data_dir) == server.dsn
        assert progress.count("ready") == 3
        assert progress.count("the server died (status -9)") == 2


def test_start_waits_for_a_restart_that_is_under_way(data_dir: Path) -> None:
    with EmbeddedPostgres(data_dir, settings=SMALL) as server:
        for _ in range(3):
            kill(postmaster_pid(data_dir))
            wait_until(lambda: not server.is_running() or can_connect(server.dsn))
            assert server.start() == server.dsn
            assert server.is_running()
        assert notes(server.dsn) == [1]


def test_restart_is_given_up_after_some_attempts(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lockstep.storage.postgres.embedded.server.RESTART_DELAY", 0.001)
    gave_up = threading.Event()
    server = EmbeddedPostgres(
        data_dir, settings=SMALL, on_progress=lambda text: gave_up.set() if "gave up" in text else None
    )
    server.start()
    control, hidden = data_dir / "pgdata/global/pg_control", data_dir / "pg_control"
    control.rename(hidden)
    kill(postmaster_pid(data_dir))
    assert gave_up.wait(30)
    assert not server.is_running()
    with pytest.raises(ServerStartFailed, match="pg_control"):
        server.start()
    hidden.rename(control)
    assert notes(server.start()) == [1]
    server.stop()


def test_backend_that_computes_on_after_its_postmaster_died_is_ended(data_dir: Path) -> None:
    server = EmbeddedPostgres(data_dir, settings=SMALL, restart=False)
    connection = psycopg.connect(server.start(), autocommit=True)
    backend_pid = connection.info.backend_pid
    # A loop that never looks whether the postmaster lives.
    connection.pgconn.send_query(b"do $$ begin loop end loop; end $$")
    wait_until(lambda: is_active(server.dsn, backend_pid))
    kill(postmaster_pid(data_dir))
    wait_until(lambda: not server.is_running())
    assert identify(backend_pid) is not None
    assert notes(server.start()) == [1]
    assert identify(backend_pid) is None
    connection.close()
    server.stop()


def is_active(dsn: str, pid: int) -> bool:
    return query(dsn, f"select state from pg_stat_activity where pid = {pid}") == [("active",)]


def test_server_goes_away_when_our_process_is_killed(data_dir: Path) -> None:
    with Host(data_dir) as host:
        dsn = host.wait_for("dsn")["dsn"]
        query(dsn, "insert into note values (2)")
        host.kill()
    wait_until(lambda: processes_in(data_dir / "pgdata") == [])
    assert running_dsn(data_dir) is None
    with EmbeddedPostgres(data_dir, settings=SMALL) as server:
        assert notes(server.dsn) == [1, 2]


def test_short_socket_directory_of_a_killed_owner_is_used_again(root: Path) -> None:
    data_dir = add_cluster(root / ("long" * 40))
    with Host(data_dir) as host:
        dsn = host.wait_for("dsn")["dsn"]
        host.kill()
    with EmbeddedPostgres(data_dir, settings=SMALL) as server:
        assert server.dsn == dsn
        assert notes(dsn) == [1]


def test_start_ends_the_server_of_a_killed_owner_that_hangs(data_dir: Path) -> None:
    progress: list[str] = []
    with Host(data_dir) as host:
        host.wait_for("dsn")
        pid = postmaster_pid(data_dir)
        os.kill(pid, signal.SIGSTOP)
        host.kill()
    assert identify(pid) is not None
    with EmbeddedPostgres(data_dir, settings=SMALL, start_timeout=4.0, on_progress=progress.append) as server:
        assert notes(server.dsn) == [1]
    assert identify(pid) is None
    assert f"waiting for the previous server (process {pid}) to stop" in progress


def test_second_process_is_refused_with_the_name_of_the_first(data_dir: Path) -> None:
    with Host(data_dir) as first:
        dsn = first.wait_for("dsn")["dsn"]
        assert running_dsn(data_dir) == dsn
        with pytest.raises(DataDirectoryInUse) as caught:
            EmbeddedPostgres(data_dir).start()
        assert f"process {first.process.pid} (" in caught.value.message
        assert "embedded_host.py" in caught.value.message
        assert " since 2" in caught.value.message
        assert caught.value.details["pid"] == first.process.pid
        assert can_connect(dsn)
    with EmbeddedPostgres(data_dir, settings=SMALL) as server:
        assert server.is_running()


def test_lock_does_not_reach_the_server(data_dir: Path) -> None:
    with EmbeddedPostgres(data_dir, settings=SMALL):
        inherited = [os.readlink(link) for link in Path(f"/proc/{postmaster_pid(data_dir)}/fd").iterdir()]
        assert not [path for path in inherited if path.endswith((".lock", ".json"))]


def test_owner_that_has_not_signed_yet_is_in_use_without_a_name(
    data_dir: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    write_record(data_dir, owner={"pid": sleeper.pid, "start_ticks": 1, "boot_id": "another"})
    with open(data_dir / "lockstep.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(DataDirectoryInUse) as caught:
            EmbeddedPostgres(data_dir).start()
    assert str(sleeper.pid) not in caught.value.message


def test_reused_pid_is_not_trusted(data_dir: Path, sleeper: subprocess.Popen[bytes]) -> None:
    identity = identify(sleeper.pid)
    assert identity is not None
    stranger = {"pid": sleeper.pid, "start_ticks": identity.start_ticks - 1, "boot_id": identity.boot_id}
    write_record(data_dir, owner=stranger, server=stranger, socket_dir=str(data_dir / "run"))
    stale = f"{sleeper.pid}\n{data_dir}/pgdata\n1\n5432\n{data_dir}/run\n\n  1 1\nready   \n"
    (data_dir / "pgdata/postmaster.pid").write_text(stale)
    assert running_dsn(data_dir) is None
    with EmbeddedPostgres(data_dir, settings=SMALL) as server:
        assert notes(server.dsn) == [1]
        assert postmaster_pid(data_dir) != sleeper.pid
    assert sleeper.poll() is None


def test_pid_reused_by_a_server_of_another_cluster_is_left_alone(root: Path, data_dir: Path) -> None:
    other_dir = add_cluster(root / "other")
    with EmbeddedPostgres(other_dir, settings=SMALL) as other:
        pid = postmaster_pid(other_dir)
        write_record(data_dir, server={"pid": pid, "start_ticks": 1, "boot_id": "another"})
        (data_dir / "pgdata/postmaster.pid").write_text(f"{pid}\n{data_dir}/pgdata\n1\n5432\n\n\n  1 1\nready\n")
        with EmbeddedPostgres(data_dir, settings=SMALL) as server:
            assert notes(server.dsn) == [1]
        assert postmaster_pid(other_dir) == pid
        assert can_connect(other.dsn)


def test_signal_goes_to_the_very_process_or_to_none(sleeper: subprocess.Popen[bytes]) -> None:
    identity = identify(sleeper.pid)
    assert identity is not None
    assert identity.start_ticks == int(Path(f"/proc/{sleeper.pid}/stat").read_text().split()[21])
    send_signal(ProcessIdentity(sleeper.pid, identity.start_ticks - 1, identity.boot_id), signal.SIGKILL)
    assert identity.is_alive()
    send_signal(identity, signal.SIGKILL)
    assert sleeper.wait(10) == -signal.SIGKILL
    send_signal(identity, signal.SIGKILL)


def test_server_that_somebody_else_started_on_the_cluster_is_left_alone(data_dir: Path) -> None:
    account = server_account(data_dir / "pgdata")
    run = data_dir / "own"
    run.mkdir(mode=0o700)
    account.take_over(run)
    postgres = bundled_install().program("postgres")
    program = [postgres, "-D", data_dir / "pgdata", "-c", "listen_addresses=", "-k", run]
    command = launch_command(program, account, death_signal=signal.SIGINT)
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as stranger:
        wait_until(lambda: can_connect(f"postgresql://lockstep@/lockstep?host={run}"))
        with pytest.raises(DataDirectoryInUse, match=f"process {stranger.pid} ") as caught:
            EmbeddedPostgres(data_dir).start()
        assert "postgres" in caught.value.message
        assert stranger.poll() is None
        stranger.send_signal(signal.SIGINT)
        assert stranger.wait(20) == 0


def test_killed_initdb_leaves_nothing_that_looks_initialised(root: Path) -> None:
    data_dir = root / "data"
    with Host(data_dir) as host:
        wait_until(lambda: list(data_dir.glob("pgdata.new-*/PG_VERSION")))
        host.kill()
    assert not (data_dir / "pgdata").exists()
    assert list(data_dir.glob("pgdata.new-*"))
    with EmbeddedPostgres(data_dir, settings=SMALL) as server:
        assert can_connect(server.dsn)
    assert not list(data_dir.glob("pgdata.new-*"))


@pytest.mark.parametrize(
    ("supervisor_pid", "has_go"), [("1", False), (str(os.getpid()), True)], ids=["reparented", "end of file"]
)
def test_launcher_does_nothing_when_its_supervisor_is_gone(supervisor_pid: str, has_go: bool) -> None:
    go_read, go_write = os.pipe()
    os.close(go_write)
    go_fd = go_read if has_go else -1
    command = [sys.executable, launcher.__file__, supervisor_pid, "2", str(go_fd), "-", "/bin/echo", "alive"]
    done = subprocess.run(command, pass_fds=[go_read], capture_output=True, text=True, check=False)
    os.close(go_read)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "the supervisor is gone\n")


def test_restart_of_a_server_is_never_given_up_where_that_is_wanted(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockstep.storage.postgres.embedded.server.RESTART_DELAY", 0.001)
    starts: list[str] = []
    server = EmbeddedPostgres(data_dir, settings=SMALL, on_progress=starts.append, restart_attempts_max=None)
    server.start()
    control, hidden = data_dir / "pgdata/global/pg_control", data_dir / "pg_control"
    control.rename(hidden)
    kill(postmaster_pid(data_dir))
    wait_until(lambda: starts.count("starting …") > RESTART_ATTEMPTS_MAX + 3, timeout=30)
    hidden.rename(control)
    wait_until(server.is_running, timeout=30)
    assert notes(server.dsn) == [1]
    server.stop()

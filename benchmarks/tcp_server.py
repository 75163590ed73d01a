"""A PostgreSQL that JDBC can reach. The embedded one has no TCP port, and Java's driver knows no other way."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from benchmarks.harness import progress
from lockstep.storage.postgres.embedded import EmbeddedPostgres
from lockstep.storage.postgres.embedded.cluster import DEFAULTS, SUPERUSER, memory_bytes, shared_buffers_mb
from lockstep.storage.postgres.embedded.programs import bundled_install, reachable_install, server_account

_START_SECONDS_MAX = 60


@contextmanager
def running_tcp_server(dsn: str | None = None) -> Iterator[str]:
    """The given server, or PostgreSQL with the embedded one's settings on a port of 127.0.0.1, with a password; gone
    with its data afterwards."""
    if dsn is not None:
        yield dsn
        return
    directory = Path(tempfile.mkdtemp(prefix="lockstep-bench-"))
    directory.chmod(0o755)
    try:
        password = secrets.token_hex(16)
        cluster = _make_cluster(directory / "data", password)
        with _started(cluster, directory) as port:
            yield f"postgresql://{SUPERUSER}:{password}@127.0.0.1:{port}/postgres"
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _make_cluster(data: Path, password: str) -> Path:
    with (
        EmbeddedPostgres(data, on_progress=lambda text: progress(f"PostgreSQL: {text}")) as server,
        psycopg.connect(server.superuser_dsn, autocommit=True) as connection,
    ):
        connection.execute(f"alter role {SUPERUSER} password '{password}'")
        [[cluster]] = connection.execute("show data_directory").fetchall()
    rules = Path(cluster) / "pg_hba.conf"
    rules.write_text("host all all 127.0.0.1/32 password\n" + rules.read_text())
    return Path(cluster)


@contextmanager
def _started(cluster: Path, directory: Path) -> Iterator[int]:
    account = server_account(cluster)
    install = reachable_install(bundled_install(), account)
    port = _free_port()
    settings = {
        **DEFAULTS,
        "shared_buffers": f"{shared_buffers_mb(memory_bytes())}MB",
        "listen_addresses": "127.0.0.1",
        "port": str(port),
        "unix_socket_directories": "",
    }
    program = [install.program("postgres"), "-D", cluster, *[f"--{name}={value}" for name, value in settings.items()]]
    other = {"user": account.uid, "group": account.gid, "extra_groups": account.groups} if account.is_other else {}
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(program, stdout=log, stderr=log, cwd="/", **other)  # type: ignore[call-overload]
    try:
        _await_port(port, process)
        yield port
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _await_port(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_SECONDS_MAX
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"PostgreSQL ended with {os.waitstatus_to_exitcode(process.returncode)}")
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise RuntimeError("PostgreSQL did not start in time")

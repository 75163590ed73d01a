"""Shared by the tests of the embedded PostgreSQL: directories, clusters, processes, and conditions."""

from __future__ import annotations

import atexit
import json
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import psycopg

import lockstep
from lockstep.storage.postgres.embedded import EmbeddedPostgres
from support.databases import scratch_base, scratch_directory

HOST_PROGRAM = Path(__file__).with_name("embedded_host.py")
ORDINARY_USER = "nobody"
# A small cache starts and dies faster.
SMALL = {"shared_buffers": "16MB"}


def is_root() -> bool:
    return os.geteuid() == 0


def wait_until(condition: Callable[[], object], *, timeout: float = 20.0) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout:g} seconds")
        time.sleep(0.01)


@cache
def template_cluster() -> Path:
    """A cluster with one row in it, made once."""
    directory = Path(tempfile.mkdtemp(prefix="lockstep-template-", dir=scratch_base()))
    atexit.register(shutil.rmtree, directory)
    with EmbeddedPostgres(directory, settings=SMALL) as server:
        query(server.dsn, "create table note as select 1 as n")
    return directory / "pgdata"


def add_cluster(data_dir: Path) -> Path:
    """Put a copy of the template into a data directory, which spares an initdb."""
    data_dir.mkdir(exist_ok=True)
    subprocess.run(["cp", "-a", template_cluster(), data_dir / "pgdata"], check=True)
    return data_dir


def query(dsn: str, statement: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        cursor = connection.execute(statement)
        return cursor.fetchall() if cursor.description else []


def notes(dsn: str) -> list[int]:
    return [row[0] for row in query(dsn, "select n from note order by n")]


def can_connect(dsn: str) -> bool:
    try:
        return query(dsn, "select 1") == [(1,)]
    except psycopg.OperationalError:
        return False


def postmaster_pid(data_dir: Path) -> int:
    return int((data_dir / "pgdata/postmaster.pid").read_text().splitlines()[0])


def processes_in(cluster: Path) -> list[int]:
    """Every process that works inside the cluster, whatever it executes."""
    return [int(proc.name) for proc in Path("/proc").iterdir() if proc.name.isdecimal() and _is_in(proc, cluster)]


def _is_in(proc: Path, cluster: Path) -> bool:
    try:
        return os.readlink(proc / "cwd") == str(cluster)
    except OSError:
        return False


class Host:
    """Another process that runs an embedded PostgreSQL."""

    def __init__(self, data_dir: Path, *, python: str = sys.executable, user: str | None = None) -> None:
        switch: dict[str, Any] = {}
        if user is not None:
            switch = {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []}
        self.process = subprocess.Popen(
            [python, str(HOST_PROGRAM), str(data_dir)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=python_environment(),
            cwd="/",
            **switch,
        )
        self.said: list[dict[str, Any]] = []

    def wait_for(self, *keys: str) -> dict[str, Any]:
        """Return the next line that has one of these keys."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(json.loads(line))
            if any(key in self.said[-1] for key in keys):
                return self.said[-1]
        raise AssertionError(f"the host ended; it said {self.said}")

    def kill(self) -> None:
        self.process.kill()
        self.close()

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait(60)

    def __enter__(self) -> Host:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def python_environment() -> dict[str, str]:
    """The environment in which another interpreter finds Lockstep and what it needs."""
    folders = [Path(lockstep.__file__).parents[1], Path(psycopg.__file__).parents[1]]
    return {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(map(str, folders))}


@cache
def ordinary_python() -> str | None:
    """An interpreter of our version that an ordinary user can execute, if there is one."""
    for python in (
        sys.executable,
        f"/usr/bin/python{sys.version_info[0]}.{sys.version_info[1]}",
        "/usr/bin/python3",
    ):
        question = "import sys, lockstep.storage.postgres.embedded; print(sys.version_info[:2])"
        try:
            answer = subprocess.run(
                [python, "-c", question],
                user=ORDINARY_USER,
                extra_groups=[],
                env=python_environment(),
                cwd="/",
                capture_output=True,
                text=True,
                check=True,
            )
        except (OSError, subprocess.CalledProcessError):
            continue
        if answer.stdout.strip() == str(sys.version_info[:2]):
            return python
    return None


@contextmanager
def small_disk(size: str) -> Iterator[Path | None]:
    """A separate file system with little space; None if we may not mount one."""
    with scratch_directory() as directory:
        mount = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=0755", "tmpfs", str(directory)]
        if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
            yield None
            return
        try:
            yield directory
        finally:
            subprocess.run(["umount", directory], check=True)

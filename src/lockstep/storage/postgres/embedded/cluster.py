"""PostgreSQL's own directory: made whole or not at all, and refused if it is of another major version."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from lockstep.errors import DataDirectoryVersion
from lockstep.storage.postgres.embedded.accounts import Account
from lockstep.storage.postgres.embedded.children import run_program
from lockstep.storage.postgres.embedded.directory import DATABASE, ROLE
from lockstep.storage.postgres.embedded.failures import program_failure, unusable
from lockstep.storage.postgres.embedded.installs import Install
from lockstep.storage.postgres.embedded.processes import kill_processes, postgres_processes

UNFINISHED_PREFIX = "pgdata.new-"


def is_initialised(cluster: Path) -> bool:
    """Say whether there is a cluster; a missing or an empty directory is none yet."""
    if (cluster / "PG_VERSION").is_file():
        return True
    if cluster.exists() and any(cluster.iterdir()):
        raise unusable(cluster.parent, f"{cluster} holds files, but no PostgreSQL cluster", "Move them away.")
    return False


def require_version(cluster: Path, install: Install) -> None:
    """Raise if another major version of PostgreSQL made the cluster."""
    found = (cluster / "PG_VERSION").read_text().strip()
    if found == install.major:
        return
    raise DataDirectoryVersion(
        f"The cluster {cluster} was made by PostgreSQL {found}, but this Lockstep runs PostgreSQL "
        f"{install.version}. Dump it with PostgreSQL {found} (pg_dump) and restore it into a new data "
        f"directory, convert it with pg_upgrade, or choose another data directory.",
        found=found,
        expected=install.major,
    )


def initialise(cluster: Path, install: Install, account: Account, *, timeout: float) -> None:
    """Make the cluster with our database under another name, and rename it when all of it is on disk."""
    scratch = Path(tempfile.mkdtemp(prefix=UNFINISHED_PREFIX, dir=cluster.parent))
    account.take_over(scratch)
    try:
        _run_initdb(scratch, install, account, timeout=timeout)
        _create_database(scratch, install, account, timeout=timeout)
        os.rename(scratch, cluster)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    _sync_directory(cluster.parent)


def remove_unfinished(data_dir: Path) -> None:
    """Remove what an interrupted initialisation left behind."""
    for leftover in data_dir.glob(f"{UNFINISHED_PREFIX}*"):
        # The death signal reaches initdb, but not the backend that it runs.
        kill_processes(postgres_processes(leftover))
        shutil.rmtree(leftover, ignore_errors=True)


def _run_initdb(scratch: Path, install: Install, account: Account, *, timeout: float) -> None:
    program: list[str | Path] = [
        install.program("initdb"),
        f"--pgdata={scratch}",
        f"--username={ROLE}",
        "--encoding=UTF8",
        "--locale=C",
        "--locale-provider=builtin",
        "--builtin-locale=C.UTF-8",
        "--data-checksums",
        # Peer would shut out root, who is not the server's user. The socket's directory lets in no others.
        "--auth-local=trust",
        "--auth-host=reject",
        "--no-instructions",
    ]
    status, output = run_program(program, account, timeout=timeout)
    if status != 0:
        raise program_failure("initdb", scratch.parent, output)


def _create_database(scratch: Path, install: Install, account: Account, *, timeout: float) -> None:
    # A single-user backend needs no socket, and ends with a checkpoint: all is on disk when it returns.
    program: list[str | Path] = [install.program("postgres"), "--single", "-j", "-D", scratch, "template1"]
    status, output = run_program(program, account, timeout=timeout, stdin=f"CREATE DATABASE {DATABASE};\n\n")
    # It goes on after an error and ends with 0.
    if status != 0 or "ERROR:" in output:
        raise program_failure("CREATE DATABASE", scratch.parent, output)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

"""A server that root starts: whose processes they are, and that all goes on without root."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import sysconfig
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import lockstep
from lockstep.storage.postgres.embedded.programs import server_account
from support.databases import scratch_directory
from support.until import wait_until

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root has something to drop")


def _interpreter(directory: Path) -> tuple[str, str]:
    """A Python that the user of PostgreSQL may run, and the path on which it finds what this one finds."""
    account = server_account(directory / "none")
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for candidate in (sys.executable, f"/usr/bin/{version}", f"/usr/local/bin/{version}"):
        if account.can_read(Path(candidate)):
            found = os.pathsep.join([str(Path(lockstep.__file__).parents[1]), sysconfig.get_path("purelib")])
            return candidate, found
    pytest.skip(f"the user {account.name} may run no {version}")


@contextmanager
def _serving(directory: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    python, path = _interpreter(directory)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("LOCKSTEP_")}
    command = [python, "-m", "lockstep", "serve", "--data-dir", str(directory / "data"), "--port", "0", *options]
    with (directory / "server.log").open("a") as log:
        process = subprocess.Popen(
            command, env=environ | {"PYTHONPATH": path}, stdout=subprocess.PIPE, stderr=log, text=True, cwd="/"
        )
    assert process.stdout is not None
    try:
        first = process.stdout.readline()
        assert "listens on" in first, (directory / "server.log").read_text()
        yield process, first.split()[-1]
    finally:
        process.send_signal(signal.SIGTERM)
        process.stdout.read()
        assert process.wait(timeout=60) == 0
        process.stdout.close()


def _push(url: str) -> int:
    body = json.dumps({"items": [{"queue": "hello", "payload": 1}]}).encode()
    with urllib.request.urlopen(urllib.request.Request(f"{url}/api/v1/push", data=body), timeout=30) as answer:
        pushed: int = json.load(answer)[0]["seq"]
    return pushed


def _pop(url: str) -> list[int]:
    address = f"{url}/api/v1/pop/queue/hello?autoAck=true&batch=10&wait=true&timeout=1000"
    try:
        with urllib.request.urlopen(address, timeout=30) as answer:
            return [one["data"] for one in json.load(answer)["messages"]] if answer.status == 200 else []
    except urllib.error.HTTPError as error:
        if error.code != 503:  # the database is not back yet
            raise
        return []


def _processes(pid: int) -> list[int]:
    """A process and all that it has begun."""
    found = [pid]
    for one in found:
        for task in Path(f"/proc/{one}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return found


def _users(pid: int) -> set[int]:
    """Real, effective, saved and file system user of every thread of every process."""
    users: set[int] = set()
    for one in _processes(pid):
        for task in Path(f"/proc/{one}/task").iterdir():
            line = next(line for line in (task / "status").read_text().splitlines() if line.startswith("Uid:"))
            users |= set(map(int, line.split()[1:]))
    return users


def test_no_process_of_a_server_stays_root() -> None:
    with scratch_directory() as directory:
        account = server_account(directory / "none")
        for workers, seq in (("1", 1), ("2", 2)):  # the second time, the directory is that user's
            with _serving(directory, "--workers", workers) as (process, url):
                assert _push(url) == seq
                assert _users(process.pid) == {account.uid}
        log = (directory / "server.log").read_text()
        assert log.count("root_dropped") == 2
        key = (directory / "data" / "encryption.key").stat()
        assert (key.st_uid, key.st_mode & 0o777) == (0, 0o600)


def test_postgres_is_brought_back_without_root() -> None:
    with scratch_directory() as directory, _serving(directory) as (_, url):
        assert _push(url) == 1
        file = directory / "data" / "pgdata" / "postmaster.pid"
        first = int(file.read_text().split()[0])
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: file.exists() and file.read_text().split()[:1] not in ([], [str(first)]))
        _push(url)  # buffered, if the new server is not ready yet
        popped: list[int] = []
        wait_until(lambda: popped.extend(_pop(url)) or len(popped) >= 2)
        assert popped == [1, 1]


def test_links_in_the_directory_are_not_followed(tmp_path: Path) -> None:
    """The directory may be the user's already, who must not get other files by it."""
    from lockstep.storage.postgres.embedded.directory import DataDirectory

    with scratch_directory() as directory:
        account = server_account(directory / "none")
        for name in ("symbolic", "hard"):
            (directory / name).write_text("root's")
        data = directory / "data"
        (data / "spool").mkdir(parents=True)
        (data / "lockstep.json").symlink_to(directory / "symbolic")
        os.link(directory / "hard", data / "postgres.log")
        (data / "spool" / "linked").symlink_to(tmp_path)
        DataDirectory(data).hand_over(account)
        assert (directory / "symbolic").stat().st_uid == 0
        assert (directory / "hard").stat().st_uid == 0
        assert tmp_path.stat().st_uid == 0
        assert (data / "spool").stat().st_uid == account.uid

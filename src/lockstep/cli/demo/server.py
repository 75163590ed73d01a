"""The demo's server and its working directory."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lockstep.errors import InvalidOption, Unavailable
from lockstep.storage.postgres.embedded import running_dsn
from lockstep.storage.postgres.embedded.programs import Account, launch_command

MARK = "made-by-lockstep-demo"
_LISTENS = "listens on "
_ERROR = re.compile(r"^Error: (.+) \(\w+\)$", re.MULTILINE)
"""How a Lockstep program reports why it exits."""
_STOP_SECONDS = 60


@dataclass(frozen=True)
class DemoServer:
    url: str
    dsn: str


def prepare(directory: Path) -> None:
    """An empty directory. The leftovers of an earlier demo are removed; anything else is left alone. Raises
    InvalidOption."""
    try:
        _emptied(directory)
    except OSError as error:
        raise InvalidOption(f"the demo cannot have the directory {directory}: {error}") from error


def _emptied(directory: Path) -> None:
    if directory.exists() and any(directory.iterdir()):
        if not (directory / MARK).exists():
            raise InvalidOption(f"{directory} is not empty, and no demo made it: name another directory with --dir")
        if running_dsn(str(directory / "data")) is not None:
            raise InvalidOption(f"a demo runs in {directory}: wait for its end, or name another directory with --dir")
        shutil.rmtree(directory)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / MARK).touch()


@contextmanager
def running_server(directory: Path, *, port: int) -> Iterator[DemoServer]:
    """A server with its own PostgreSQL, in a process that Ctrl-C does not reach. It ends with the context, or with this
    process.
    """
    data = str(directory / "data")
    ourselves = Account("", os.getuid(), os.getgid(), (), is_other=False)
    serve = [sys.executable, "-m", "lockstep", "serve", "--data-dir", data, "--port", str(port)]
    program = launch_command(serve, ourselves, death_signal=signal.SIGTERM)
    with (directory / "server.log").open("w") as log:
        process = subprocess.Popen(program, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True)
    try:
        yield DemoServer(_url(process, directory / "server.log"), running_dsn(data) or "")
    finally:
        _stop(process)


def _url(process: subprocess.Popen[str], log: Path) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if _LISTENS in line:
            return line.partition(_LISTENS)[2].strip()
    said = log.read_text()[-500:].strip()
    error = _ERROR.search(said)
    raise Unavailable(f"the server did not start: {(error[1] if error else said) or 'it said nothing'}")


def _stop(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.communicate(timeout=_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()

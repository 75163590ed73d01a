"""What a server that died left behind: processes that still use its memory, and files that name its pid."""

from __future__ import annotations

import signal
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from lockstep.errors import ServerStartFailed
from lockstep.storage.postgres.embedded.directory import DataDirectory, Record, in_use
from lockstep.storage.postgres.embedded.processes import (
    KILL_PATIENCE,
    ProcessIdentity,
    end_processes,
    postgres_processes,
)
from lockstep.storage.postgres.embedded.sockets import clean_socket_dir

# Backends notice by themselves that their postmaster is gone, unless they are busy computing.
BACKEND_STEPS = ((0, 2.0), (signal.SIGQUIT, 3.0), (signal.SIGKILL, KILL_PATIENCE))
START_TIME_LINE = 2


def clear_leftovers(
    directory: DataDirectory, record: Record, *, timeout: float, progress: Callable[[str], None]
) -> None:
    """Make way for a new server: end the recorded one and its processes, then remove their lock files.

    We hold the lock on the directory, so the recorded server's owner is dead. A server that we did not
    start is never touched, but reported as the user of the directory.
    """
    _refuse_foreign_server(directory, record)
    if record.server is not None and record.server.is_alive():
        progress(f"waiting for the previous server (process {record.server.pid}) to stop")
        _end([record.server], _server_steps(timeout))
    if backends := postgres_processes(directory.cluster):
        progress(f"waiting for {len(backends)} processes of the previous server to end")
        _end(backends, BACKEND_STEPS)
    # PostgreSQL judges these files by the pid alone, and would not start if that pid is in use again.
    (directory.cluster / "postmaster.pid").unlink(missing_ok=True)
    if record.socket_dir:
        clean_socket_dir(Path(record.socket_dir))


def _refuse_foreign_server(directory: DataDirectory, record: Record) -> None:
    lines = directory.postmaster_file()
    # A single-user server writes its pid with a minus sign.
    pid = abs(int(lines[0])) if lines and lines[0].lstrip("-").isdecimal() else None
    for process in postgres_processes(directory.cluster):
        if process.pid == pid and process != record.server:
            raise in_use(directory.path, process, _start_time(lines))


def _start_time(lines: list[str]) -> datetime | None:
    if len(lines) > START_TIME_LINE and lines[START_TIME_LINE].isdecimal():
        return datetime.fromtimestamp(int(lines[START_TIME_LINE]), UTC)
    return None


def _server_steps(timeout: float) -> tuple[tuple[int, float], ...]:
    return (signal.SIGINT, timeout * 0.5), (signal.SIGQUIT, timeout * 0.25), (signal.SIGKILL, timeout * 0.25)


def _end(processes: list[ProcessIdentity], steps: tuple[tuple[int, float], ...]) -> None:
    if remaining := end_processes(processes, steps):
        pids = ", ".join(str(process.pid) for process in remaining)
        raise ServerStartFailed(f"Processes of the previous server do not end: {pids}.")

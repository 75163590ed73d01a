"""Identifies processes of this machine, and ends those that are provably ours.

A pid alone proves nothing, since the kernel reuses it. A process is named by its pid, its start
time in clock ticks since boot, and the boot itself.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import msgspec

PROC = Path("/proc")
POLL_INTERVAL = 0.02
# A killed process still has its memory to give back, and may have a write to wait for.
KILL_PATIENCE = 10.0


class ProcessIdentity(msgspec.Struct, frozen=True):
    """One process, never confused with a later one that got the same pid."""

    pid: int
    start_ticks: int
    boot_id: str

    def is_alive(self) -> bool:
        """Say whether this very process still runs; a zombie does not."""
        return identify(self.pid) == self


@cache
def boot_id() -> str:
    """Return the kernel's name for the time since it booted."""
    return (PROC / "sys/kernel/random/boot_id").read_text().strip()


def identify(pid: int) -> ProcessIdentity | None:
    """Return the identity of the process that has this pid now, or None if there is none but a zombie."""
    try:
        stat = (PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    # The second field is the command's name in parentheses and may hold spaces and parentheses itself.
    fields = stat.rpartition(")")[2].split()
    state, start_ticks = fields[0], int(fields[19])
    return None if state in "ZX" else ProcessIdentity(pid, start_ticks, boot_id())


def identify_self() -> ProcessIdentity:
    """Return our own identity."""
    identity = identify(os.getpid())
    if identity is None:
        raise RuntimeError("/proc does not show this process")
    return identity


def command_line(pid: int) -> str:
    """Return the command line of a process for people to read; empty if it cannot be read."""
    try:
        raw = (PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return ""
    return " ".join(part.decode(errors="replace") for part in raw.split(b"\0") if part)


def postgres_processes(cluster: Path) -> list[ProcessIdentity]:
    """Return every live process that executes a `postgres` inside this very cluster directory.

    All of PostgreSQL's processes work there, and the backends of a dead postmaster still do.
    """
    try:
        home = cluster.stat()
    except OSError:
        return []
    pids = (int(entry.name) for entry in PROC.iterdir() if entry.name.isdecimal())
    found = (identify(pid) for pid in pids if _works_in(pid, home))
    return [identity for identity in found if identity is not None]


def send_signal(process: ProcessIdentity, signum: int) -> None:
    """Signal this very process; do nothing if it is gone."""
    try:
        # The descriptor pins the process, so the check cannot be outrun by a reuse of the pid.
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    try:
        if process.is_alive():
            signal.pidfd_send_signal(descriptor, signum)
    except ProcessLookupError:
        return
    finally:
        os.close(descriptor)


def wait_gone(processes: Iterable[ProcessIdentity], timeout: float) -> list[ProcessIdentity]:
    """Wait until all of them are gone; return those that remain after the timeout."""
    deadline = time.monotonic() + timeout
    remaining = [process for process in processes if process.is_alive()]
    while remaining and time.monotonic() < deadline:
        time.sleep(POLL_INTERVAL)
        remaining = [process for process in remaining if process.is_alive()]
    return remaining


def end_processes(processes: Iterable[ProcessIdentity], steps: Iterable[tuple[int, float]]) -> list[ProcessIdentity]:
    """Send each step's signal and give it that many seconds; return what even the last one left."""
    remaining = list(processes)
    for signum, patience in steps:
        for process in remaining:
            send_signal(process, signum)
        remaining = wait_gone(remaining, patience)
    return remaining


def kill_processes(processes: Iterable[ProcessIdentity]) -> None:
    """Kill them and wait until they are gone."""
    end_processes(processes, [(signal.SIGKILL, KILL_PATIENCE)])


def _works_in(pid: int, home: os.stat_result) -> bool:
    process = PROC / str(pid)
    try:
        executable = os.readlink(process / "exe").removesuffix(" (deleted)")
        return os.path.basename(executable) == "postgres" and os.path.samestat((process / "cwd").stat(), home)
    except OSError:
        return False

"""What processes spend: CPU seconds by pid, from /proc."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pids: Iterable[int]) -> float:
    """Of these processes, with the children that have ended."""
    return sum(map(_of_one, pids))


def _of_one(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return sum(int(field) for field in fields[11:15]) / _TICKS


def cpu_seconds_exact(pids: Iterable[int]) -> float:
    """Of the threads of these processes that run now, by the scheduler's own clock: a tick is as long as ten calls."""
    return sum(map(_exact, pids)) / 1e9


def _exact(pid: int) -> int:
    spent = 0
    for task in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        try:
            spent += int(task.read_text().split()[0])
        except (FileNotFoundError, ProcessLookupError):
            continue
    return spent


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def children(pid: int) -> list[int]:
    """The process and all that descend from it."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents.setdefault(parent(int(entry.name)), []).append(int(entry.name))
            except (FileNotFoundError, ProcessLookupError):
                continue
    found = [pid]
    for each in found:
        found += parents.get(each, [])
    return found

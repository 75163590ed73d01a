"""SIGSTOP: nothing is closed, and nobody is told."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def stopped(pids: list[int]) -> Iterator[None]:
    _signal(pids, signal.SIGSTOP)
    try:
        yield
    finally:
        _signal(pids, signal.SIGCONT)


def _signal(pids: list[int], number: signal.Signals) -> None:
    assert pids
    for pid in pids:
        with suppress(ProcessLookupError):  # a backend may end by itself
            os.kill(pid, number)


def group_of(leader: int) -> list[int]:
    """A server and its workers, which have a process group of their own."""
    assert os.getpgid(leader) == leader
    return [pid for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))) if _has_group(pid, leader)]


def _has_group(pid: int, leader: int) -> bool:
    with suppress(ProcessLookupError):
        return os.getpgid(pid) == leader
    return False

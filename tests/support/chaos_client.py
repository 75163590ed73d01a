"""Shared by the clients of the kill -9 tests: a log on disk, and a signal to end."""

from __future__ import annotations

import asyncio
import os
import sys

from support.history import Recorder

INPUT = 0
RETRY_SECONDS = 0.05


class DurableLog(Recorder):
    """A log; everything up to the last `sync` is on disk."""

    def sync(self) -> None:
        assert self._file is not None
        os.fsync(self._file)


def input_ended() -> asyncio.Event:
    """Set when standard input ends: because the test closes it, or is gone."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()

    def read() -> None:
        if not os.read(INPUT, 4096):
            loop.remove_reader(INPUT)
            ended.set()

    loop.add_reader(INPUT, read)
    return ended


def argument() -> bytes:
    return sys.argv[1].encode()

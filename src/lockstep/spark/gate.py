"""The gate through which the batches of a query go, so that whoever stops the query can wait for the one that is being
worked on.

Spark interrupts a batch wherever it is. One that is called back in Python then fails with a long text, which Spark
searches by a regular expression that overflows the stack of its thread.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

_POLL_SECONDS = 0.2


class Stopping(Exception):
    """The query is being stopped, and this batch is not begun."""


class Gate:
    """Lets one batch through at a time, and none once it is closed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._closed = threading.Event()

    def close(self) -> None:
        """From now on no batch begins; a running batch finishes."""
        self._closed.set()

    def await_opening(self, opened: threading.Event) -> None:
        """Wait until the event is set. Raises Stopping."""
        while not opened.wait(_POLL_SECONDS):
            self._check()

    @contextmanager
    def passing(self) -> Iterator[None]:
        """For as long as a batch is worked on. Raises Stopping."""
        while not self._lock.acquire(timeout=_POLL_SECONDS):
            self._check()
        try:
            self._check()
            yield
        finally:
            self._lock.release()

    @contextmanager
    def emptied(self, seconds: float) -> Iterator[bool]:
        """Wait for the running batch; returns whether it ended in time."""
        held = self._lock.acquire(timeout=seconds)
        try:
            yield held
        finally:
            if held:
                self._lock.release()

    def _check(self) -> None:
        if self._closed.is_set():
            raise Stopping

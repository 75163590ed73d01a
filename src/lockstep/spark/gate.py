"""The gate that every batch of a query passes, so that stopping the query can wait for the current batch.

Spark interrupts a batch at any point. A batch in a Python callback then fails with a long text, and Spark searches that
with a regular expression that overflows its thread's stack.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

_POLL_SECONDS = 0.2


class Stopping(Exception):
    """The query is being stopped, and this batch does not begin."""


class Gate:
    """Lets one batch pass at a time, and none after it is closed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._closed = threading.Event()

    def close(self) -> None:
        """Lets no new batch begin; a running batch finishes."""
        self._closed.set()

    def await_opening(self, opened: threading.Event) -> None:
        """Wait until the event is set. Raises Stopping."""
        while not opened.wait(_POLL_SECONDS):
            self._check()

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Held while a batch runs. Raises Stopping."""
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

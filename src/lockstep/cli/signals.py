"""Signals that end a command."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def terminating() -> Iterator[None]:
    """SIGTERM ends the command like Ctrl-C: it stops the processes that it started and removes its temporary files."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with handling(signal.SIGTERM, interrupt):
        yield


@contextmanager
def handling(number: signal.Signals, handle: Callable[..., None]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(number, handle)
    try:
        yield
    finally:
        signal.signal(number, before)

"""What the client needs of threads: the twin of the module of the same name for asyncio. Written by hand."""

from __future__ import annotations

import contextlib
import inspect
import os
import signal
import threading
from collections.abc import Callable, Iterator
from time import monotonic, sleep
from typing import Any, Generic, TypeVar

from lockstep.errors import InvalidRequest

T = TypeVar("T")

Handler = Callable[[Any], object]
H = TypeVar("H", bound=Handler)
"""So that a function keeps its type when it becomes a handler."""

POLL_SECONDS = 2.0
"""How long one poll of a consumer waits for messages. A thread that waits for an answer cannot be interrupted, so
that this is how long a stop may take."""

Condition = threading.Condition
Lock = threading.Lock

__all__ = [
    "POLL_SECONDS",
    "Condition",
    "Event",
    "H",
    "Handler",
    "Handover",
    "Lock",
    "Task",
    "check_handler",
    "current",
    "monotonic",
    "race",
    "sleep",
    "stopping_on_signals",
]


class Event:
    """An event that can be waited for with a limit."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        self._event.set()

    def clear(self) -> None:
        self._event.clear()

    def is_set(self) -> bool:
        return self._event.is_set()

    def wait(self, timeout_seconds: float | None = None) -> bool:
        """Whether it was set in time."""
        return self._event.wait(_limited(timeout_seconds))


class Task:
    """Something that runs in the background. What it raises is kept, and raised by `result`."""

    def __init__(self, function: Callable[..., object], *arguments: Any, name: str) -> None:
        self._failure: BaseException | None = None
        # The thread itself counts as ended once a wait for it was interrupted, at least in Python 3.11 and 3.12.
        self._ended = threading.Event()
        self._process = os.getpid()
        # A handler that never ends must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, args=(function, arguments), name=name, daemon=True)
        self._thread.start()

    def _run(self, function: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        try:
            function(*arguments)
        except BaseException as failure:
            self._failure = failure
        finally:
            self._ended.set()

    def join(self, timeout_seconds: float | None = None) -> bool:
        """Whether it has ended, in time. A thread does not come along in a fork: there it has."""
        return os.getpid() != self._process or self._ended.wait(_limited(timeout_seconds))

    def cancel(self) -> None:
        """A thread cannot be cancelled: it goes on, and what it says about its messages no longer counts."""

    def result(self) -> None:
        """Raise what an ended task raised."""
        if self._failure is not None:
            raise self._failure


def _limited(timeout_seconds: float | None) -> float | None:
    """No lock waits longer than some centuries."""
    return None if timeout_seconds is None else min(timeout_seconds, threading.TIMEOUT_MAX)


def current() -> object:
    """The identity of the thread that asks."""
    return threading.current_thread()


def race(work: T, stop: Event) -> T:  # noqa: ARG001
    """What the work gave: by now it is done."""
    return work


class Handover(Generic[T]):
    """Hands over what a request gave. A thread cannot be cancelled in between."""

    def __init__(self, give_back: Callable[[T], object]) -> None:
        """`give_back` is what the asynchronous twin needs."""

    def run(self, work: T) -> T:
        return work

    def close(self) -> None:
        """Nothing is left."""


def check_handler(handler: object) -> None:
    called = handler if inspect.isroutine(handler) else type(handler).__call__
    if inspect.iscoroutinefunction(called):
        raise InvalidRequest("an async function needs the asynchronous client")


@contextlib.contextmanager
def stopping_on_signals(stop: Callable[[], object]) -> Iterator[None]:
    """SIGINT and SIGTERM call `stop` once; after that they do again what they did before."""
    names = (signal.SIGINT, signal.SIGTERM)
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def restore() -> None:
        for name in names:
            signal.signal(name, before[name])

    def stopped(*_: object) -> None:
        restore()
        # Not in the signal handler, which may have interrupted someone who holds the lock that this takes.
        threading.Thread(target=stop, daemon=True).start()

    before = {name: signal.getsignal(name) for name in names}
    for name in names:
        signal.signal(name, stopped)
    try:
        yield
    finally:
        restore()

"""What the client needs from asyncio. Its counterpart for threads has the same names, so that clients are written
once.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import signal
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from time import monotonic
from typing import Any, TypeVar

from lockstep.errors import InvalidRequest
from lockstep.handover import Handover

T = TypeVar("T")

Handler = Callable[[Any], Awaitable[object]]
H = TypeVar("H", bound=Handler)
"""Lets a function keep its type when it becomes a handler."""

POLL_SECONDS = 30.0
"""How long one poll of a consumer waits for messages. A stop ends it early."""

_CANCEL_SECONDS = 1.0

Condition = asyncio.Condition
Lock = asyncio.Lock
sleep = asyncio.sleep

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
    "check_loop",
    "current",
    "monotonic",
    "race",
    "sleep",
    "stopping_on_signals",
]


class Event:
    """An event with a wait that can time out."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        self._event.set()

    def clear(self) -> None:
        self._event.clear()

    def is_set(self) -> bool:
        return self._event.is_set()

    async def wait(self, timeout_seconds: float | None = None) -> bool:
        """Whether it was set in time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                await self._event.wait()
        return self._event.is_set()


class Task:
    """A background task. `result` raises the task's error."""

    def __init__(self, function: Callable[..., Coroutine[Any, Any, object]], *arguments: Any, name: str) -> None:
        self._task = asyncio.create_task(function(*arguments), name=name)

    async def join(self, timeout_seconds: float | None = None) -> bool:
        """Whether it ended in time."""
        if not self._task.done():
            await asyncio.wait([self._task], timeout=timeout_seconds)
        return self._task.done()

    async def cancel(self) -> None:
        """Cancel it, and wait a moment for its end."""
        self._task.cancel()
        await self.join(_CANCEL_SECONDS)

    def result(self) -> None:
        """Raise the error of an ended task, if any."""
        if self._task.done() and not self._task.cancelled():
            self._task.result()


def current() -> object:
    """The identity of the current task."""
    return asyncio.current_task()


async def race(work: Coroutine[Any, Any, T], stop: Event) -> T | None:
    """The result of the work; None if the stop comes first, in which case the work is cancelled.

    The work runs in this task: the result of a separate task would be lost if this one were cancelled at that moment.
    """
    watching = asyncio.ensure_future(stop.wait())
    scope = asyncio.timeout(None)
    racing = True

    def stopped(_: object) -> None:
        if racing:
            scope.reschedule(asyncio.get_running_loop().time())

    watching.add_done_callback(stopped)
    try:
        async with scope:
            return await work
    except TimeoutError:
        if not scope.expired():
            raise
        return None
    finally:
        racing = False
        watching.cancel()


def check_loop(loop: asyncio.AbstractEventLoop | None) -> None:
    """A client's resources belong to the event loop in which they were first used."""
    if loop is not asyncio.get_running_loop():
        raise InvalidRequest("the client belongs to another event loop; open a new client in this one")


def check_handler(handler: object) -> None:
    called = handler if inspect.isroutine(handler) else type(handler).__call__
    if not inspect.iscoroutinefunction(called):
        raise InvalidRequest("the handler of an asynchronous client must be an async function")


@contextlib.contextmanager
def stopping_on_signals(stop: Callable[[], object]) -> Iterator[None]:
    """SIGINT and SIGTERM call `stop` once; after that they have their previous effect again."""
    loop = asyncio.get_running_loop()
    names = (signal.SIGINT, signal.SIGTERM)
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {name: signal.getsignal(name) for name in names}

    def restore() -> None:
        for name in names:
            if loop.remove_signal_handler(name):
                signal.signal(name, before[name])

    def stopped() -> None:
        restore()
        stop()

    for name in names:
        loop.add_signal_handler(name, stopped)
    try:
        yield
    finally:
        restore()

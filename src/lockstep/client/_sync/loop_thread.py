"""An event loop on a thread of its own, for engines that are asynchronous under a client that is not."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from lockstep.client._failures import FORKED
from lockstep.errors import InvalidRequest, Unavailable

T = TypeVar("T")


class LoopThread:
    """Runs coroutines for other threads. The thread starts with the first, and ends with `close`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._process: int | None = None
        self.closed = False

    @property
    def is_elsewhere(self) -> bool:
        """Whether the thread is one of another process: that from which this one was forked."""
        return self._process not in (None, os.getpid())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """What the coroutine gives. If the caller is interrupted, it is cancelled."""
        try:
            # Before any lock, which another thread may have held when the process was forked.
            if self.is_elsewhere:
                raise InvalidRequest(FORKED)
            loop = self._started()
        except BaseException:
            work.close()
            raise
        future: Future[T] | None = None
        try:
            future = asyncio.run_coroutine_threadsafe(work, loop)
            return future.result()
        except BaseException:
            if future is not None:
                future.cancel()
            else:
                # The interrupt may have come after the loop got the work, which then runs to its end.
                with suppress(ValueError):
                    work.close()
            raise

    def close(self) -> None:
        with self._lock:
            self.closed = True
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is None or thread is None:
            return
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self.closed:
                raise Unavailable("the client is closed")
            if self._loop is None:
                self._process = os.getpid()
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._run, args=(self._loop,), name="lockstep-engine", daemon=True
                )
                self._thread.start()
            return self._loop

    @staticmethod
    def _run(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        loop.run_forever()
        pending = asyncio.all_tasks(loop)
        for task in pending:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*pending, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())

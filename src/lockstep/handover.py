"""Answers whose callers may be gone: either the caller takes the answer, or it is released.

Popped messages are leased. If the caller goes away before it receives them, nobody would process them until the lease
ends. The engine hands over leases this way, and so does a client that pops over HTTP. ARCHITECTURE.md shows who notices
that a caller is gone, and what is released then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Generic, TypeVar

from lockstep.errors import LockstepError

T = TypeVar("T")

_CLOSE_SECONDS = 1.0
_LATE_SECONDS = 0.2
"""How long to wait for the answer to a caller that is gone: an answer in transit must not get lost."""


class Handover(Generic[T]):
    """Hands over answers, and releases those that nobody takes."""

    def __init__(self, give_back: Callable[[T], Coroutine[Any, Any, object]]) -> None:
        self._give_back = give_back
        self._tasks: set[asyncio.Task[Any]] = set()

    async def take(self, answer: asyncio.Future[T]) -> T:
        """The answer, for its caller. If the caller is cancelled, the answer is given back."""
        try:
            return await answer
        except asyncio.CancelledError:
            # Cancelled between the answer and this task's next turn.
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                self.give_back(answer.result())
            raise

    async def take_begun(self, answer: asyncio.Future[T]) -> T:
        """Like `take`, but the request of a cancelled caller is completed, and then its result is given back."""
        try:
            return await asyncio.shield(answer)
        except asyncio.CancelledError:
            answer.add_done_callback(self._give_back_late)
            raise

    def _give_back_late(self, answer: asyncio.Future[T]) -> None:
        if not answer.cancelled() and answer.exception() is None:
            self.give_back(answer.result())

    def settle(self, answer: asyncio.Future[T], result: T) -> None:
        """Answer a caller of `take`, or give the result back if the caller is gone."""
        if answer.done():
            self.give_back(result)
        else:
            answer.set_result(result)

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of a request in progress, which cannot be recalled once it is sent."""
        working = self._begin(work)
        try:
            return await asyncio.shield(working)
        except asyncio.CancelledError:
            self._begin(self._wait_late(working))
            raise

    def give_back(self, result: T) -> None:
        """Give a result back in the background. If that fails, its leases end by themselves."""
        self._begin(self._given_back(result))

    async def close(self) -> None:
        """Wait briefly for calls in flight."""
        while self._tasks:
            _, late = await asyncio.wait(set(self._tasks), timeout=_CLOSE_SECONDS)
            for task in late:
                task.cancel()

    def _begin(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _wait_late(self, working: asyncio.Task[T]) -> None:
        # After that the connection closes, which the server notices.
        await asyncio.wait([working], timeout=_LATE_SECONDS)
        if working.cancel() or working.cancelled() or working.exception() is not None:
            return
        await self._given_back(working.result())

    async def _given_back(self, result: T) -> None:
        with suppress(LockstepError):
            await self._give_back(result)

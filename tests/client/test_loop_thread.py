"""The event loop beneath a client for threads, when its caller is interrupted."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any

import pytest

from lockstep.client._sync import loop_thread


def test_interrupt_while_work_is_handed_over_is_the_error_that_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """The work had begun by then, and cannot be closed."""
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    async def work() -> None:
        begun.set()
        go_on.wait(30)  # holds the loop, as a step of any coroutine does
        ended.set()

    def interrupted(coroutine: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop) -> None:
        loop.call_soon_threadsafe(lambda: tasks.append(loop.create_task(coroutine)))
        assert begun.wait(30)
        raise KeyboardInterrupt

    tasks: list[asyncio.Task[None]] = []
    monkeypatch.setattr(loop_thread.asyncio, "run_coroutine_threadsafe", interrupted)
    thread = loop_thread.LoopThread()
    with pytest.raises(KeyboardInterrupt):
        thread.run(work())
    go_on.set()
    assert ended.wait(30)
    thread.close()

"""Waiting for something that no signal tells of."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


async def until(happened: Callable[[], object], *, seconds: float = 30) -> None:
    """Returns as soon as it happened. Fails after a time that is far longer than it can take."""
    async with asyncio.timeout(seconds):
        while not happened():  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.001)


def wait_until(happened: Callable[[], object], *, seconds: float = 30) -> None:
    """The same for threads."""
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)

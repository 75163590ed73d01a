"""Waiting, and things that run beside a test."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from lockstep import AsyncClient, NewMessage, Receipt
from lockstep.client._async.concurrency import Event, Task, monotonic, sleep
from lockstep.client._async.transport import AsyncTransport

PATIENCE_SECONDS = 30.0
"""Far longer than anything here takes."""


async def until(happened: Any) -> None:
    """Returns as soon as it happened, for what no signal tells of."""
    deadline = monotonic() + PATIENCE_SECONDS
    while not await happened():
        assert monotonic() < deadline, "it did not happen"
        await sleep(0.002)


def running(client: AsyncClient, *, drain_timeout_seconds: float = PATIENCE_SECONDS) -> Task:
    """The client's workers, in the background."""
    run = partial(client.run, stop_on_signals=False, drain_timeout_seconds=drain_timeout_seconds)
    return Task(run, name="test-run")


async def ended(task: Task) -> None:
    """The task has come to its end; raises what it raised."""
    assert await task.join(PATIENCE_SECONDS), "it did not end"
    task.result()


class AsyncGate:
    """A transport that lets no push through to another before it is opened."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport
        self.arrived = Event()
        self.opened = Event()
        self.pushes: list[int] = []
        """How many messages each push had."""

    def __getattr__(self, verb: str) -> Any:
        return getattr(self._transport, verb)

    async def push(self, messages: Sequence[NewMessage]) -> Sequence[Receipt]:
        self.pushes.append(len(messages))
        self.arrived.set()
        assert await self.opened.wait(PATIENCE_SECONDS)
        return await self._transport.push(messages)

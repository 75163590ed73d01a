"""An engine in this process: every verb is a call."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from math import inf
from typing import Any, Protocol

from lockstep.client._async.concurrency import Lock, check_loop
from lockstep.client._received import Committed, Delivered
from lockstep.core.messages import Batch, NewMessage, PushResult
from lockstep.core.operations import QueuedAs
from lockstep.core.payloads import check_json
from lockstep.core.records import (
    Ack,
    AckOutcome,
    Continued,
    NextRequest,
    Popped,
    PopRequest,
    Renewal,
    Renewed,
    TransactionResult,
)
from lockstep.errors import LeaseLost, Unavailable


class EngineVerbs(Protocol):
    """The verbs of an engine that have methods; all others are called generically."""

    async def push(
        self, messages: Sequence[Batch] | Sequence[NewMessage], *, queued: QueuedAs = "wait"
    ) -> PushResult: ...
    async def pop(self, requests: Sequence[PopRequest]) -> list[Popped]: ...
    async def wait_pop(self, request: PopRequest, seconds: float) -> Popped: ...
    async def next(self, requests: Sequence[NextRequest]) -> list[Continued]: ...
    async def wait_next(self, request: NextRequest, seconds: float) -> Continued: ...
    async def ack(self, acks: Sequence[Ack]) -> list[AckOutcome]: ...
    async def renew(self, renewals: Sequence[Renewal]) -> list[Renewed]: ...
    async def transaction(
        self, acks: Sequence[Ack], messages: Sequence[Batch] | Sequence[NewMessage]
    ) -> TransactionResult: ...


class AsyncEngineTransport:
    """Opens the engine when it is first needed, and closes it at the end."""

    def __init__(
        self,
        opening: AbstractAsyncContextManager[EngineVerbs],
        *,
        wait_seconds_max: float = inf,
        queued: QueuedAs = "wait",
    ) -> None:
        self._opening = opening
        self._queued = queued
        self._wait_seconds_max = wait_seconds_max
        self._stack = AsyncExitStack()
        self._lock = Lock()
        self._engine: EngineVerbs | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    async def open(self) -> None:
        await self._opened()

    async def close(self) -> None:
        if self._loop is not None and self._loop.is_closed():
            self._closed = True  # and everything that ran in it has ended
            return
        async with self._lock:
            self._closed = True
            self._engine = None
            await self._stack.aclose()

    async def push(
        self, messages: Sequence[NewMessage] | Sequence[Batch], queued: QueuedAs | None = None
    ) -> PushResult:
        check_json(messages)
        engine = self._ready() or await self._opened()
        return await engine.push(messages, queued=queued or self._queued)

    async def pop(self, request: PopRequest, wait_seconds: float) -> Delivered:
        engine = self._ready() or await self._opened()
        if wait_seconds > 0:
            popped = await engine.wait_pop(request, min(wait_seconds, self._wait_seconds_max))
        else:
            popped = (await engine.pop([request]))[0]
        return _delivered(popped)

    async def next(self, request: NextRequest, wait_seconds: float) -> Delivered:
        engine = self._ready() or await self._opened()
        if wait_seconds > 0:
            continued = await engine.wait_next(request, min(wait_seconds, self._wait_seconds_max))
        else:
            continued = (await engine.next([request]))[0]
        if not continued.acked.success:
            raise LeaseLost()
        return _delivered(continued.popped)

    async def ack(self, acks: Sequence[Ack]) -> list[AckOutcome]:
        engine = self._ready() or await self._opened()
        return await engine.ack(acks)

    async def renew(self, renewals: Sequence[Renewal]) -> list[Renewed]:
        engine = self._ready() or await self._opened()
        return await engine.renew(renewals)

    async def transaction(self, acks: Sequence[Ack], messages: Sequence[NewMessage] | Sequence[Batch]) -> Committed:
        engine = self._ready() or await self._opened()
        result = await engine.transaction(acks, messages)
        return Committed(result.acks, list(result.pushed))

    async def call(self, verb: str, /, **arguments: Any) -> Any:
        engine = self._ready() or await self._opened()
        return await getattr(engine, verb)(**arguments)

    def _ready(self) -> EngineVerbs | None:
        if self._engine is not None:
            check_loop(self._loop)
        return self._engine

    async def _opened(self) -> EngineVerbs:
        async with self._lock:
            if self._closed:
                raise Unavailable("the client is closed")
            if self._engine is None:
                self._engine = await self._stack.enter_async_context(self._opening)
                self._loop = asyncio.get_running_loop()
            return self._engine


def _delivered(popped: Popped) -> Delivered:
    return Delivered(popped.group, list(popped.messages()), popped.lease_id, popped.expires_at, popped.mode)

"""An engine in this process, on a thread with an event loop. Written by hand."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from math import inf
from typing import Any

from lockstep.client._async.transport_engine import AsyncEngineTransport, EngineVerbs
from lockstep.client._received import Committed, Delivered
from lockstep.client._sync.loop_thread import LoopThread
from lockstep.core.messages import Batch, NewMessage, PushResult
from lockstep.core.operations import QueuedAs
from lockstep.core.records import Ack, AckOutcome, NextRequest, PopRequest, Renewal, Renewed


class EngineTransport:
    """Opens the engine when it is first needed, and closes it at the end."""

    def __init__(
        self,
        opening: AbstractAsyncContextManager[EngineVerbs],
        *,
        wait_seconds_max: float = inf,
        queued: QueuedAs = "wait",
    ) -> None:
        self._verbs = AsyncEngineTransport(opening, wait_seconds_max=wait_seconds_max, queued=queued)
        self._loop = LoopThread()

    def open(self) -> None:
        self._loop.run(self._verbs.open())

    def close(self) -> None:
        if not self._loop.closed and not self._loop.is_elsewhere:
            self._loop.run(self._verbs.close())
            self._loop.close()

    def push(self, messages: Sequence[NewMessage] | Sequence[Batch], queued: QueuedAs | None = None) -> PushResult:
        return self._loop.run(self._verbs.push(messages, queued))

    def pop(self, request: PopRequest, wait_seconds: float) -> Delivered:
        return self._loop.run(self._verbs.pop(request, wait_seconds))

    def next(self, request: NextRequest, wait_seconds: float) -> Delivered:
        return self._loop.run(self._verbs.next(request, wait_seconds))

    def ack(self, acks: Sequence[Ack]) -> list[AckOutcome]:
        return self._loop.run(self._verbs.ack(acks))

    def renew(self, renewals: Sequence[Renewal]) -> list[Renewed]:
        return self._loop.run(self._verbs.renew(renewals))

    def transaction(self, acks: Sequence[Ack], messages: Sequence[NewMessage] | Sequence[Batch]) -> Committed:
        return self._loop.run(self._verbs.transaction(acks, messages))

    def call(self, verb: str, /, **arguments: Any) -> Any:
        return self._loop.run(self._verbs.call(verb, **arguments))

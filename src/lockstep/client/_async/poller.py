"""Pops again and again, for consumers: waits for messages, and outlives servers that are away."""

from __future__ import annotations

import logging
from random import random
from typing import Any

from lockstep.client._async.concurrency import POLL_SECONDS, Event, monotonic, race
from lockstep.client._async.delivery import AsyncDelivery
from lockstep.client._async.transport import AsyncTransport
from lockstep.client._received import Delivered
from lockstep.client._retry import RetryPolicy, retryable
from lockstep.core.records import PopRequest
from lockstep.errors import LockstepError

logger = logging.getLogger("lockstep.client")

# A server that is about to stop answers every poll at once; to ask again at once would keep both of us busy.
_PAUSE_SECONDS = 0.1


async def pop_until(transport: AsyncTransport, request: PopRequest, deadline: float, stop: Event) -> Delivered:
    """What comes before the deadline; empty if nothing does, or when stopped."""
    while True:
        remaining = deadline - monotonic()
        delivered = await race(transport.pop(request, max(remaining, 0.0)), stop)
        if delivered is None:
            return Delivered(request.group)
        remaining = deadline - monotonic()
        if delivered.messages or remaining <= 0 or await stop.wait(min(_PAUSE_SECONDS, remaining)):
            return delivered


class AsyncPoller:
    """The deliveries of one consumer, until it is stopped."""

    def __init__(self, transport: AsyncTransport, request: PopRequest, stop: Event, *, as_type: Any) -> None:
        self._transport = transport
        self._request = request
        self._stop = stop
        self._as_type = as_type
        self._backoff = RetryPolicy()
        self._failures = 0

    async def next(self, *, idle_timeout_seconds: float | None = None) -> AsyncDelivery | None:
        """The next messages; None when stopped, or when none came for so long."""
        deadline = None if idle_timeout_seconds is None else monotonic() + idle_timeout_seconds
        while not self._stop.is_set():
            poll_to = monotonic() + POLL_SECONDS
            delivery = await self._poll(poll_to if deadline is None else min(deadline, poll_to))
            if delivery:
                return delivery
            if deadline is not None and monotonic() >= deadline:
                return None
        return None

    async def _poll(self, deadline: float) -> AsyncDelivery | None:
        try:
            delivered = await pop_until(self._transport, self._request, deadline, self._stop)
        except LockstepError as error:
            if not retryable(error):
                raise
            await self._back_off(error)
            return None
        self._failures = 0
        return AsyncDelivery(self._transport, delivered, self._as_type)

    async def _back_off(self, error: LockstepError) -> None:
        self._failures += 1
        delay_seconds = self._backoff.delay_seconds(self._failures, random())
        logger.warning(
            "pop_failed",
            extra={"action": "pop_failed", "queue": self._request.queue, "error": str(error), "delay": delay_seconds},
        )
        await self._stop.wait(delay_seconds)

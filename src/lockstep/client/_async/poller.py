"""Pops in a loop, for consumers: waits for messages, and survives outages of servers."""

from __future__ import annotations

import logging
from random import random
from typing import Any

from lockstep.client._async.concurrency import POLL_SECONDS, Event, monotonic
from lockstep.client._async.delivery import AsyncDelivery
from lockstep.client._async.source import AsyncSource
from lockstep.client._async.transport import AsyncTransport
from lockstep.client._failures import log_failed_ack, logged_failures
from lockstep.client._retry import RetryPolicy, retryable
from lockstep.core.records import PopRequest
from lockstep.errors import LeaseLost, LockstepError

logger = logging.getLogger("lockstep.client")


class AsyncPoller:
    """The deliveries of one consumer, until it is stopped."""

    def __init__(self, transport: AsyncTransport, request: PopRequest, stop: Event, *, as_type: Any) -> None:
        self._source = AsyncSource(transport, request, stop, as_type=as_type)
        self._stop = stop
        self._backoff = RetryPolicy()
        self._failures = 0

    async def next(
        self, after: AsyncDelivery | None = None, *, idle_timeout_seconds: float | None = None
    ) -> AsyncDelivery | None:
        """The next messages; None when stopped, or when none arrived within the idle timeout.

        `after` is the previous delivery. Its finished messages are acknowledged, and the rest is released; if all are
        finished, in the same request that asks for more.
        """
        deadline = None if idle_timeout_seconds is None else monotonic() + idle_timeout_seconds
        if after is not None and (self._stop.is_set() or not after.is_finished):
            await self._end(after)
            after = None
        while not self._stop.is_set():
            poll_to = monotonic() + POLL_SECONDS
            delivery = await self._poll(after, poll_to if deadline is None else min(deadline, poll_to))
            after = None
            if delivery:
                return delivery
            if deadline is not None and monotonic() >= deadline:
                return None
        return None

    async def _poll(self, after: AsyncDelivery | None, deadline: float) -> AsyncDelivery | None:
        """The next messages; None after a failure, in which case the finished messages are acknowledged separately."""
        try:
            delivery = await (self._source.pop(deadline) if after is None else after.go_on(deadline))
        except LockstepError as error:
            if after is not None and isinstance(error, LeaseLost):
                log_failed_ack(after[0].queue, error)
                return None
            if after is not None:
                await self._end(after)
            if not retryable(error):
                raise
            await self._back_off(error)
            return None
        self._failures = 0
        return delivery

    async def _end(self, delivery: AsyncDelivery) -> None:
        if delivery.lease_id is not None:
            with logged_failures(delivery[0].queue):
                await delivery.release()

    async def _back_off(self, error: LockstepError) -> None:
        self._failures += 1
        delay_seconds = self._backoff.delay_seconds(self._failures, random())
        request = self._source.request
        logger.warning(
            "pop_failed",
            extra={"action": "pop_failed", "queue": request.queue, "error": str(error), "delay": delay_seconds},
        )
        await self._stop.wait(delay_seconds)

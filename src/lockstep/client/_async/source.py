"""The origin of a consumer's deliveries: one request, popped repeatedly."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from lockstep.client._async.concurrency import Event, monotonic, race
from lockstep.client._async.delivery import AsyncDelivery
from lockstep.client._async.transport import AsyncTransport
from lockstep.client._received import Delivered
from lockstep.core.records import Ack, NextRequest, PopRequest
from lockstep.errors import LockstepError

# A server that is about to stop answers every poll at once; asking again at once would keep both sides busy.
_PAUSE_SECONDS = 0.1


class AsyncSource:
    """Pops for one request, and continues the leases of what it popped, until it is stopped."""

    def __init__(self, transport: AsyncTransport, request: PopRequest, stop: Event, *, as_type: Any) -> None:
        self.request = request
        self._transport = transport
        self._stop = stop
        self._as_type = as_type

    async def pop(self, deadline: float | None = None) -> AsyncDelivery:
        """The messages before the deadline; empty if there are none, or when stopped. Without a deadline, the messages
        available now.
        """
        if deadline is None:
            return self._delivery(await self._transport.pop(self.request, 0.0))
        while True:
            delivered = await race(self._transport.pop(self.request, max(deadline - monotonic(), 0.0)), self._stop)
            if delivered is None:
                return self._delivery(Delivered(self.request.group))
            if not await self._is_worth_another(delivered, deadline):
                return self._delivery(delivered)

    async def next(self, lease_id: str, deadline: float | None = None) -> AsyncDelivery:
        """Complete the lease and return the next messages, like `pop`. Raises LeaseLost."""
        request = NextRequest(lease_id=lease_id, pop=self.request)
        if deadline is None:
            return self._delivery(await self._transport.next(request, 0.0))
        seconds = max(deadline - monotonic(), 0.0)
        delivered = await race(self._transport.next(request, seconds), self._stop)
        if delivered is None:
            # It is unknown whether the cancelled request had already ended the lease.
            with suppress(LockstepError):
                await self._transport.ack([Ack(lease_id=lease_id)])
            return self._delivery(Delivered(self.request.group))
        if not await self._is_worth_another(delivered, deadline):
            return self._delivery(delivered)
        return await self.pop(deadline)

    async def _is_worth_another(self, delivered: Delivered, deadline: float) -> bool:
        """Whether to ask again: a server may end a wait early."""
        remaining = deadline - monotonic()
        return not (delivered.messages or remaining <= 0 or await self._stop.wait(min(_PAUSE_SECONDS, remaining)))

    def _delivery(self, delivered: Delivered) -> AsyncDelivery:
        return AsyncDelivery(self._transport, delivered, self._as_type, self)

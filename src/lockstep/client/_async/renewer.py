"""Keeps leases alive while their messages are processed: one task for all deliveries of a client."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf

from lockstep.client._async.concurrency import Event, Task, monotonic
from lockstep.client._async.delivery import AsyncDelivery
from lockstep.client._async.transport import AsyncTransport
from lockstep.core.records import QueueInfo, Renewal
from lockstep.errors import LockstepError

logger = logging.getLogger("lockstep.client")

# A lease is renewed after a third of its duration, so that it survives two failed renewals.
_SHARE = 3
# No queue has a shorter lease, so a renewal after a third of this is early enough until the queue's own lease time is
# known.
_LEASE_SECONDS_MIN = 1.0
_LEASE_AGE_SECONDS_MAX = 60.0
"""How long a queue's lease time is cached."""


@dataclass(slots=True, eq=False)
class Kept:
    """A delivery with a lease to renew."""

    delivery: AsyncDelivery
    lease_seconds: float | None
    """The lease time given to the pop; None: that of the queue."""
    due_at: float


class AsyncRenewer:
    """Renews the leases that are kept. Its task starts with the first of them."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport
        self._kept: set[Kept] = set()
        self._leases: dict[str, tuple[float, float]] = {}
        """By queue: its lease time, and when we learned it."""
        self._wake = Event()
        self._wakes_at = inf
        self._starting = threading.Lock()
        self._closing = False
        self._task: Task | None = None

    @contextlib.contextmanager
    def keeping(self, delivery: AsyncDelivery, lease_seconds: float | None) -> Iterator[None]:
        """Renew the delivery's lease for as long as the context lasts."""
        due_at = monotonic() + (lease_seconds or _LEASE_SECONDS_MIN) / _SHARE
        kept = Kept(delivery, lease_seconds, due_at)
        self._kept.add(kept)
        self._start()
        if due_at < self._wakes_at:
            self._wake.set()
        try:
            yield
        finally:
            self._kept.discard(kept)

    def _start(self) -> None:
        # Loops on several threads may get here at the same time.
        with self._starting:
            if self._task is None:
                self._task = Task(self._run, name="lockstep-renewer")

    async def close(self) -> None:
        self._closing = True
        self._wake.set()
        if self._task is not None:
            await self._task.join()

    async def _run(self) -> None:
        while not self._closing:
            # From now on, new deliveries wake us, until we know when to wake by ourselves.
            self._wakes_at = inf
            now = monotonic()
            await self._renew([kept for kept in list(self._kept) if kept.due_at <= now])
            self._wakes_at = min([kept.due_at for kept in list(self._kept)], default=inf)
            await self._wake.wait(None if self._wakes_at == inf else max(self._wakes_at - monotonic(), 0.0))
            self._wake.clear()

    async def _renew(self, due: list[Kept]) -> None:
        if not due:
            return
        try:
            for kept in due:
                kept.due_at = monotonic() + await self._lease_seconds(kept) / _SHARE
            renewals = [Renewal(lease_id=kept.delivery.lease_id or "", seconds=kept.lease_seconds) for kept in due]
            renewed = await self._transport.renew(renewals)
        except LockstepError as error:
            # Each is due again, and a lease survives two failures.
            logger.warning("renewal_failed", extra={"action": "renewal_failed", "error": str(error)})
            return
        for kept, outcome in zip(due, renewed, strict=True):
            if outcome.partitions:
                kept.delivery.expires_at = outcome.expires_at
            elif kept in self._kept:
                self._kept.discard(kept)
                kept.delivery.lose()

    async def _lease_seconds(self, kept: Kept) -> float:
        if kept.lease_seconds is not None:
            return kept.lease_seconds
        return min([await self._queue_lease_seconds(queue) for queue in {m.queue for m in kept.delivery}])

    async def _queue_lease_seconds(self, queue: str) -> float:
        known = self._leases.get(queue)
        if known is not None and monotonic() - known[1] < _LEASE_AGE_SECONDS_MAX:
            return known[0]
        try:
            info: QueueInfo = await self._transport.call("queue", queue=queue)
        except LockstepError:
            return _LEASE_SECONDS_MIN
        lease_seconds = float(info.options.lease_seconds)
        self._leases[queue] = (lease_seconds, monotonic())
        return lease_seconds

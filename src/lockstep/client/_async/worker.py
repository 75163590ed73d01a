"""Workers: a function that is called for messages as they arrive, in several concurrent loops."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from lockstep.client._async.concurrency import Event, Handler
from lockstep.client._async.delivery import AsyncDeliveredMessage, AsyncDelivery
from lockstep.client._async.poller import AsyncPoller
from lockstep.client._async.renewer import AsyncRenewer
from lockstep.client._async.transport import AsyncTransport
from lockstep.client._failures import OnError, error_text, log_failed_message, logged_failures, tell
from lockstep.core.records import PopRequest
from lockstep.errors import LeaseLost


class AsyncWorker:
    """One handler and its loops. Each loop pops independently, with leases of its own."""

    def __init__(
        self,
        transport: AsyncTransport,
        handler: Handler,
        request: PopRequest,
        *,
        concurrency: int,
        whole: bool,
        as_type: Any,
        renewer: AsyncRenewer | None,
        ack_interval_seconds: float,
        on_error: OnError | None,
    ) -> None:
        self._transport = transport
        self._handler = handler
        self._request = request
        self._whole = whole
        self._as_type = as_type
        self._renewer = renewer
        self._ack_interval_seconds = ack_interval_seconds
        self._on_error = on_error
        self._in_hand: set[AsyncDelivery] = set()
        self.concurrency = concurrency

    async def run_loop(self, stop: Event) -> None:
        """Pop and handle until stopped. Messages being handled at that time are finished first."""
        poller = AsyncPoller(self._transport, self._request, stop, as_type=self._as_type)
        delivery = None
        while (delivery := await poller.next(delivery)) is not None:
            with self._holding(delivery), self._keeping(delivery):
                if self._whole:
                    await self._handle_whole(delivery)
                else:
                    await self._handle_each(delivery, stop)

    async def release(self) -> None:
        """Release what the loop holds: it took too long to finish."""
        for delivery in list(self._in_hand):
            if delivery.lease_id is not None:
                with logged_failures(delivery[0].queue):
                    await delivery.release()

    @contextmanager
    def _holding(self, delivery: AsyncDelivery) -> Iterator[None]:
        self._in_hand.add(delivery)
        try:
            yield
        finally:
            self._in_hand.discard(delivery)

    def _keeping(self, delivery: AsyncDelivery) -> AbstractContextManager[None]:
        if self._renewer is None or delivery.lease_id is None:
            return nullcontext()
        return self._renewer.keeping(delivery, self._request.lease_seconds)

    async def _handle_each(self, delivery: AsyncDelivery, stop: Event) -> None:
        for message in delivery:
            if stop.is_set():
                break
            if delivery.is_open(message):
                await self._handle(message)

    async def _handle(self, message: AsyncDeliveredMessage) -> None:
        delivery = message.delivery
        try:
            message.check()
            await self._handler(message)
        except Exception as error:
            self._report(error, message)
            if delivery.lease_id is not None and delivery.is_open(message):
                with logged_failures(message.queue):
                    await message.nack(error_text(error))
            return
        if self._holds(message):
            delivery.finish(message)
            with logged_failures(message.queue):
                await delivery.commit(self._ack_interval_seconds)

    async def _handle_whole(self, delivery: AsyncDelivery) -> None:
        try:
            for message in delivery:
                message.check()
            await self._handler(delivery)
        except Exception as error:
            self._report(error, delivery[0])
            if delivery.lease_id is not None and not delivery.over:
                with logged_failures(delivery[0].queue):
                    await delivery.nack(error_text(error))
            return
        if self._holds(delivery[0]):
            delivery.finish_all()

    def _holds(self, message: AsyncDeliveredMessage) -> bool:
        """Whether to acknowledge the message: not if its lease is lost, because another consumer may have it."""
        if message.delivery.lost:
            self._report(LeaseLost(), message)
            return False
        return message.delivery.lease_id is not None

    def _report(self, error: Exception, message: AsyncDeliveredMessage) -> None:
        log_failed_message(message, error)
        tell(self._on_error, error, message)

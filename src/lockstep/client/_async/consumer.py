"""Messages as an iterator: each is done when the loop asks for the next."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from types import TracebackType

from lockstep.client._async.concurrency import Event
from lockstep.client._async.delivery import AsyncDeliveredMessage, AsyncDelivery
from lockstep.client._async.poller import AsyncPoller
from lockstep.client._async.renewer import AsyncRenewer
from lockstep.client._failures import error_text, log_failed_message, logged_failures
from lockstep.errors import InvalidPayload


class AsyncConsumer:
    """Iterates over messages as they arrive. A message whose payload does not have the requested type is failed and
    skipped.

    Leaving a loop early releases the current message and the rest of its delivery without charging an attempt: a loop
    cannot tell why it was left. An `async with` block can: an error that leaves the block fails the delivery of the
    current message.
    """

    def __init__(
        self,
        poller: AsyncPoller,
        renewer: AsyncRenewer | None,
        stop: Event,
        *,
        lease_seconds: float | None,
        ack_interval_seconds: float,
        idle_timeout_seconds: float | None,
    ) -> None:
        self._poller = poller
        self._renewer = renewer
        self._stop = stop
        self._lease_seconds = lease_seconds
        self._ack_interval_seconds = ack_interval_seconds
        self._idle_timeout_seconds = idle_timeout_seconds
        self._entered = False
        self._keeping = ExitStack()
        self._delivery: AsyncDelivery | None = None
        self._waiting: Iterator[AsyncDeliveredMessage] = iter(())
        self._message: AsyncDeliveredMessage | None = None

    async def __aenter__(self) -> AsyncConsumer:
        self._entered = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, Exception) and self._message is not None:
            await self._fail(self._message, error)
        await self.close()

    async def __aiter__(self) -> AsyncIterator[AsyncDeliveredMessage]:
        try:
            while (message := await self._next()) is not None:
                yield message
        finally:
            # Inside `async with`, the end of the block decides: it knows why the loop was left.
            if not self._entered:
                await self.close()

    async def close(self) -> None:
        """Stop: ack the finished messages and release the rest."""
        self._stop.set()
        self._message = None
        await self._end_delivery()

    async def _next(self) -> AsyncDeliveredMessage | None:
        await self._finish()
        while not self._stop.is_set():
            for message in self._waiting:
                if await self._usable(message):
                    self._message = message
                    return message
            delivery = await self._poller.next(self._take_delivery(), idle_timeout_seconds=self._idle_timeout_seconds)
            if delivery is None:
                return None
            self._begin(delivery)
        return None

    def _begin(self, delivery: AsyncDelivery) -> None:
        self._delivery, self._waiting = delivery, iter(delivery)
        if self._renewer is not None and delivery.lease_id is not None:
            self._keeping.enter_context(self._renewer.keeping(delivery, self._lease_seconds))

    async def _usable(self, message: AsyncDeliveredMessage) -> bool:
        if not message.delivery.is_open(message):
            return False
        try:
            message.check()
        except InvalidPayload as error:
            await self._fail(message, error)
            return False
        return True

    async def _finish(self) -> None:
        """The loop asked for the next message: the current one is done."""
        message, self._message = self._message, None
        if message is None or message.delivery.lease_id is None:
            return
        message.delivery.finish(message)
        with logged_failures(message.queue):
            await message.delivery.commit(self._ack_interval_seconds)

    async def _fail(self, message: AsyncDeliveredMessage, error: Exception) -> None:
        log_failed_message(message, error)
        if message.delivery.lease_id is not None and message.delivery.is_open(message):
            with logged_failures(message.queue):
                await message.nack(error_text(error))

    def _take_delivery(self) -> AsyncDelivery | None:
        """The delivery, whose lease is no longer renewed."""
        delivery, self._delivery, self._waiting = self._delivery, None, iter(())
        self._keeping.close()
        return delivery

    async def _end_delivery(self) -> None:
        delivery = self._take_delivery()
        if delivery is not None and delivery.lease_id is not None:
            with logged_failures(delivery[0].queue):
                await delivery.release()

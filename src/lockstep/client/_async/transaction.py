"""Acks and pushes that are applied together, or not at all."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Unpack

from lockstep.client._async.delivery import AsyncDeliveredMessage, AsyncDelivery
from lockstep.client._async.transport import AsyncTransport
from lockstep.client._payloads import MessageOptions, new_message
from lockstep.client._received import Committed
from lockstep.core.messages import NewMessage
from lockstep.core.records import Ack
from lockstep.errors import InvalidRequest


class AsyncTransaction:
    """Collects acks and pushes, and commits them at the end of its block; if an error leaves the block, nothing
    changes.
    """

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport
        self._acks: list[tuple[AsyncDelivery, list[Ack]]] = []
        self._messages: list[NewMessage] = []
        self._over = False
        self.result: Committed | None = None
        """The result, once committed."""

    async def __aenter__(self) -> AsyncTransaction:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            self._over = True
        elif not self._over:
            await self.commit()

    def ack(self, done: AsyncDelivery | AsyncDeliveredMessage) -> None:
        """Acknowledge a delivery; or a message, with everything before it in its partition."""
        self._check_open()
        if isinstance(done, AsyncDelivery):
            self._acks.append((done, done.pending_acks()))
        elif isinstance(done, AsyncDeliveredMessage):
            self._acks.append((done.delivery, done.delivery.pending_acks(done)))
        else:
            raise InvalidRequest(f"expected a delivery or one of its messages, not {type(done).__name__}")

    def push(
        self,
        queue: str,
        payload: Any,
        **options: Unpack[MessageOptions],
    ) -> None:
        """Push a message, as the client's `push` does. Raises InvalidPayload at once, and all other errors on
        commit.
        """
        self._check_open()
        self._messages.append(new_message(queue, payload, **options))

    async def commit(self) -> Committed:
        """Apply it. Raises TransactionRolledBack or QueueFull; then nothing was applied."""
        self._check_open()
        self._over = True
        acks = [ack for _, some in self._acks for ack in some]
        self.result = Committed([], [])
        if acks or self._messages:
            self.result = await self._transport.transaction(acks, self._messages)
        outcomes = iter(self.result.acks)
        for delivery, some in self._acks:
            delivery.settle(some, [next(outcomes) for _ in some])
        return self.result

    def _check_open(self) -> None:
        if self._over:
            raise InvalidRequest("the transaction is over")

"""What a pop delivered: messages under one lease, and the ways to end it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any, Protocol, overload

from lockstep.client._async.concurrency import Lock, monotonic
from lockstep.client._async.transport import AsyncTransport
from lockstep.client._progress import progress_of, refusal
from lockstep.client._received import Delivered, ReceivedMessage
from lockstep.client._requests import wait_seconds
from lockstep.core.messages import Message
from lockstep.core.records import Ack, AckOutcome, Renewal
from lockstep.errors import InvalidRequest, LeaseLost


class Source(Protocol):
    """The origin of a delivery, and of the next one (`source.py`)."""

    async def pop(self, deadline: float | None = None) -> AsyncDelivery: ...
    async def next(self, lease_id: str, deadline: float | None = None) -> AsyncDelivery: ...


class AsyncDeliveredMessage(ReceivedMessage):
    """A popped message, to be acknowledged."""

    __slots__ = ("_delivery",)

    def __init__(self, record: Message, as_type: Any, delivery: AsyncDelivery) -> None:
        super().__init__(record, as_type)
        self._delivery = delivery

    @property
    def delivery(self) -> AsyncDelivery:
        """The messages that were popped together, under the same lease."""
        return self._delivery

    async def ack(self) -> None:
        """Acknowledge it; in an ordered group, with everything before it in its partition. Raises LeaseLost."""
        await self._delivery.ack_to(self)

    async def nack(self, error: str | None = None, *, retry_at: datetime | None = None) -> None:
        """Fail it: it is delivered again after the retry delay or at a given time, or becomes a dead letter. Raises
        LeaseLost."""
        await self._delivery.end_at(self, "failed", error, retry_at)

    async def retry(self, *, retry_at: datetime | None = None) -> None:
        """Request redelivery, now or at a given time. In a shared group this counts as an attempt, and without attempts
        left the message is exhausted; in an ordered group it does not. Raises LeaseLost."""
        await self._delivery.end_at(self, "retry", None, retry_at)

    async def release(self) -> None:
        """Release it at once, as if it had not been delivered. Raises LeaseLost."""
        await self._delivery.end_at(self, "released", None)

    async def dead(self, error: str | None = None) -> None:
        """Make it a dead letter, whatever attempts are left. Raises LeaseLost."""
        await self._delivery.end_at(self, "dlq", error)


class AsyncDelivery:
    """The messages of one pop. Empty, and therefore false, if there were none."""

    def __init__(
        self, transport: AsyncTransport, delivered: Delivered, as_type: Any = None, source: Source | None = None
    ) -> None:
        self._transport = transport
        self._source = source
        self._progress = progress_of(delivered)
        self._lock = Lock()
        self._committed_at = monotonic()
        self.group = delivered.group
        self.lease_id = delivered.lease_id
        self.expires_at = delivered.expires_at
        self.lost = False
        """The lease is lost: another consumer may have the messages, and acks no longer count."""
        self.messages = [AsyncDeliveredMessage(record, as_type, self) for record in delivered.messages]

    def __len__(self) -> int:
        return len(self.messages)

    def __iter__(self) -> Iterator[AsyncDeliveredMessage]:
        return iter(self.messages)

    @overload
    def __getitem__(self, index: int) -> AsyncDeliveredMessage: ...
    @overload
    def __getitem__(self, index: slice) -> list[AsyncDeliveredMessage]: ...
    def __getitem__(self, index: int | slice) -> AsyncDeliveredMessage | list[AsyncDeliveredMessage]:
        return self.messages[index]

    def __repr__(self) -> str:
        return f"<delivery of {len(self.messages)} messages to {self.group}, lease {self.lease_id}>"

    def payloads(self) -> list[Any]:
        """The decoded payloads of the messages. Raises InvalidPayload."""
        return [message.payload for message in self.messages]

    async def ack(self) -> None:
        """Acknowledge all messages. Raises LeaseLost."""
        async with self._lock:
            await self._send(self._progress.whole())

    async def next(self, *, wait: bool = False, timeout_seconds: float | None = None) -> AsyncDelivery:
        """Acknowledge all messages and lease the next ones with the options of the pop, in one request that prefers the
        same partitions. With `wait` it waits for messages, as `pop` does. Raises LeaseLost.

        If messages were failed or released, the rest is acknowledged first, followed by a separate pop.
        """
        patience_seconds = wait_seconds(wait, timeout_seconds)
        deadline = monotonic() + patience_seconds if wait else None
        if self._source is None:
            raise InvalidRequest("only what was popped can be continued")
        async with self._lock:
            acks = self._progress.whole() if self.lease_id is not None else []
            if not acks:
                self._check_not_lost()
                return await self._source.pop(deadline)
            if not _is_whole(acks):
                await self._send(acks)
                return await self._source.pop(deadline)
        return await self._continue(acks, deadline)

    async def nack(self, error: str | None = None, *, retry_at: datetime | None = None) -> None:
        """Fail the first message of each partition, or in a shared group every message: all are delivered again after
        the retry delay, or at a given time. Raises LeaseLost."""
        async with self._lock:
            await self._send(self._progress.ends("failed", error, retry_at))

    async def retry(self, *, retry_at: datetime | None = None) -> None:
        """Request redelivery of all messages, now or at a given time. Raises LeaseLost."""
        async with self._lock:
            await self._send(self._progress.ends("retry", None, retry_at))

    async def dead(self, error: str | None = None) -> None:
        """Make all messages dead letters. Raises LeaseLost."""
        async with self._lock:
            await self._send(self._progress.dead(error))

    async def renew(self, seconds: float | None = None) -> datetime | None:
        """Extend the lease from now on; by default by the queue's lease time. Returns the new deadline. Raises
        LeaseLost.
        """
        self._check_leased()
        [renewed] = await self._transport.renew([Renewal(lease_id=self.lease_id or "", seconds=seconds)])
        if not renewed.partitions:
            self.lose()
            raise LeaseLost()
        self.expires_at = renewed.expires_at
        return renewed.expires_at

    # For messages and consumers

    @property
    def over(self) -> bool:
        """Whether all messages have ended."""
        return self._progress.over

    @property
    def is_finished(self) -> bool:
        """Whether all messages are finished but none has ended yet, so that the delivery can be continued."""
        return self.lease_id is not None and not self.lost and _is_whole(self._progress.ends("released"))

    async def go_on(self, deadline: float) -> AsyncDelivery:
        """The next messages, before a deadline, if all of this delivery is finished. Raises LeaseLost."""
        return await self._continue(self._progress.whole(), deadline)

    async def _continue(self, acks: list[Ack], deadline: float | None) -> AsyncDelivery:
        assert self._source is not None
        assert self.lease_id is not None
        self._check_leased()
        try:
            following = await self._source.next(self.lease_id, deadline)
        except LeaseLost:
            self.lose()
            raise
        self._progress.settle(acks, [AckOutcome(index=0, success=True)])
        return following

    def is_open(self, message: AsyncDeliveredMessage) -> bool:
        """Whether we still hold the message and it is not finished."""
        return self._progress.is_open(message.partition_id, message.seq)

    def lose(self) -> None:
        """Called when a call has found that the lease is lost."""
        self.lost = True
        self._progress.end()

    def finish(self, message: AsyncDeliveredMessage) -> None:
        """Mark the message as done. The next commit acks it."""
        self._progress.finish(message.partition_id, message.seq)

    def finish_all(self) -> None:
        """Mark all messages as done."""
        for message in self.messages:
            self.finish(message)

    def pending_acks(self, message: AsyncDeliveredMessage | None = None) -> list[Ack]:
        """The acks for all messages, or up to a given one, for a transaction."""
        self._check_leased()
        if message is None:
            return self._progress.all_parts()
        return self._progress.ends_one(message.partition_id, message.seq, "completed")

    def settle(self, acks: list[Ack], outcomes: list[Any]) -> None:
        """Called when a transaction has applied the acks."""
        self._progress.settle(acks, outcomes)

    async def ack_to(self, message: AsyncDeliveredMessage) -> None:
        """Acknowledge the message, and in an ordered group all before it."""
        async with self._lock:
            self._check_leased()
            if self._progress.is_gone(message.partition_id, message.seq):
                raise LeaseLost(
                    "the lease on this message has ended: the message was released and will be delivered again"
                )
            self._progress.finish(message.partition_id, message.seq)
            await self._send(self._progress.commits())

    async def end_at(
        self, message: AsyncDeliveredMessage, status: Any, error: str | None, retry_at: datetime | None = None
    ) -> None:
        """End the message with a status other than completed."""
        async with self._lock:
            await self._send(self._progress.ends_one(message.partition_id, message.seq, status, error, retry_at))

    async def commit(self, interval_seconds: float = 0.0) -> None:
        """Acknowledge the finished messages; within the interval after the last ack, leave them to the next commit. If
        all are finished, leave them to the call that continues or ends the delivery."""
        if monotonic() - self._committed_at < interval_seconds or self.is_finished:
            return
        async with self._lock:
            await self._send(self._progress.commits())

    async def release(self) -> None:
        """Acknowledge the finished messages, and release the rest as if they had not been delivered. Later calls have
        no effect."""
        async with self._lock:
            try:
                if not self._progress.over:
                    await self._send(self._progress.ends("released"))
            finally:
                self._progress.end()

    async def _send(self, acks: list[Ack]) -> None:
        if not self.messages:
            return
        self._check_leased()
        if not acks:
            return
        self._committed_at = monotonic()
        outcomes = await self._transport.ack(acks)
        self._progress.settle(acks, outcomes)
        error = refusal(outcomes)
        if isinstance(error, LeaseLost):
            self.lost = True
        if error is not None:
            raise error

    def _check_not_lost(self) -> None:
        if self.lost:
            raise LeaseLost()

    def _check_leased(self) -> None:
        self._check_not_lost()
        if self.messages and self.lease_id is None:
            raise InvalidRequest("the messages were acknowledged when they were popped (auto_ack)")


def _is_whole(acks: list[Ack]) -> bool:
    return len(acks) == 1 and acks[0].ends_lease

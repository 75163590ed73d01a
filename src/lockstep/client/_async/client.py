"""The client: everything that Lockstep does, over any transport."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Unpack
from weakref import WeakSet

from lockstep.client._async.concurrency import Event, H, Handler, check_handler, monotonic
from lockstep.client._async.consumer import AsyncConsumer
from lockstep.client._async.crew import AsyncCrew
from lockstep.client._async.delivery import AsyncDelivery
from lockstep.client._async.poller import AsyncPoller
from lockstep.client._async.producer import AsyncProducer
from lockstep.client._async.renewer import AsyncRenewer
from lockstep.client._async.source import AsyncSource
from lockstep.client._async.transaction import AsyncTransaction
from lockstep.client._async.transport import AsyncTransport
from lockstep.client._async.verbs import AsyncVerbs
from lockstep.client._async.worker import AsyncWorker
from lockstep.client._failures import OnError, check_on_error
from lockstep.client._payloads import MessageOptions, check_type, new_message
from lockstep.client._requests import PopOptions, check_seconds, pop_request, wait_seconds
from lockstep.core.messages import Batch, NewMessage, Receipt
from lockstep.core.operations import QueuedAs
from lockstep.core.records import Ack, AckOutcome, Renewal, Renewed
from lockstep.errors import InvalidRequest

_MIB = 1024**2


class AsyncClient(AsyncVerbs):
    """Created by `lockstep.connect_async`. Opens on first use, or with its context; many tasks may share it."""

    def __init__(self, transport: AsyncTransport, *, tracing: bool = False) -> None:
        self._producer_kind = AsyncProducer
        self._consumer_kind = AsyncConsumer
        self._traced: Callable[[Handler], Handler] | None = None
        if tracing:
            from lockstep.client._async import tracing as parts

            transport = parts.AsyncTracedTransport(transport)
            self._producer_kind, self._consumer_kind = parts.AsyncTracedProducer, parts.AsyncTracedConsumer
            self._traced = parts.traced
        super().__init__(transport)
        self._renewer = AsyncRenewer(transport)
        self._workers: list[AsyncWorker] = []
        self._consumers: WeakSet[AsyncConsumer] = WeakSet()
        self._producers: set[AsyncProducer] = set()
        """Kept until they are closed, because their failures must be reported."""
        self._crews: set[AsyncCrew] = set()
        self._stop = Event()
        self._closing = Event()

    async def __aenter__(self) -> AsyncClient:
        try:
            await self.open()
        except BaseException:
            await self.close()  # nothing else will: the context was not entered
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def open(self) -> None:
        """Connect. Raises Unavailable."""
        await self._transport.open()

    async def close(self) -> None:
        """Drain the workers, flush what producers hold, release the messages that consumers hold, close everything.
        Safe to call twice.

        Raises the error of a failed producer, as its `flush` does.
        """
        self.stop()
        self._closing.set()
        # In reverse order; each is closed even if another fails.
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._transport.close)
            stack.push_async_callback(self._renewer.close)
            for consumer in list(self._consumers):
                stack.push_async_callback(consumer.close)
            for producer in list(self._producers):
                stack.push_async_callback(producer.close)
            for crew in list(self._crews):
                stack.push_async_callback(crew.wait)

    # Messages in

    async def push(
        self,
        queue: str,
        payload: Any,
        *,
        queued: QueuedAs | None = None,
        **options: Unpack[MessageOptions],
    ) -> Receipt:
        """Push one message. The payload becomes JSON; bytes need an encoding that names their format.

        A busy server may queue it. The call then waits until it is applied; if `queued` is `return`, it returns a
        receipt with only the id of the operation. By default, the client's setting decides.
        """
        message = new_message(queue, payload, **options)
        return (await self._transport.push([message], _check_queued(queued)))[0]

    async def push_many(
        self, messages: Sequence[NewMessage] | Sequence[Batch], *, queued: QueuedAs | None = None
    ) -> Sequence[Receipt]:
        """Push messages, created by `lockstep.new_message`, or batches: all of them or none. Receipts are in their
        order.
        """
        if not isinstance(messages, Sequence):
            raise InvalidRequest(f"messages must be a list, not {type(messages).__name__}")
        return await self._transport.push(messages, _check_queued(queued)) if messages else []

    def producer(
        self,
        queue: str,
        *,
        buffer_messages_max: int = 10_000,
        buffer_bytes_max: int = 64 * _MIB,
        batch_messages_max: int = 1000,
        batch_bytes_max: int = 4 * _MIB,
        linger_seconds: float = 0.0,
        on_error: OnError | None = None,
    ) -> AsyncProducer:
        """Push in the background, in order. A push waits while the buffer is full; `flush` waits until everything is
        stored. With a linger, an incomplete batch waits this long for more messages."""
        for name, limit in (
            ("buffer_messages_max", buffer_messages_max),
            ("buffer_bytes_max", buffer_bytes_max),
            ("batch_messages_max", batch_messages_max),
            ("batch_bytes_max", batch_bytes_max),
        ):
            _check_count(limit, name)
        check_seconds(linger_seconds, "linger_seconds")
        check_on_error(on_error)
        producer = self._producer_kind(
            self._transport,
            queue,
            buffer_messages_max=buffer_messages_max,
            buffer_bytes_max=buffer_bytes_max,
            batch_messages_max=batch_messages_max,
            batch_bytes_max=batch_bytes_max,
            linger_seconds=linger_seconds,
            on_error=on_error,
            on_close=self._producers.discard,
        )
        self._producers.add(producer)
        return producer

    # Messages out

    async def pop(
        self,
        queue: str | None = None,
        *,
        wait: bool = False,
        timeout_seconds: float | None = None,
        as_type: Any = None,
        **options: Unpack[PopOptions],
    ) -> AsyncDelivery:
        """Lease and return messages of a queue, one partition of it, or all queues of a namespace and/or task.

        Returns at most `batch` messages of at most `partitions` partitions. With `wait` it waits for them up to
        `timeout_seconds`, by default 30. Payloads are decoded to `as_type`. The delivery is empty if there are no
        messages. `mode` applies to a new group: ordered, or shared, with leases on single messages.
        """
        check_type(as_type)
        patience_seconds = wait_seconds(wait, timeout_seconds)
        source = AsyncSource(self._transport, pop_request(queue, options, batch=1), self._closing, as_type=as_type)
        return await source.pop(monotonic() + patience_seconds if wait else None)

    async def next(
        self,
        lease_id: str,
        queue: str | None = None,
        *,
        wait: bool = False,
        timeout_seconds: float | None = None,
        as_type: Any = None,
        **options: Unpack[PopOptions],
    ) -> AsyncDelivery:
        """Complete everything that a lease, given by its id, holds, and pop the next messages, preferably from its
        partitions. (A delivery has a method of its own.) Raises LeaseLost; then nothing is popped.
        """
        check_type(as_type)
        patience_seconds = wait_seconds(wait, timeout_seconds)
        source = AsyncSource(self._transport, pop_request(queue, options, batch=1), self._closing, as_type=as_type)
        return await source.next(lease_id, monotonic() + patience_seconds if wait else None)

    async def ack(self, acks: Sequence[Ack], *, atomic: bool = False) -> list[AckOutcome]:
        """End deliveries given by id or lease; returns one outcome per ack. (A delivery has methods of its own.)

        With `atomic`, all of them or none: raises TransactionRolledBack if one fails.
        """
        if atomic and acks:
            return (await self._transport.transaction(acks, [])).acks
        return await self._transport.ack(acks) if acks else []

    async def renew(self, renewals: Sequence[Renewal]) -> list[Renewed]:
        """Extend the deadline of leases."""
        return await self._transport.renew(renewals) if renewals else []

    def transaction(self) -> AsyncTransaction:
        """Acks and pushes that are applied together at the end of an `async with` block, or not at all."""
        return AsyncTransaction(self._transport)

    # Consumers

    def consume(
        self,
        queue: str | None = None,
        *,
        as_type: Any = None,
        renew: bool = True,
        ack_interval_seconds: float = 1.0,
        idle_timeout_seconds: float | None = None,
        **options: Unpack[PopOptions],
    ) -> AsyncConsumer:
        """Iterate over messages as they arrive; each is done when the loop asks for the next.

        Finished messages are acknowledged at the end of each batch, or as soon as `ack_interval_seconds` have passed.
        The loop ends when no message has arrived for `idle_timeout_seconds`; by default, never. Leases are renewed
        automatically.
        """
        check_type(as_type)
        check_seconds(ack_interval_seconds, "ack_interval_seconds")
        if idle_timeout_seconds is not None:
            check_seconds(idle_timeout_seconds, "idle_timeout_seconds")
        request = pop_request(queue, options, batch=10)
        stop = Event()
        consumer = self._consumer_kind(
            AsyncPoller(self._transport, request, stop, as_type=as_type),
            self._renewer if renew else None,
            stop,
            lease_seconds=request.lease_seconds,
            ack_interval_seconds=ack_interval_seconds,
            idle_timeout_seconds=idle_timeout_seconds,
        )
        self._consumers.add(consumer)
        return consumer

    def worker(
        self,
        queue: str | None = None,
        *,
        concurrency: int = 1,
        whole: bool = False,
        as_type: Any = None,
        renew: bool = True,
        ack_interval_seconds: float = 1.0,
        on_error: OnError | None = None,
        **options: Unpack[PopOptions],
    ) -> Callable[[H], H]:
        """Decorate a function to be called for each message, or with `whole` for each delivery, while `run` runs.

        `concurrency` loops pop independently. An error in the function fails the delivery: the message is delivered
        again after the retry delay, and eventually becomes a dead letter. `on_error` is called with it, too.
        """
        check_type(as_type)
        _check_count(concurrency, "concurrency")
        check_seconds(ack_interval_seconds, "ack_interval_seconds")
        check_on_error(on_error)
        request = pop_request(queue, options, batch=10)

        def register(handler: H) -> H:
            check_handler(handler)
            worker = AsyncWorker(
                self._transport,
                handler if self._traced is None else self._traced(handler),
                request,
                concurrency=concurrency,
                whole=whole,
                as_type=as_type,
                renewer=self._renewer if renew else None,
                ack_interval_seconds=ack_interval_seconds,
                on_error=on_error,
            )
            self._workers.append(worker)
            return handler

        return register

    async def run(self, *, stop_on_signals: bool = True, drain_timeout_seconds: float = 30.0) -> None:
        """Run the workers until `stop`, SIGINT or SIGTERM; then finish the messages being handled and release the rest.

        Messages that take longer than `drain_timeout_seconds` are released as well, and their outcome no longer counts.
        """
        if not self._workers:
            raise InvalidRequest("there is no worker to run")
        check_seconds(drain_timeout_seconds, "drain_timeout_seconds")
        crew = AsyncCrew(list(self._workers), self._stop)
        self._crews.add(crew)
        try:
            await crew.run(stop_on_signals=stop_on_signals, drain_timeout_seconds=drain_timeout_seconds)
        finally:
            self._crews.discard(crew)
            self._stop.clear()

    def stop(self) -> None:
        """Make `run` drain and return."""
        self._stop.set()


def _check_queued(queued: QueuedAs | None) -> QueuedAs | None:
    if queued not in (None, "wait", "return"):
        raise InvalidRequest(f"queued must be wait or return, not {queued!r}")
    return queued


def _check_count(value: object, what: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidRequest(f"{what} must be a whole number from 1 on, not {value!r}")

"""Parts of a client that make OpenTelemetry spans, each replacing a plain part."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Unpack

from lockstep.client._async.concurrency import Handler
from lockstep.client._async.connection import AsyncConnection
from lockstep.client._async.consumer import AsyncConsumer
from lockstep.client._async.delivery import AsyncDeliveredMessage
from lockstep.client._async.producer import AsyncProducer
from lockstep.client._async.transport import AsyncTransport
from lockstep.client._payloads import MessageOptions
from lockstep.client._protocol import HttpAnswer, HttpRequest
from lockstep.client._received import Committed, Delivered
from lockstep.core.messages import Batch, NewMessage, Receipt
from lockstep.core.operations import QueuedAs
from lockstep.core.records import Ack, AckOutcome, NextRequest, PopRequest, Renewal, Renewed
from lockstep.tracing import Processing, creating, own_context, processing, received, sending, settling, trace_id_of


class AsyncTracedTransport:
    """A transport with a span around each push, pop, ack and transaction."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def open(self) -> None:
        await self._transport.open()

    async def close(self) -> None:
        await self._transport.close()

    async def push(
        self, messages: Sequence[NewMessage] | Sequence[Batch], queued: QueuedAs | None = None
    ) -> Sequence[Receipt]:
        with sending("push", messages) as carried:
            return await self._transport.push(carried, queued)

    async def pop(self, request: PopRequest, wait_seconds: float) -> Delivered:
        begun_ns = time.time_ns()
        delivered = await self._transport.pop(request, wait_seconds)
        if delivered.messages:
            received(delivered.messages, delivered.group, begun_ns)
        return delivered

    async def next(self, request: NextRequest, wait_seconds: float) -> Delivered:
        """The ack has no span of its own: it is part of a request that may wait for messages."""
        begun_ns = time.time_ns()
        delivered = await self._transport.next(request, wait_seconds)
        if delivered.messages:
            received(delivered.messages, delivered.group, begun_ns, name="next")
        return delivered

    async def ack(self, acks: Sequence[Ack]) -> list[AckOutcome]:
        with settling(len(acks)):
            return await self._transport.ack(acks)

    async def renew(self, renewals: Sequence[Renewal]) -> list[Renewed]:
        return await self._transport.renew(renewals)

    async def transaction(self, acks: Sequence[Ack], messages: Sequence[NewMessage] | Sequence[Batch]) -> Committed:
        with sending("transaction", messages) as carried:
            return await self._transport.transaction(acks, carried)

    async def call(self, verb: str, /, **arguments: Any) -> Any:
        return await self._transport.call(verb, **arguments)


class AsyncTracedConnection(AsyncConnection):
    """Adds the current span to each request, so that the server's span is its child."""

    async def send(self, base: str, request: HttpRequest, timeout_seconds: float) -> HttpAnswer:
        return await super().send(base, replace(request, headers={**request.headers, **own_context()}), timeout_seconds)


class AsyncTracedProducer(AsyncProducer):
    """A span for each message: the background push, which the caller does not make, links to them."""

    async def push(self, payload: Any, **options: Unpack[MessageOptions]) -> None:
        given = options.get("headers") or {}
        with creating(self._queue) as own:
            if own and isinstance(given, Mapping) and "traceparent" not in given:
                options["headers"] = {**given, **own}
                options["trace_id"] = options.get("trace_id") or trace_id_of(own)
            await super().push(payload, **options)


class AsyncTracedConsumer(AsyncConsumer):
    """A span for processing each message: from when the loop gets it until it asks for the next."""

    _work: Processing | None = None

    async def _next(self) -> AsyncDeliveredMessage | None:
        self._end_work()
        message = await super()._next()
        if message is not None:
            self._work = Processing([message.record], message.delivery.group)
        return message

    async def _fail(self, message: AsyncDeliveredMessage, error: Exception) -> None:
        self._end_work(error)
        await super()._fail(message, error)

    async def close(self) -> None:
        self._end_work()
        await super().close()

    def _end_work(self, error: Exception | None = None) -> None:
        work, self._work = self._work, None
        if work is not None:
            work.end(error)


def traced(handler: Handler) -> Handler:
    """The handler of a worker, with a span around each call."""

    async def handle(given: Any) -> object:
        messages = [given] if isinstance(given, AsyncDeliveredMessage) else given.messages
        group = messages[0].delivery.group
        with processing([message.record for message in messages], group):
            return await handler(given)

    return handle

"""A server over HTTP: requests are repeated if that is safe, on any of the servers that answers."""

from __future__ import annotations

from collections.abc import Sequence
from random import random
from typing import Any

from lockstep.client import _protocol as protocol
from lockstep.client._async.concurrency import Handover, monotonic, sleep
from lockstep.client._async.connection import AsyncConnection
from lockstep.client._protocol import ConnectionFailed, HttpAnswer, HttpRequest
from lockstep.client._received import Committed, Delivered
from lockstep.client._retry import Bases, Failure, RetryPolicy
from lockstep.core.messages import Batch, NewMessage, Receipt
from lockstep.core.operations import OperationInfo, QueuedAs
from lockstep.core.records import Ack, AckOutcome, NextRequest, PopRequest, Renewal, Renewed
from lockstep.errors import LeaseLost, StillQueued, TransactionRolledBack, Unavailable

# The answer to a poll that has timed out arrives a little later. A longer wait consists of several polls.
_POLL_GRACE_SECONDS = 5.0
_POLL_SECONDS_MAX = 300.0
_REPEATED = "; it was sent twice, because the first answer was lost, so the first may have been applied"


class AsyncHttpTransport:
    """The verbs over HTTP."""

    def __init__(
        self,
        connection: AsyncConnection,
        bases: Bases,
        retry: RetryPolicy,
        *,
        timeout_seconds: float,
        exactly_once: bool,
        queued: QueuedAs = "wait",
        queued_seconds_max: float = 300.0,
        packed: bool = True,
    ) -> None:
        self._connection = connection
        self._bases = bases
        self._retry = retry
        self._timeout_seconds = timeout_seconds
        self._exactly_once = exactly_once
        self._packed = packed
        self._queued = queued
        self._queued_seconds_max = queued_seconds_max
        self._handover = Handover(self._release)
        self._closed = False

    async def open(self) -> None:
        await self._exchange(protocol.health())

    async def close(self) -> None:
        await self._handover.close()
        self._closed = True
        await self._connection.close()

    async def push(
        self, messages: Sequence[NewMessage] | Sequence[Batch], queued: QueuedAs | None = None
    ) -> Sequence[Receipt]:
        push = protocol.outgoing_push(messages, exactly_once=self._exactly_once, packed=self._packed)
        answer, _ = await self._exchange(push.request())
        operation_id = protocol.operation_of(answer)
        if operation_id is None:
            return push.receipts(answer)
        if (queued or self._queued) == "return":
            return push.queued(operation_id)
        until = monotonic() + self._queued_seconds_max
        while (left := until - monotonic()) > 0:
            info = await self._operation(operation_id, min(left, self._timeout_seconds))
            receipts = push.applied(info)
            if receipts is not None:
                return receipts
        raise StillQueued(f"the push waits to be applied, as operation {operation_id}", operation_id=operation_id)

    async def _operation(self, operation_id: str, wait_seconds: float) -> OperationInfo:
        request = protocol.call("operation", {"operation_id": operation_id, "wait_seconds": wait_seconds})
        answer, _ = await self._exchange(request, wait_seconds + _POLL_GRACE_SECONDS)
        info: OperationInfo = protocol.result_of(answer, "operation")
        return info

    async def pop(self, request: PopRequest, wait_seconds: float) -> Delivered:
        return await self._handover.run(self._pop(request, wait_seconds))

    async def _pop(self, request: PopRequest, wait_seconds: float) -> Delivered:
        wait_seconds = min(wait_seconds, _POLL_SECONDS_MAX)
        answer, _ = await self._exchange(
            protocol.pop(request, wait_seconds, packed=self._packed), self._poll_timeout(wait_seconds)
        )
        return protocol.delivered_of(answer, request.group)

    async def next(self, request: NextRequest, wait_seconds: float) -> Delivered:
        return await self._handover.run(self._next(request, wait_seconds))

    async def _next(self, request: NextRequest, wait_seconds: float) -> Delivered:
        wait_seconds = min(wait_seconds, _POLL_SECONDS_MAX)
        asked = protocol.next(request, wait_seconds, packed=self._packed)
        answer, _ = await self._exchange(asked, self._poll_timeout(wait_seconds))
        return protocol.delivered_of(answer, request.pop.group)

    def _poll_timeout(self, wait_seconds: float) -> float:
        return self._timeout_seconds if wait_seconds <= 0 else wait_seconds + _POLL_GRACE_SECONDS

    async def _release(self, delivered: Delivered) -> None:
        """Release messages that were popped for a caller that is gone."""
        if delivered.lease_id is not None:
            await self._exchange(protocol.ack_by_lease(Ack(lease_id=delivered.lease_id, status="released")))

    async def ack(self, acks: Sequence[Ack]) -> list[AckOutcome]:
        protocol.check_kinds(acks, Ack, what="acks")
        if len(acks) == 1 and acks[0].transaction_id is None and acks[0].lease_id is not None:
            answer, repeated = await self._exchange(protocol.ack_by_lease(acks[0]))
            outcomes = [protocol.lease_outcome_of(answer)]
        elif protocol.fit_batch(acks):
            answer, repeated = await self._exchange(protocol.ack_batch(acks))
            outcomes = protocol.outcomes_of(answer)
        else:
            answer, repeated = await self._exchange(protocol.ack_any(acks))
            outcomes = protocol.result_of(answer, "ack")
        if repeated and any(outcome.error == "lease_lost" for outcome in outcomes):
            raise LeaseLost(f"the lease is gone{_REPEATED}", maybe_applied=True, outcomes=outcomes)
        return outcomes

    async def renew(self, renewals: Sequence[Renewal]) -> list[Renewed]:
        protocol.check_kinds(renewals, Renewal, what="renewals")
        answers = [await self._exchange(protocol.renew(renewal)) for renewal in renewals]
        return [protocol.renewed_of(answer) for answer, _ in answers]

    async def transaction(self, acks: Sequence[Ack], messages: Sequence[NewMessage] | Sequence[Batch]) -> Committed:
        protocol.check_kinds(acks, Ack, what="acks")
        items = protocol.push_items(messages, exactly_once=self._exactly_once)
        if not items and not protocol.fit_batch(acks):
            answer, _ = await self._exchange(protocol.ack_any(acks, atomic=True))
            return Committed(protocol.result_of(answer, "ack"), [])
        answer, repeated = await self._exchange(protocol.transaction(acks, items))
        try:
            return protocol.committed_of(answer, acks, items)
        except TransactionRolledBack as error:
            if not repeated:
                raise
            raise TransactionRolledBack(f"{error.message}{_REPEATED}", maybe_applied=True, **error.details) from error

    async def call(self, verb: str, /, **arguments: Any) -> Any:
        answer, _ = await self._exchange(protocol.call(verb, arguments))
        return protocol.result_of(answer, verb)

    async def _exchange(self, request: HttpRequest, timeout_seconds: float | None = None) -> tuple[HttpAnswer, bool]:
        """The answer, and whether the request may have been applied by an earlier attempt."""
        attempt, repeated = 0, False
        while True:
            attempt += 1
            base = self._bases.choose(monotonic())
            answer, failure = await self._attempt(base, request, timeout_seconds or self._timeout_seconds)
            if failure is None:
                self._bases.worked(base)
                return answer, repeated
            another = failure.unreachable and self._bases.failed(base, monotonic())
            repeated = repeated or failure.maybe_applied
            if not self._retry.again(failure, attempt, repeatable=request.repeatable):
                if repeated:  # by this attempt or an earlier one
                    failure.error.details["maybe_applied"] = True
                raise failure.error
            if not another:
                await sleep(
                    self._retry.delay_seconds(attempt, random(), retry_after_seconds=failure.retry_after_seconds)
                )

    async def _attempt(
        self, base: str, request: HttpRequest, timeout_seconds: float
    ) -> tuple[HttpAnswer, Failure | None]:
        if self._closed:
            raise Unavailable("the client is closed")
        try:
            answer = await self._connection.send(base, request, timeout_seconds)
        except ConnectionFailed as error:
            return HttpAnswer(0, b""), protocol.connection_failure(error)
        return answer, protocol.failure_of(answer)

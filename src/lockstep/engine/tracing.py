"""The engine of a traced server: messages pushed without a trace context get that of their request."""

from __future__ import annotations

from collections.abc import Sequence

from lockstep.core.messages import Batch, NewMessage, PushResult
from lockstep.core.operations import Order, QueuedAs
from lockstep.core.records import Ack, TransactionResult
from lockstep.engine.engine import Engine
from lockstep.tracing import carrying


class TracedEngine(Engine):
    """Messages of clients without tracing, such as curl, are traced from the server on."""

    async def push(
        self,
        messages: Sequence[Batch] | Sequence[NewMessage],
        *,
        queued: QueuedAs = "wait",
        told_in: Order | None = None,
    ) -> PushResult:
        return await super().push(carrying(messages), queued=queued, told_in=told_in)

    async def transaction(
        self,
        acks: Sequence[Ack],
        messages: Sequence[Batch] | Sequence[NewMessage],
        *,
        required_leases: Sequence[str] = (),
    ) -> TransactionResult:
        return await super().transaction(acks, carrying(messages), required_leases=required_leases)

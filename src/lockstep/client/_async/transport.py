"""The interface between a client and its back end: a server over HTTP, or an engine in this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from lockstep.client._received import Committed, Delivered
from lockstep.core.messages import Batch, NewMessage, Receipt
from lockstep.core.operations import QueuedAs
from lockstep.core.records import Ack, AckOutcome, NextRequest, PopRequest, Renewal, Renewed


class AsyncTransport(Protocol):
    """The verbs, with records as arguments and results. `storage/base/` documents them."""

    async def open(self) -> None:
        """Prepare for use. The other verbs do so, too, if necessary."""

    async def close(self) -> None:
        """Release all resources. Safe to call twice."""

    async def push(
        self, messages: Sequence[NewMessage] | Sequence[Batch], queued: QueuedAs | None = None
    ) -> Sequence[Receipt]:
        """`queued` says whether to wait for a push that a busy server queues; None: according to the settings."""
        ...

    async def pop(self, request: PopRequest, wait_seconds: float) -> Delivered:
        """Wait for messages up to `wait_seconds`, or less if there is a limit; 0 does not wait."""
        ...

    async def next(self, request: NextRequest, wait_seconds: float) -> Delivered:
        """Complete everything that a lease holds, and pop the next messages, waiting as in `pop`. Raises LeaseLost."""
        ...

    async def ack(self, acks: Sequence[Ack]) -> list[AckOutcome]: ...

    async def renew(self, renewals: Sequence[Renewal]) -> list[Renewed]: ...

    async def transaction(self, acks: Sequence[Ack], messages: Sequence[NewMessage] | Sequence[Batch]) -> Committed: ...

    async def call(self, verb: str, /, **arguments: Any) -> Any:
        """Any other verb of the engine, with its arguments by name."""

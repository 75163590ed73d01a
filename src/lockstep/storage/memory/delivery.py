"""Messages in and out."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from lockstep.core.messages import Batch, PushResult
from lockstep.core.records import (
    Ack,
    AckOutcome,
    Awaited,
    Continued,
    NextRequest,
    PendingRequest,
    Popped,
    PopRequest,
    Renewal,
    Renewed,
    TransactionResult,
    refuse_lost,
)
from lockstep.storage.memory import ack, continuing, pop, push
from lockstep.storage.memory.dead_queue import DeadQueues
from lockstep.storage.memory.first_polls import MemoryFirstPolls, note_all
from lockstep.storage.memory.state import State


class MemoryDelivery:
    """Messages in and out."""

    def __init__(self, state: State, dead_queues: DeadQueues, first_polls: MemoryFirstPolls) -> None:
        self._state = state
        self._dead_queues = dead_queues
        self._first_polls = first_polls

    async def push(self, batches: Sequence[Batch], *, lock_seconds: float | None = None) -> PushResult:  # noqa: ARG002
        return push.push(self._state, batches, self._state.now())

    async def pop(self, requests: Sequence[PopRequest]) -> list[Popped]:
        pop.check_modes(self._state, requests)
        with self._dead_queues.forwarding() as now:
            note_all(self._state, self._first_polls, requests, now)
            return [pop.pop(self._state, request, now) for request in requests]

    async def has_pending(self, requests: Sequence[PendingRequest]) -> list[bool]:
        return [seconds == 0 for seconds in await self.due_in([request.awaited() for request in requests], within=0)]

    async def due_in(self, awaited: Sequence[Awaited], *, within: float) -> list[float | None]:
        now = self._state.now()
        return [pop.due_in(self._state, one, within=within, now=now) for one in awaited]

    async def ack(self, acks: Sequence[Ack], *, lock_seconds: float | None = None) -> list[AckOutcome]:  # noqa: ARG002
        with self._dead_queues.forwarding() as now:
            return ack.ack(self._state, acks, now)

    async def next(
        self,
        requests: Sequence[NextRequest],
        *,
        hold_seconds: float,
        lock_seconds: float | None = None,  # noqa: ARG002
    ) -> list[Continued]:
        pops = [request.pop for request in requests]
        pop.check_modes(self._state, pops)
        with self._dead_queues.forwarding() as now:
            note_all(self._state, self._first_polls, pops, now)
            return continuing.next_leases(self._state, requests, timedelta(seconds=hold_seconds), now)

    async def renew(self, renewals: Sequence[Renewal]) -> list[Renewed]:
        return pop.renew(self._state, renewals, self._state.now())

    async def transaction(
        self, acks: Sequence[Ack], batches: Sequence[Batch], *, required_leases: Sequence[str] = ()
    ) -> TransactionResult:
        with self._dead_queues.forwarding() as now:
            refuse_lost([lease for lease in required_leases if not pop.is_live(self._state, lease, now)])
            return ack.transaction(self._state, acks, batches, now)

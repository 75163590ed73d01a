"""Messages in and out: push, pop, ack, renew, and transactions of them."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

import asyncpg

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
    refuse_failed,
    refuse_lost,
)
from lockstep.storage.postgres import sql
from lockstep.storage.postgres.ack import ack_items_call, ack_leases_call, item_outcomes, lease_outcomes, lease_uuid
from lockstep.storage.postgres.calls import milliseconds
from lockstep.storage.postgres.context import Context
from lockstep.storage.postgres.continuing import Continuing
from lockstep.storage.postgres.failures import Dying
from lockstep.storage.postgres.forwarding import Forwarding
from lockstep.storage.postgres.lookups import Lookups
from lockstep.storage.postgres.pop import Pops
from lockstep.storage.postgres.push.conversation import Pushed, all_known, push_now
from lockstep.storage.postgres.push.pushes import Pushes
from lockstep.storage.postgres.push.scheduled import may_wait


class _Renewed(NamedTuple):
    lease_id: UUID
    partitions: int
    expires_at: datetime


_DUE_IN: sql.Procedure[list[float | None]] = sql.procedure("due_in")
_DUE_IN_LABELS: sql.Procedure[list[float | None]] = sql.procedure("due_in_labels")
_RENEW = sql.procedure("renew", _Renewed)
_HOLD_LEASES: sql.Procedure[Any] = sql.procedure("hold_leases")


class PostgresDelivery:
    """Messages in and out."""

    def __init__(self, context: Context, lookups: Lookups, pushes: Pushes, pops: Pops, forwarding: Forwarding) -> None:
        self._context = context
        self._lookups = lookups
        self._pushes = pushes
        self._pops = pops
        self._forwarding = forwarding
        self._continuing = Continuing(context, lookups, pops, forwarding)

    async def push(self, batches: Sequence[Batch], *, lock_seconds: float | None = None) -> PushResult:
        queues = {batch.queue for batch in batches}
        context = self._context
        names = context.names

        def push() -> Awaitable[Pushed]:
            at = context.now()
            plain = push_now(batches, names, encryption=context.encryption, at=at, lock_seconds=lock_seconds)
            return context.converse(plain)

        if all_known(batches, names) and not may_wait(batches):
            pushed = await self._lookups.retrying(queues, push)
        else:
            # Queues and partitions that the push creates must be rolled back if it is refused.
            pushing = partial(self._pushes.on, batches=batches, lock_seconds=lock_seconds)
            pushed = await self._pushes.creating(queues, pushing, lock_seconds=lock_seconds)
        self._pushes.remember(pushed)
        return pushed.result

    async def pop(self, requests: Sequence[PopRequest]) -> list[Popped]:
        return await self._pops.pop(requests)

    async def has_pending(self, requests: Sequence[PendingRequest]) -> list[bool]:
        return [seconds == 0 for seconds in await self.due_in([request.awaited() for request in requests], within=0)]

    async def due_in(self, awaited: Sequence[Awaited], *, within: float) -> list[float | None]:
        answers: list[float | None] = [None] * len(awaited)
        asked: list[tuple[int, int, int | None]] = []
        wide = [i for i, one in enumerate(awaited) if one.queue is None]
        for i, one in enumerate(awaited):
            if one.queue is None or (names := await self._lookups.queue(one.queue)) is None:
                continue
            partition_id = None
            if one.partition is not None:
                partition_id = await self._lookups.partition(one.queue, names, one.partition)
                if partition_id is None:
                    continue
            group_id = await self._lookups.group(names, one.group)
            if group_id is None:
                answers[i] = 0.0
            else:
                asked.append((i, group_id, partition_id))
        if asked:
            group_ids = [group_id for _, group_id, _ in asked]
            partition_ids = [partition_id for _, _, partition_id in asked]
            call = _DUE_IN(group_ids=group_ids, partition_ids=partition_ids, within=within, at=self._context.now())
            for (i, _, _), answer in zip(asked, await self._context.database.value(call), strict=True):
                answers[i] = answer
        if wide:
            call = _DUE_IN_LABELS(
                namespaces=[awaited[i].namespace for i in wide],
                tasks=[awaited[i].task for i in wide],
                groups=[awaited[i].group for i in wide],
                within=within,
                at=self._context.now(),
            )
            for i, answer in zip(wide, await self._context.database.value(call), strict=True):
                answers[i] = answer
        return answers

    async def ack(self, acks: Sequence[Ack], *, lock_seconds: float | None = None) -> list[AckOutcome]:
        try:
            return await self._ack(acks, lock_seconds)
        except Dying:
            return await self._forwarding.run(
                lambda connection: self._ack(acks, lock_seconds, connection),
                partition_ids=[ack.partition_id for ack in acks if ack.partition_id is not None],
                lease_ids=[lease_uuid(ack.lease_id) for ack in acks if ack.partition_id is None],
            )

    async def _ack(
        self, acks: Sequence[Ack], lock_seconds: float | None, connection: asyncpg.Connection[Any] | None = None
    ) -> list[AckOutcome]:
        if all([ack.ends_lease for ack in acks]):
            leases = await self._context.database.call(
                ack_leases_call(acks, self._context.now(), lock_seconds), connection
            )
            return lease_outcomes(acks, leases)
        items = await self._context.database.call(ack_items_call(acks, self._context.now(), lock_seconds), connection)
        return item_outcomes(acks, items)

    async def next(
        self, requests: Sequence[NextRequest], *, hold_seconds: float, lock_seconds: float | None = None
    ) -> list[Continued]:
        return await self._continuing.next(requests, hold_seconds=hold_seconds, lock_seconds=lock_seconds)

    async def renew(self, renewals: Sequence[Renewal]) -> list[Renewed]:
        call = _RENEW(
            lease_ids=[lease_uuid(renewal.lease_id) for renewal in renewals],
            milliseconds=[milliseconds(renewal.seconds) for renewal in renewals],
            at=self._context.now(),
        )
        rows = {str(row.lease_id): row for row in await self._context.database.call(call)}
        renewed = {
            lease_id: Renewed(lease_id=lease_id, partitions=row.partitions, expires_at=row.expires_at)
            for lease_id, row in rows.items()
        }
        return [renewed.get(r.lease_id) or Renewed(lease_id=r.lease_id, partitions=0) for r in renewals]

    async def transaction(
        self, acks: Sequence[Ack], batches: Sequence[Batch], *, required_leases: Sequence[str] = ()
    ) -> TransactionResult:
        queues = {batch.queue for batch in batches}

        async def work(
            connection: asyncpg.Connection[Any],
        ) -> tuple[list[AckOutcome], Pushed, Pushed | None]:
            await self._pushes.resolve(connection, batches)
            await self._pushes.lock(connection, acks, batches, leases=required_leases)
            if required_leases:
                held = _HOLD_LEASES(lease_ids=list(map(lease_uuid, required_leases)), at=self._context.now())
                refuse_lost(
                    [required_leases[number - 1] for (number,) in await self._context.database.call(held, connection)]
                )
            outcomes: list[AckOutcome] = []
            if acks:
                outcomes = item_outcomes(
                    acks, await self._context.database.call(ack_items_call(acks, self._context.now()), connection)
                )
                refuse_failed(outcomes)
            pushed = await self._pushes.on(connection, batches)
            dead = any([outcome.dead for outcome in outcomes])
            return outcomes, pushed, await self._forwarding.forward(connection, queues) if dead else None

        outcomes, pushed, forwarded = await self._pushes.creating(queues, work)
        self._pushes.remember(pushed)
        self._pushes.remember(forwarded)
        return TransactionResult(outcomes, pushed.result)

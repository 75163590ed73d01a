"""Pushes for the rooms of a store: on a separate connection, or within a transaction."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

import asyncpg

from lockstep.core.messages import Batch
from lockstep.core.records import Ack, arrivals_of
from lockstep.storage.postgres import sql
from lockstep.storage.postgres.ack import lease_uuid
from lockstep.storage.postgres.calls import Conversation
from lockstep.storage.postgres.context import Context
from lockstep.storage.postgres.lookups import Lookups
from lockstep.storage.postgres.push import scheduled
from lockstep.storage.postgres.push.conversation import Pushed

T = TypeVar("T")

LOCK: sql.Procedure[None] = sql.procedure("lock_for_transaction")


class Pushes:
    def __init__(self, context: Context, lookups: Lookups) -> None:
        self._context = context
        self._lookups = lookups

    def conversation(
        self, batches: Sequence[Batch], *, lock_seconds: float | None = None, overtake: bool = False
    ) -> Conversation[Pushed]:
        """With `overtake` it overtakes waiting operations, for pushes that cannot break a producer's order."""
        return scheduled.push(
            batches,
            self._context.names,
            encryption=self._context.encryption,
            seconds_min=self._context.timing.schedule_seconds_min,
            at=self._context.now(),
            lock_seconds=lock_seconds,
            overtake=overtake,
        )

    async def on(
        self,
        connection: asyncpg.Connection[Any],
        batches: Sequence[Batch],
        *,
        lock_seconds: float | None = None,
        overtake: bool = False,
    ) -> Pushed:
        """Push within a transaction."""
        conversation = self.conversation(batches, lock_seconds=lock_seconds, overtake=overtake)
        return await self._context.converse(conversation, connection)

    async def resolve(
        self, connection: asyncpg.Connection[Any], batches: Sequence[Batch]
    ) -> dict[tuple[str, str], int]:
        """Create missing queues and partitions within a transaction; returns the ids of the partitions."""
        conversation = scheduled.resolve(batches, self._context.names, at=self._context.now())
        return await self._context.converse(conversation, connection)

    async def creating(
        self,
        queues: Collection[str],
        work: Callable[[asyncpg.Connection[Any]], Awaitable[T]],
        *,
        lock_seconds: float | None = None,
    ) -> T:
        """Run `work` in a transaction; if that fails, the ids that it looked up are not cached."""
        transaction = partial(self._context.database.transaction, work, lock_timeout_seconds=lock_seconds)
        return await self._lookups.retrying(queues, transaction, forget=True)

    async def lock(
        self,
        connection: asyncpg.Connection[Any],
        acks: Sequence[Ack],
        batches: Sequence[Batch],
        *,
        also: Iterable[int] = (),
        leases: Iterable[str] = (),
    ) -> None:
        """Take the locks of acks and pushes together, in order, so that transactions do not deadlock."""
        queue_ids: set[int] = set()
        partition_ids = {ack.partition_id for ack in acks if ack.partition_id is not None}.union(also)
        for batch in batches:
            names = self._context.names.get(batch.queue)
            if names is not None and batch.partition in names.partitions:
                queue_ids.add(names.id)
                partition_ids.add(names.partitions[batch.partition])
        by_lease = [ack.lease_id for ack in acks if ack.lease_id is not None and ack.partition_id is None]
        lease_ids = list(map(lease_uuid, [*by_lease, *leases]))
        lock = LOCK(queue_ids=list(queue_ids), partition_ids=list(partition_ids), lease_ids=lease_ids)
        await self._context.database.call(lock, connection)

    def remember(self, pushed: Pushed | None) -> None:
        """Cache what was committed, for consumers near the tail; notify waiting pops of messages that the store pushed
        on its own."""
        if pushed is None:
            return
        for segment_id, segment in pushed.segments:
            self._context.segments.put(segment_id, segment)
        if pushed.untold:
            self._context.signals.tell(arrivals_of(pushed.result.batches))

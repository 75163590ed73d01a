"""Messages that die in a queue with a dead queue: pushed there in the transaction that records their death.

A call in which such a message dies is refused by the database (`sql/procedures/dead_queue.sql`) and changes nothing;
it is then repeated here, in a transaction that pushes what died in it before it commits. Deaths are rare, so that the
others need no transaction of several statements.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import asyncpg

from lockstep.core.dead_queue import dead_copy
from lockstep.storage.postgres import pushing
from lockstep.storage.postgres.shared import Shared

T = TypeVar("T")

_LOCK = "select lockstep.lock_for_transaction('{}'::int[], $1::bigint[], $2::uuid[])"
_TAKE = "select * from lockstep.take_forwards()"
_HURRY = "set local lock_timeout = '100ms'"


class Forwarding(Shared):
    async def _forwarding(
        self,
        work: Callable[[asyncpg.Connection[Any]], Awaitable[T]],
        *,
        partition_ids: Sequence[int] = (),
        lease_ids: Sequence[str | None] = (),
        hurry: bool = False,
    ) -> T:
        """Run `work` in a transaction, and push what dies in it; the partitions where that may be are locked first.

        `hurry`: they are not known, so that `work` holds cursors when the targets are locked. That is against the order
        of locks; nobody waits long for it, and the transaction is tried again.
        """
        queues: set[str] = set()

        async def forwarded(connection: asyncpg.Connection[Any]) -> tuple[T, pushing.Pushed | None]:
            locks = (list(partition_ids), list(lease_ids))
            await self.database.on(connection, "lock_for_transaction", _LOCK, *locks)
            result = await work(connection)
            if hurry:
                await connection.execute(_HURRY)
            try:
                return result, await self._forward(connection, queues)
            except asyncpg.LockNotAvailableError as error:
                raise asyncpg.SerializationError("the partition for dead letters is held") from error

        try:
            result, pushed = await self.database.transaction(forwarded)
        except BaseException:
            for queue in queues:  # ids that were learned in it may be of what was not created after all
                self.names.forget(queue)
            raise
        self._remember(pushed)
        return result

    async def _forward(self, connection: asyncpg.Connection[Any], queues: set[str]) -> pushing.Pushed | None:
        """Push what died in this transaction; `queues` is told the names of those to which."""
        rows = await self.database.on(connection, "take_forwards", _TAKE)
        if not rows:
            return None
        queues.update(row[0] for row in rows)
        places = [(row[5], row[1], row[6], row[7], row[8], row[9]) for row in rows]
        runs = await self._load_single(places, connection)
        batches = [
            dead_copy(run.message(0), row[0], group=row[2], attempts=row[3], error=row[4])
            for row, run in zip(rows, runs, strict=True)
        ]
        conversation = pushing.push(batches, self.names, encryption=self.encryption, at=self.now(), overtake=True)
        return await self._converse(conversation, connection)

    def _remember(self, pushed: pushing.Pushed | None) -> None:
        """Consumers near the tail are served what was pushed here without reading it back."""
        for segment_id, segment in pushed.segments if pushed else ():
            self.segments.put(segment_id, segment)

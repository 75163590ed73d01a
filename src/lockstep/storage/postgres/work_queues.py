"""Work queues: partial configuration, what lies in partitions, balance, and the way back from a dead queue."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import asyncpg

from lockstep.core import refusals
from lockstep.core.dead_queue import Origin, origin_of, sent_back
from lockstep.core.messages import Message
from lockstep.core.policy import OPTION_NAMES, changed_options
from lockstep.core.records import PartitionStats, QueueInfo
from lockstep.errors import InvalidOption
from lockstep.storage.postgres import pushing, sql
from lockstep.storage.postgres.administration import CONFIGURE, Administration, queue_options
from lockstep.storage.postgres.delivery import Delivery
from lockstep.storage.postgres.failures import StaleName

# Both rows in the order of their names, as configure does.
_LOCK_QUEUES = """
select 1 from lockstep.queue q
where q.name in ($1, $2) or q.id = (select s.dead_queue_id from lockstep.queue s where s.name = $1)
order by q.name for no key update
"""
_REFUSE_GROUP_MODE = "select lockstep.refuse_group_mode($1, $2)"
_FIND_BALANCED = "select partitions from lockstep.queue where id = $1"
_TAKE_DEAD = (
    "select lockstep.take_dead("
    "$1::bigint[], $2::bigint[], $3::uuid[], $4::bigint[], $5::bigint[], $6::text[], $7::timestamptz)"
)


class WorkQueues(Administration, Delivery):
    async def update_queue(
        self, queue: str, changes: Mapping[str, Any], *, namespace: str | None = None, task: str | None = None
    ) -> QueueInfo:
        async def work(connection: asyncpg.Connection[Any]) -> None:
            await self.database.on(connection, "queue_lock", _LOCK_QUEUES, queue, changes.get("dead_queue"))
            found = await self.database.on(connection, "queue_options", sql.query("queue_options"), queue)
            if not found:
                raise refusals.no_queue(queue)
            options = changed_options(queue_options(found[0]), changes)
            if "group_mode" in changes:
                asked = (queue, options.group_mode)
                refused = (await self.database.on(connection, "queue_group_mode", _REFUSE_GROUP_MODE, *asked))[0][0]
                if refused is not None:
                    raise InvalidOption(refused)
            values = [getattr(options, name) for name in OPTION_NAMES]
            await self.database.on(connection, "configure", CONFIGURE, queue, namespace, task, *values, self.now())

        await self._with_names([queue], lambda: self.database.transaction(work))
        self.names.forget(queue)
        return await self.queue(queue)

    async def stats(self, queue: str, *, after: str | None = None, limit: int = 100) -> list[PartitionStats]:
        rows = await self._query("partition_stats", await self._queue_id(queue), after, limit, self.now())
        fields = PartitionStats.__struct_fields__
        return [PartitionStats(**dict(zip(fields, row, strict=True))) for row in rows]

    async def balanced(self, queue: str) -> int:
        names = await self._find_queue(queue)
        if names is None:
            return 0
        if names.balanced is None:
            rows = await self.database.fetch("queue_balanced", _FIND_BALANCED, names.id)
            names.balanced = rows[0][0] if rows else 0
        return names.balanced or 0

    async def balance(self, queue: str) -> list[int]:
        names = await self._find_queue(queue)
        if names is None or not await self.balanced(queue):
            return []
        return [row[0] for row in await self._query("partition_balance", names.id)]

    # Back from a dead queue

    async def redrive_queue(self, queue: str, *, limit: int = 1000) -> int:
        queue_id = await self._queue_id(queue)
        chosen = [one async for one in self._copies(queue_id, limit)]
        if not chosen:
            return 0
        queues = {origin.queue for _, origin in chosen}

        async def work(connection: asyncpg.Connection[Any]) -> tuple[int, pushing.Pushed]:
            batches = [sent_back(message, origin) for message, origin in chosen]
            await self._converse(pushing.resolve(batches, self.names, at=self.now()), connection)
            origins = [self._known_partition(origin) for _, origin in chosen]
            await self._lock_for(connection, [], batches, also=[message.partition_id for message, _ in chosen])
            taken = await self.database.on(connection, "take_dead", _TAKE_DEAD, *_places(chosen, origins), self.now())
            going = [batch for batch, is_taken in zip(batches, taken[0][0], strict=True) if is_taken]
            pushed = await self._converse(self._push_conversation(going, overtake=True), connection)
            return len(going), replace(pushed, untold=True)

        count, pushed = await self._create_names(queues, work)
        self._remember(pushed)
        return count

    async def _copies(self, queue_id: int, limit: int) -> AsyncIterator[tuple[Message, Origin]]:
        """Messages of the dead queue that may go back to a queue that exists, with where they came from."""
        place = (0, 0)
        found = 0
        while found < limit:
            rows = await self._query("dead_copies", queue_id, *place, limit, self.now())
            for run in await self._load_single(rows):
                message = run.message(0)
                origin = origin_of(message)
                if origin is None or found == limit or await self._find_queue(origin.queue) is None:
                    continue
                found += 1
                yield message, origin
            if len(rows) < limit:
                return
            place = (rows[-1][2], rows[-1][3])

    def _known_partition(self, origin: Origin) -> int:
        names = self.names.get(origin.queue)
        found = None if names is None else names.partitions.get(origin.partition)
        if found is None:
            raise StaleName("a name was forgotten in this moment")
        return found


def _places(chosen: Sequence[tuple[Message, Origin]], origins: Sequence[int]) -> Iterator[list[Any]]:
    yield [message.partition_id for message, _ in chosen]
    yield [message.seq for message, _ in chosen]
    yield [message.trace_id for message, _ in chosen]
    yield list(origins)
    yield [origin.seq for _, origin in chosen]
    yield [origin.group for _, origin in chosen]

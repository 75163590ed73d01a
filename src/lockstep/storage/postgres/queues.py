"""Queues and their partitions: configuring, clearing, deleting and describing them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import asyncpg
import msgspec

from lockstep.core import refusals
from lockstep.core.maintenance import Place
from lockstep.core.policy import OPTION_NAMES, QueueOptions, changed_options
from lockstep.core.records import ClearScope, PartitionInfo, PartitionStats, QueueInfo
from lockstep.errors import InvalidOption, LockstepError
from lockstep.storage.postgres import sql
from lockstep.storage.postgres.context import Context
from lockstep.storage.postgres.lookups import Lookups
from lockstep.storage.postgres.removal import QueueRemoval

logger = logging.getLogger("lockstep.storage")

_CONFIGURE: sql.Procedure[int] = sql.procedure("configure")
# Lock both rows in the order of their names, as configure does.
_LOCK_QUEUES = """
select 1 from lockstep.queue q
where q.name in ($1, $2) or q.id = (select s.dead_queue_id from lockstep.queue s where s.name = $1)
order by q.name for no key update
"""
_REFUSE_GROUP_MODE: sql.Procedure[str | None] = sql.procedure("refuse_group_mode", label="queue_group_mode")
_FIND_BALANCED: sql.Procedure[Any] = sql.procedure("balanced_over", label="queue_balanced")
_PARTITION_BALANCE: sql.Procedure[Any] = sql.procedure("partition_balance")
_STOP_ENCRYPTION: sql.Procedure[int | None] = sql.procedure("stop_encryption")
_DELETE_QUEUE: sql.Procedure[int | None] = sql.procedure("delete_queue")


class PostgresQueues:
    """Queues and their partitions."""

    def __init__(self, context: Context, lookups: Lookups, removal: QueueRemoval) -> None:
        self._context = context
        self._lookups = lookups
        self._removal = removal

    async def configure(
        self, queue: str, options: QueueOptions, *, namespace: str | None = None, task: str | None = None
    ) -> QueueInfo:
        values = msgspec.json.encode(options).decode()
        call = _CONFIGURE(queue=queue, namespace=namespace, task=task, options=values, at=self._context.now())
        await self._lookups.retrying([queue], lambda: self._context.database.call(call))
        self._context.names.forget(queue)
        return await self.queue(queue)

    async def update_queue(
        self, queue: str, changes: Mapping[str, Any], *, namespace: str | None = None, task: str | None = None
    ) -> QueueInfo:
        async def work(connection: asyncpg.Connection[Any]) -> None:
            await self._context.database.on(connection, "queue_lock", _LOCK_QUEUES, queue, changes.get("dead_queue"))
            found = await self._context.database.on(connection, "queue_options", sql.query("queue_options"), queue)
            if not found:
                raise refusals.no_queue(queue)
            options = changed_options(_queue_options(found[0]["options"]), changes)
            if "group_mode" in changes:
                refusal = _REFUSE_GROUP_MODE(queue=queue, mode=options.group_mode)
                refused = await self._context.database.value(refusal, connection)
                if refused is not None:
                    raise InvalidOption(refused)
            values = msgspec.json.encode(options).decode()
            call = _CONFIGURE(queue=queue, namespace=namespace, task=task, options=values, at=self._context.now())
            await self._context.database.call(call, connection)

        await self._lookups.retrying([queue], lambda: self._context.database.transaction(work))
        self._context.names.forget(queue)
        return await self.queue(queue)

    async def stop_encryption(self, queue: str) -> QueueInfo:
        found = await self._context.database.value(_STOP_ENCRYPTION(queue=queue, at=self._context.now()))
        if found is None:
            raise refusals.no_queue(queue)
        self._context.names.forget(queue)
        return await self.queue(queue)

    async def delete_queue(self, queue: str) -> bool:
        queue_id = await self._context.database.value(_DELETE_QUEUE(queue=queue, at=self._context.now()))
        self._context.names.forget(queue)
        if queue_id is None:
            return False
        try:
            while (await self._removal.remove_slice(queue_id)).next == Place(after=queue_id):
                pass
        except LockstepError as error:
            # The queue is deleted now, whatever fails later; maintenance removes the rest.
            fields = {"action": "queue_removal_postponed", "queue": queue, "error": str(error)}
            logger.warning("queue_removal_postponed", extra=fields)
        return True

    async def clear(self, queue: str, *, partition: str | None = None, scope: ClearScope = "all") -> int:
        async def work() -> int:
            queue_id = await self._lookups.queue_id(queue)
            if scope == "scheduled":
                return await self._removal.clear_scheduled(queue_id, partition)
            partition_id = None if partition is None else await self._lookups.partition_id(queue, queue_id, partition)
            if scope == "all":
                await self._removal.clear_places(queue_id, partition_id)
            return await self._removal.clear_messages(queue_id, partition_id, unleased=scope == "unleased")

        return await self._lookups.retrying([queue], work)

    async def queues(
        self,
        *,
        namespace: str | None = None,
        task: str | None = None,
        after: str | None = None,
        from_name: str | None = None,
        limit: int = 100,
        exact: bool = False,
    ) -> list[QueueInfo]:
        rows = await self._context.query(
            "queue_list",
            None,
            namespace,
            task,
            after,
            limit,
            self._context.now(),
            from_name,
            exact,
            self._context.limits.figures_units_max,
        )
        return [_queue_info(row) for row in rows]

    async def queue(self, queue: str, *, exact: bool = False) -> QueueInfo:
        found = await self._context.query(
            "queue_list",
            queue,
            None,
            None,
            None,
            1,
            self._context.now(),
            None,
            exact,
            self._context.limits.figures_units_max,
        )
        if not found:
            raise refusals.no_queue(queue)
        return _queue_info(found[0])

    async def partitions(
        self, queue: str, *, after: str | None = None, prefix: str | None = None, limit: int = 100
    ) -> list[PartitionInfo]:
        queue_id = await self._lookups.queue_id(queue)
        rows = await self._context.query("partition_list", queue_id, None, after, limit, self._context.now(), prefix)
        return [PartitionInfo(queue=queue, **row) for row in rows]

    async def partition(self, queue: str, partition: str) -> PartitionInfo:
        queue_id = await self._lookups.queue_id(queue)
        rows = await self._context.query("partition_list", queue_id, partition, None, 1, self._context.now(), None)
        if not rows:
            raise refusals.no_partition(queue, partition)
        return PartitionInfo(queue=queue, **rows[0])

    async def stats(self, queue: str, *, after: str | None = None, limit: int = 100) -> list[PartitionStats]:
        rows = await self._context.query(
            "partition_stats", await self._lookups.queue_id(queue), after, limit, self._context.now()
        )
        return [PartitionStats(**row) for row in rows]

    async def balanced(self, queue: str) -> int:
        names = await self._lookups.queue(queue)
        if names is None:
            return 0
        if names.balanced is None:
            rows = await self._context.database.call(_FIND_BALANCED(queue_id=names.id))
            names.balanced = rows[0]["partitions"] if rows else 0
        return names.balanced or 0

    async def balance(self, queue: str) -> list[int]:
        names = await self._lookups.queue(queue)
        if names is None or not await self.balanced(queue):
            return []
        return [count for (count,) in await self._context.database.call(_PARTITION_BALANCE(queue_id=names.id))]


def _queue_info(row: Any) -> QueueInfo:
    """A queue from a row of `queue_list`."""
    found = dict(row)
    if not found["pending"]:
        found["oldest_at"] = None
    return QueueInfo(**found | {"options": _queue_options(found["options"])})


def _queue_options(encoded: str) -> QueueOptions:
    """The options of a queue, from a row of lockstep.queue_options, which has other columns, too."""
    values = msgspec.json.decode(encoded)
    return msgspec.convert({name: values[name] for name in OPTION_NAMES}, QueueOptions)

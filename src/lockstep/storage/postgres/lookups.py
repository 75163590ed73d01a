"""From names to ids, and what to do when a name turns out to be out of date."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable
from contextlib import nullcontext
from typing import Any, TypeVar

from lockstep.core import refusals
from lockstep.errors import Unavailable
from lockstep.storage.postgres import sql
from lockstep.storage.postgres.cache import QueueNames, forgetting_on_failure
from lockstep.storage.postgres.context import Context
from lockstep.storage.postgres.failures import StaleName

T = TypeVar("T")

_STALE_ATTEMPTS_MAX = 20

_FIND_QUEUE: sql.Procedure[Any] = sql.procedure("find_queue", label="queue_find")
_FIND_PARTITION: sql.Procedure[Any] = sql.procedure("find_partition", label="partition_find")
_FIND_GROUP: sql.Procedure[Any] = sql.procedure("find_group", label="group_find")


class Lookups:
    """Ids by name: `queue`, `partition` and `group` from memory if possible, `…_id` always from the database."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def retrying(self, queues: Collection[str], work: Callable[[], Awaitable[T]], *, forget: bool = False) -> T:
        """Run `work`. If it finds a name out of date, forget the queues and run it again. With `forget`, the names that
        it learned are also forgotten if it fails, because what it created is rolled back then."""
        for _ in range(_STALE_ATTEMPTS_MAX):
            try:
                with forgetting_on_failure() if forget else nullcontext():
                    return await work()
            except StaleName:
                self.forget(queues)
        raise Unavailable("the queue's names kept changing during the call")

    def forget(self, queues: Iterable[str]) -> None:
        for queue in queues:
            self._context.names.forget(queue)

    async def queue(self, queue: str) -> QueueNames | None:
        known = self._context.names.get(queue)
        if known is None:
            rows = await self._context.database.call(_FIND_QUEUE(queue=queue))
            known = self._context.names.put(queue, QueueNames(*rows[0])) if rows else None
        return known

    async def partition(self, queue: str, names: QueueNames, partition: str) -> int | None:
        found = names.partitions.get(partition)
        if found is None:
            rows = await self._context.database.call(_FIND_PARTITION(queue_id=names.id, partition=partition))
            if rows:
                found = rows[0][0]
                self._context.names.put_partitions(queue, {partition: rows[0][0]}, of=names)
        return found

    async def group(self, names: QueueNames, group: str) -> int | None:
        found = names.groups.get(group)
        if found is None:
            rows = await self._context.database.call(_FIND_GROUP(queue_id=names.id, group=group))
            if rows:
                found = names.put_group(group, *rows[0])
        return found

    async def queue_id(self, queue: str) -> int:
        """The queue's id, looked up in the database: operators must not get cached answers."""
        self._context.names.forget(queue)
        names = await self.queue(queue)
        if names is None:
            raise refusals.no_queue(queue)
        return names.id

    async def partition_id(self, queue: str, queue_id: int, partition: str) -> int:
        rows = await self._context.database.call(_FIND_PARTITION(queue_id=queue_id, partition=partition))
        if not rows:
            raise refusals.no_partition(queue, partition)
        found: int = rows[0][0]
        return found

    async def group_id(self, queue: str, queue_id: int, group: str) -> int:
        rows = await self._context.database.call(_FIND_GROUP(queue_id=queue_id, group=group))
        if not rows:
            raise refusals.no_group(group, queue)
        found: int = rows[0][0]
        return found

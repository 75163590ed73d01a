"""Creates missing cursors of groups and removes cursors of deleted groups, in slices (sql/procedures/group.sql)."""

from __future__ import annotations

import logging
import time
from typing import Any

from lockstep.core import refusals
from lockstep.core.maintenance import START, Place, Pruned
from lockstep.core.names import QUEUE_MODE
from lockstep.errors import LockstepError
from lockstep.storage.postgres import sql
from lockstep.storage.postgres.cache import QueueNames
from lockstep.storage.postgres.calls import milliseconds
from lockstep.storage.postgres.context import Context

logger = logging.getLogger("lockstep.storage")

SUBSCRIBE: sql.Procedure[Any] = sql.procedure("subscribe")
_PLACE: sql.Procedure[Any] = sql.procedure("place_slice")
_PLACE_FOR_POP: sql.Procedure[Any] = sql.procedure("place_for_pop")
_AWAIT_SLICE: sql.Procedure[None] = sql.procedure("await_slice")
_NEXT_UNFINISHED: sql.Procedure[Any] = sql.procedure("next_unfinished_group")
_REMOVE_CURSORS: sql.Procedure[Any] = sql.procedure("remove_deleted_cursors")

_GROUP_ROOM: sql.Procedure[bool] = sql.procedure("group_room")


class Placing:
    """Creates the cursors that groups lack, and removes those of deleted groups, slice by slice."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def check_room(self, queue_id: int, group: str) -> None:
        """Raises TooManyGroups if a group is new and its queue has the maximum number. Two concurrent new groups may
        both be accepted."""
        limit = self._context.limits.queue_groups_max
        if group == QUEUE_MODE:
            return
        if await self._context.database.value(_GROUP_ROOM(queue_id=queue_id, most=limit, group=group)):
            raise refusals.no_room_for_group(group, limit)

    async def for_pop(self, names: QueueNames, group: str, partition_id: int | None) -> None:
        """Create some of the cursors that a group lacks, starting with a partition, if nothing is due for the group.
        Waits briefly for another process that is creating them."""
        group_id, limits = names.groups[group], self._context.limits
        placed = await self._place_for_pop(group_id, partition_id)
        if not (placed["_placed"] or placed["_made"] or placed["_due"] or placed["_more"]):
            lock_ms = milliseconds(limits.call_lock_seconds)
            await self._context.database.value(_AWAIT_SLICE(group_id=group_id, lock_ms=lock_ms))
            placed = await self._place_for_pop(group_id, partition_id)
        if placed["_placed"]:
            names.unplaced.discard(group)

    async def _place_for_pop(self, group_id: int, partition_id: int | None) -> Any:
        call = _PLACE_FOR_POP(
            group_id=group_id,
            partition_id=partition_id,
            partitions=self._context.limits.slice_partitions_max,
            at=self._context.now(),
        )
        return await self._context.database.value(call)

    async def group(self, group_id: int) -> bool:
        """Create missing cursors of a group, for a limited time; returns whether it has all of them."""
        until = time.monotonic() + self._context.limits.slices_seconds_max
        while True:
            _, _, more, placed = await self._place_slice(group_id)
            if placed or not more or time.monotonic() >= until:
                return bool(placed)

    async def settle(self, *group_ids: int) -> None:
        """Continue with unfinished groups for a limited time; maintenance does the rest, and retries failures."""
        until = time.monotonic() + self._context.limits.slices_seconds_max
        for group_id in sorted(group_ids, reverse=True):  # the cursors of a moved group are made from its earlier ones
            place: Place | None = Place(after=group_id - 1)
            try:
                while place == Place(after=group_id - 1) and time.monotonic() < until:
                    place = (await self.prune(after=place)).next
            except LockstepError as error:
                fields = {"action": "group_postponed", "group_id": group_id, "error": str(error)}
                logger.warning("group_postponed", extra=fields)

    async def prune(self, *, after: Place | None = None) -> Pruned:
        place = after or START
        found = await self._context.database.call(_NEXT_UNFINISHED(after=place.after))
        group_id, deleted = found[0] if found else (None, False)
        if group_id is None:
            return Pruned()
        if deleted:
            removal = _REMOVE_CURSORS(group_id=group_id, partitions=self._context.limits.slice_partitions_max)
            done, more = await self._context.database.value(removal)
        else:
            done, _, more, _ = await self._place_slice(group_id)
        return Pruned(partitions=done, next=Place(after=group_id - 1 if more else group_id))

    async def _place_slice(self, group_id: int) -> Any:
        partitions = self._context.limits.slice_partitions_max
        call = _PLACE(group_id=group_id, partition_id=None, partitions=partitions, at=self._context.now())
        return await self._context.database.value(call)

"""Clear and delete_queue: whatever their size, in slices that are a transaction each."""

from __future__ import annotations

import logging

from lockstep.core.maintenance import START, Place, Pruned
from lockstep.core.records import ClearScope
from lockstep.errors import LockstepError, LockTimeout
from lockstep.storage.postgres.removing import Removing

logger = logging.getLogger("lockstep.storage")

_CLEAR_PLACES = "select lockstep.clear_places($1, $2::bigint, $3::bigint, $4)"
_CLEAR_FIND = "select * from lockstep.clear_find($1, $2::bigint, $3::bigint, $4::bigint, $5)"
_CLEAR = (
    "select lockstep.clear($1, $2::bigint, $3, $4::bigint[], $5::bigint[], $6::bigint[], $7::uuid[], $8::bigint[], "
    "$9::text[], $10::bigint[], $11::bigint[], $12::uuid[], $13::timestamptz)"
)
_REMOVE_SCHEDULED = "select lockstep.remove_scheduled($1, $2, $3)"
_DELETE_QUEUE = "select lockstep.delete_queue($1, $2::timestamptz)"
_DELETED_QUEUE = "select id from lockstep.deleted_queue where id >= $1 order by id limit 1"
_REMOVE_PARTITIONS = "select * from lockstep.remove_deleted_partitions($1, $2, $3)"
_REMOVE_SEGMENTS = (
    "select lockstep.remove_deleted_segments($1, $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::uuid[])"
)
_END_DELETION = "select lockstep.end_deletion($1, $2)"


class Clearing(Removing):
    slice_messages_max: int
    slice_partitions_max: int

    async def clear(self, queue: str, *, partition: str | None = None, scope: ClearScope = "all") -> int:
        async def work() -> int:
            queue_id = await self._queue_id(queue)
            if scope == "scheduled":
                return await self._clear_scheduled(queue_id, partition)
            partition_id = None if partition is None else await self._partition_id(queue, queue_id, partition)
            if scope == "all":
                await self._clear_places(queue_id, partition_id)
            return await self._clear_messages(queue_id, partition_id, unleased=scope == "unleased")

        return await self._with_names([queue], work)

    async def _clear_scheduled(self, queue_id: int, partition: str | None) -> int:
        removed = 0
        while True:
            given = (queue_id, partition, self.slice_messages_max)
            gone: int = (await self.database.fetch("remove_scheduled", _REMOVE_SCHEDULED, *given))[0][0]
            removed += gone
            if gone < self.slice_messages_max:
                return removed

    async def _clear_places(self, queue_id: int, partition_id: int | None) -> None:
        after: int | None = 0
        while after is not None:
            given = (queue_id, partition_id, after, self.slice_partitions_max)
            after = (await self.database.fetch("clear_places", _CLEAR_PLACES, *given))[0][0]

    async def _clear_messages(self, queue_id: int, partition_id: int | None, *, unleased: bool) -> int:
        removed = 0
        after, upto = 0, None
        while True:
            looking = (queue_id, partition_id, after, upto, self.slice_messages_max)
            found = await self.database.fetch("clear_find", _CLEAR_FIND, *looking)
            segment_ids, with_ids, following, upto = found[0]
            if segment_ids:
                ids, unread = await self._ids_in(with_ids or [])
                given = (queue_id, partition_id, unleased, segment_ids, unread, *ids.all(), self.now())
                removed += (await self.database.fetch("clear", _CLEAR, *given))[0][0]
            if following is None:
                return removed
            after = following

    async def delete_queue(self, queue: str) -> bool:
        queue_id: int | None = (await self.database.fetch("delete_queue", _DELETE_QUEUE, queue, self.now()))[0][0]
        self.names.forget(queue)
        if queue_id is None:
            return False
        try:
            while (await self._remove_slice(queue_id)).next == Place(after=queue_id):
                pass
        except LockstepError as error:
            # It is deleted, whatever comes; what is left of it is for maintenance.
            fields = {"action": "queue_removal_postponed", "queue": queue, "error": str(error)}
            logger.warning("queue_removal_postponed", extra=fields)
        return True

    async def prune_queues(self, *, after: Place | None = None) -> Pruned:
        found = await self.database.fetch("deleted_queue", _DELETED_QUEUE, (after or START).after)
        if not found:
            return Pruned()
        try:
            return await self._remove_slice(found[0][0])
        except LockTimeout:
            return Pruned(next=Place(after=found[0][0] + 1))  # somebody's transaction is still open: later

    async def _remove_slice(self, queue_id: int) -> Pruned:
        """Remove some more of what is left of a deleted queue: partitions, then segments, then the rest."""
        again = Place(after=queue_id)
        limits = (self.slice_partitions_max, self.slice_messages_max)
        rows = await self.database.fetch("remove_deleted_partitions", _REMOVE_PARTITIONS, queue_id, *limits)
        partitions, more = rows[0]
        if more or partitions:
            return Pruned(partitions=partitions, next=again)
        looking = (queue_id, None, 0, None, self.slice_messages_max)
        segment_ids, with_ids, *_ = (await self.database.fetch("clear_find", _CLEAR_FIND, *looking))[0]
        if segment_ids:
            ids, unread = await self._ids_in(with_ids or [])
            given = (queue_id, segment_ids, unread, *ids.of_traces())
            rows = await self.database.fetch("remove_deleted_segments", _REMOVE_SEGMENTS, *given)
            return Pruned(messages=rows[0][0], next=again)
        more = (await self.database.fetch("end_deletion", _END_DELETION, queue_id, self.slice_messages_max))[0][0]
        return Pruned(next=again if more else Place(after=queue_id + 1))

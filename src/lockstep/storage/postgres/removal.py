"""Removes the messages of a queue, or the remains of a deleted one, in slices of one transaction each, whatever its
size."""

from __future__ import annotations

import time
from dataclasses import asdict
from functools import partial
from typing import Any, TypeVar

from lockstep.core.maintenance import START, Place, Pruned
from lockstep.errors import LockTimeout
from lockstep.storage.postgres import sql
from lockstep.storage.postgres.calls import Call
from lockstep.storage.postgres.context import Context
from lockstep.storage.postgres.segments import SegmentReader

T = TypeVar("T")

_CLEAR_PLACES: sql.Procedure[int | None] = sql.procedure("clear_places")
_CLEAR_FIND: sql.Procedure[Any] = sql.procedure("clear_find")
_CLEAR: sql.Procedure[int] = sql.procedure("clear")
_HELD_AFTER: sql.Procedure[list[int]] = sql.procedure("held_after")
_HELD_IN: sql.Procedure[list[int]] = sql.procedure("held_in")
_WAIT_FOR_PARTITION: sql.Procedure[None] = sql.procedure("wait_for_partition")
_REMOVE_SCHEDULED: sql.Procedure[int] = sql.procedure("remove_scheduled")
_DELETED_QUEUE = "select id from lockstep.deleted_queue where id >= $1 order by id limit 1"
_REMOVE_PARTITIONS: sql.Procedure[Any] = sql.procedure("remove_deleted_partitions")
_REMOVE_SEGMENTS: sql.Procedure[int] = sql.procedure("remove_deleted_segments")
_END_DELETION: sql.Procedure[bool] = sql.procedure("end_deletion")


class QueueRemoval:
    """Removes the messages of queues, and the remains of deleted queues, slice by slice."""

    def __init__(self, context: Context, reader: SegmentReader) -> None:
        self._context = context
        self._reader = reader

    async def clear_scheduled(self, queue_id: int, partition: str | None) -> int:
        removed = 0
        while True:
            call = _REMOVE_SCHEDULED(
                queue_id=queue_id, partition=partition, limit=self._context.limits.slice_messages_max
            )
            gone = await self._context.database.value(call)
            removed += gone
            if gone < self._context.limits.slice_messages_max:
                return removed

    async def clear_places(self, queue_id: int, partition_id: int | None) -> None:
        after: int | None = 0
        while after is not None:
            place = {"queue_id": queue_id, "after": after, "partitions": self._context.limits.slice_partitions_max}
            call = _CLEAR_PLACES(**place, partition_id=partition_id)
            after = await self._slice(call, None if partition_id is not None else _HELD_AFTER(**place))

    async def clear_messages(self, queue_id: int, partition_id: int | None, *, unleased: bool) -> int:
        removed = 0
        after, upto = 0, None
        while True:
            of = {"queue_id": queue_id, "partition_id": partition_id}
            find = _CLEAR_FIND(**of, after=after, upto=upto, messages=self._context.limits.slice_messages_max)
            segment_ids, with_ids, following, upto = await self._context.database.value(find)
            if segment_ids:
                ids, unread = await self._reader.ids_in(with_ids or [])
                given = {**of, "unleased": unleased, "segment_ids": segment_ids, "unread": unread}
                call = _CLEAR(**given, **asdict(ids), at=self._context.now())
                held = None if partition_id is not None else _HELD_IN(segment_ids=segment_ids)
                removed += await self._slice(call, held)
            if following is None:
                return removed
            after = following

    async def _slice(self, slice_: Call[T], held: Call[list[int]] | None) -> T:
        """Run a slice. A slice that locks many partitions waits only briefly for those that another transaction has
        `held`; these are then processed one by one, so that the rest of the slice is not locked in the meantime."""
        database, limits = self._context.database, self._context.limits
        until = time.monotonic() + limits.lock_timeout_seconds
        while held is not None and time.monotonic() < until:
            try:
                return await database.transaction(
                    partial(database.value, slice_), lock_timeout_seconds=limits.call_lock_seconds
                )
            except LockTimeout:
                partition_ids = await database.value(held)
            if not partition_ids:
                break  # the row that another transaction holds is not a partition
            for partition_id in partition_ids:
                await database.value(_WAIT_FOR_PARTITION(partition_id=partition_id))
        return await database.value(slice_)

    async def remove_slice(self, queue_id: int) -> Pruned:
        """Remove more of a deleted queue: partitions, then segments, then the rest."""
        again = Place(after=queue_id)
        limits = {
            "partitions": self._context.limits.slice_partitions_max,
            "rows": self._context.limits.slice_messages_max,
        }
        partitions, more = await self._context.database.value(_REMOVE_PARTITIONS(queue_id=queue_id, **limits))
        if more or partitions:
            return Pruned(partitions=partitions, next=again)
        find = _CLEAR_FIND(
            queue_id=queue_id, partition_id=None, after=0, upto=None, messages=self._context.limits.slice_messages_max
        )
        segment_ids, with_ids, *_ = await self._context.database.value(find)
        if segment_ids:
            ids, unread = await self._reader.ids_in(with_ids or [])
            removal = _REMOVE_SEGMENTS(
                queue_id=queue_id,
                segment_ids=segment_ids,
                unread=unread,
                trace_partitions=ids.trace_partitions,
                trace_seqs=ids.trace_seqs,
                traces=ids.traces,
            )
            return Pruned(messages=await self._context.database.value(removal), next=again)
        more = await self._context.database.value(
            _END_DELETION(queue_id=queue_id, rows=self._context.limits.slice_messages_max)
        )
        return Pruned(next=again if more else Place(after=queue_id + 1))

    async def prune(self, *, after: Place | None = None) -> Pruned:
        found = await self._context.database.fetch("deleted_queue", _DELETED_QUEUE, (after or START).after)
        if not found:
            return Pruned()
        try:
            return await self.remove_slice(found[0]["id"])
        except LockTimeout:
            return Pruned(next=Place(after=found[0]["id"] + 1))  # another transaction still holds it: later

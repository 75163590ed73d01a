"""Maintenance: pruning, duties and samples."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from functools import partial
from typing import Any

import msgspec

from lockstep.core.maintenance import START, DutyClaim, DutyInfo, Moved, Place, Pruned, PruneKind
from lockstep.core.statistics import ServerSample
from lockstep.errors import LockstepError
from lockstep.storage.postgres import sql
from lockstep.storage.postgres.context import Context
from lockstep.storage.postgres.forwarding import Forwarding
from lockstep.storage.postgres.placing import Placing
from lockstep.storage.postgres.removal import QueueRemoval
from lockstep.storage.postgres.segments import SegmentReader

logger = logging.getLogger("lockstep.storage")

_PRUNE_FIND: sql.Procedure[Any] = sql.procedure("prune_find")
_PRUNE: sql.Procedure[int] = sql.procedure("prune")
_PRUNE_PARTITIONS: sql.Procedure[Any] = sql.procedure("prune_partitions")
_FOLLOW_CLOCK: sql.Procedure[Any] = sql.procedure("follow_clock")
_PRUNE_HISTORY: sql.Procedure[int] = sql.procedure("prune_history")
_CLAIM_DUTY: sql.Procedure[float | None] = sql.procedure("claim_duty")
_FINISH_DUTY: sql.Procedure[bool] = sql.procedure("finish_duty")
_SAMPLED_QUEUES = (
    "select q.id, coalesce($1::timestamptz, clock_timestamp()) as at from lockstep.queue q order by q.name"
)
_SAMPLE: sql.Procedure[Any] = sql.procedure("sample")
_EXPIRING_QUEUE = (
    "select q.name from lockstep.queue q where q.name >= $1 and lockstep.may_expire(q) order by q.name limit 1"
)
_PRUNE_EXPIRED: sql.Procedure[Any] = sql.procedure("prune_expired")
_PARTITIONS_LOOKED_AT_MAX = 1_000
_AFTER = "\x01"
"""No name has it, so that with it a place is after a queue and before all others."""
_RUNS_LOOKED_AT_MAX = 20_000
"""Limit of one search for removable messages; it keeps the search short where there are few."""


class PostgresMaintenance:
    """The verbs that the maintenance duties use."""

    def __init__(
        self, context: Context, reader: SegmentReader, forwarding: Forwarding, removal: QueueRemoval, placing: Placing
    ) -> None:
        self._context = context
        self._reader = reader
        self._forwarding = forwarding
        self._removal = removal
        self._placing = placing

    async def prune(self, kind: PruneKind, *, after: Place | None = None, limit: int) -> Pruned:
        place = after or START
        if kind == "expiry":
            return await self._prune_expired(place, limit)
        find = _PRUNE_FIND(
            kind=kind,
            after_queue=place.queue,
            after_segment=place.after,
            messages=limit,
            runs=_RUNS_LOOKED_AT_MAX,
            at=self._context.now(),
        )
        queue, queue_id, segment_ids, with_ids, looked_at = await self._context.database.value(find)
        if queue is None:
            return Pruned()

        async def remove() -> Pruned:
            removed = 0
            if segment_ids:
                ids, unread = await self._reader.ids_in(with_ids or [])
                given = {"queue_id": queue_id, "kind": kind, "segment_ids": segment_ids, "unread": unread}
                removed = await self._context.database.value(_PRUNE(**given, **asdict(ids), at=self._context.now()))
            return Pruned(removed, next=Place(queue, looked_at))

        return await _apart(queue, remove)

    async def _prune_expired(self, place: Place, limit: int) -> Pruned:
        found = await self._context.database.fetch("expiring_queue", _EXPIRING_QUEUE, place.queue)
        if not found:
            return Pruned()
        queue = found[0]["name"]
        after = place.after if queue == place.queue else 0
        partitions = min(limit, _PARTITIONS_LOOKED_AT_MAX)
        call = _PRUNE_EXPIRED(after_queue=queue, after_partition=after, partitions=partitions, at=self._context.now())

        async def expire() -> Pruned:
            found, looked_at, passed = await self._forwarding.run(partial(self._context.database.value, call))
            name = found or queue  # nothing in it expires any more, nor in those after it
            return Pruned(passed, next=Place(name + _AFTER) if looked_at is None else Place(name, looked_at))

        return await _apart(queue, expire)

    async def prune_partitions(self, idle_seconds: float, *, after: Place | None = None, limit: int) -> Pruned:
        place = after or START
        call = _PRUNE_PARTITIONS(
            after=place.after, idle_seconds=float(idle_seconds), runs=limit, at=self._context.now()
        )
        removed, looked_at = await self._context.database.value(call)
        return Pruned(partitions=removed, next=None if looked_at is None else Place("", looked_at))

    async def prune_queues(self, *, after: Place | None = None) -> Pruned:
        return await self._removal.prune(after=after)

    async def prune_groups(self, *, after: Place | None = None) -> Pruned:
        return await self._placing.prune(after=after)

    async def follow_clock(self, *, after: Place | None = None) -> Moved:
        partitions = self._context.limits.slice_partitions_max
        call = _FOLLOW_CLOCK(after=(after or START).after, partitions=partitions, at=self._context.now())
        moved, looked_at = await self._context.database.value(call)
        return Moved(moved, next=None if looked_at is None else Place("", looked_at))

    async def prune_history(self, seconds: float, *, limit: int) -> int:
        return await self._context.database.value(
            _PRUNE_HISTORY(seconds=float(seconds), limit=limit, at=self._context.now())
        )

    async def record_server(self, sample: ServerSample) -> None:
        await self._context.query("server_sample_add", self._context.now(), *msgspec.structs.astuple(sample))

    async def claim_duty(self, name: str, *, interval_seconds: float, hold_seconds: float, by: str) -> DutyClaim:
        call = _CLAIM_DUTY(
            name=name,
            interval_seconds=float(interval_seconds),
            hold_seconds=float(hold_seconds),
            by=by,
            at=self._context.now(),
        )
        wait = await self._context.database.value(call)
        return DutyClaim(granted=True) if wait is None else DutyClaim(granted=False, wait_seconds=wait)

    async def finish_duty(
        self,
        name: str,
        *,
        by: str,
        effect: dict[str, Any] | None = None,
        error: str | None = None,
        more: bool = False,
    ) -> bool:
        encoded = None if effect is None else msgspec.json.encode(effect).decode()
        call = _FINISH_DUTY(name=name, by=by, effect=encoded, error=error, more=more, at=self._context.now())
        return await self._context.database.value(call)

    async def duties(self) -> list[DutyInfo]:
        return [_duty_info(row) for row in await self._context.query("duty_list")]

    async def sample(self, *, seconds_max: float | None = None) -> int:
        time = asyncio.get_running_loop().time
        until = None if seconds_max is None else time() + seconds_max
        rows = await self._context.database.fetch("sampled_queues", _SAMPLED_QUEUES, self._context.now())
        # All small queues get the same time, so that their samples are aligned.
        at = rows[0]["at"] if rows else None
        walking = [row["id"] for row in rows]
        sampled = 0
        while walking:
            going_on = []
            for queue_id in walking:
                call = _SAMPLE(queue_id=queue_id, partitions=self._context.limits.samples_partitions_max, at=at)
                taken, more = await self._context.database.value(call)
                sampled += taken
                if more:
                    going_on.append(queue_id)
            if until is not None and time() >= until:
                break
            walking, at = going_on, self._context.now()
        return sampled


async def _apart(queue: str, work: Callable[[], Awaitable[Pruned]]) -> Pruned:
    """A part of a walk over all queues: after a failure in one queue the walk continues with the next."""
    try:
        return await work()
    except LockstepError as error:
        if error.details.get("unreachable"):
            raise
        fields = {"action": "queue_not_pruned", "queue": queue, "error": str(error)}
        logger.warning("queue_not_pruned", extra=fields)
        return Pruned(next=Place(queue + _AFTER), problem=f"queue {queue}: {error}")


def _duty_info(row: Any) -> DutyInfo:
    values = dict(row)
    if values["last_effect"] is not None:
        values["last_effect"] = msgspec.json.decode(values["last_effect"])
    return DutyInfo(**values)

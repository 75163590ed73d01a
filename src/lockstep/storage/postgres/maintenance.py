"""Maintenance: pruning, duties, samples, and the history of it all."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any

import msgspec

from lockstep.core.maintenance import (
    START,
    DutyClaim,
    DutyInfo,
    Place,
    Pruned,
    PruneKind,
    Removal,
    Sample,
)
from lockstep.errors import LockstepError
from lockstep.storage.postgres.forwarding import Forwarding
from lockstep.storage.postgres.removing import Removing

logger = logging.getLogger("lockstep.storage")

_PRUNE_FIND = "select * from lockstep.prune_find($1, $2, $3, $4, $5, $6::timestamptz)"
_PRUNE = (
    "select lockstep.prune($1, $2, $3::bigint[], $4::bigint[], $5::bigint[], $6::uuid[], $7::bigint[], $8::text[], "
    "$9::bigint[], $10::bigint[], $11::uuid[], $12::timestamptz)"
)
_PRUNE_PARTITIONS = "select * from lockstep.prune_partitions($1, $2, $3, $4::timestamptz)"
_PRUNE_HISTORY = "select lockstep.prune_history($1, $2, $3::timestamptz)"
_CLAIM_DUTY = "select lockstep.claim_duty($1, $2, $3, $4, $5::timestamptz)"
_FINISH_DUTY = "select lockstep.finish_duty($1, $2, $3::jsonb, $4, $5, $6::timestamptz)"
_SAMPLED_QUEUES = "select q.id, coalesce($1::timestamptz, clock_timestamp()) from lockstep.queue q order by q.name"
_SAMPLE = "select * from lockstep.sample($1, $2, $3::timestamptz)"

_EXPIRING_QUEUE = (
    "select q.name from lockstep.queue q where q.name >= $1 and lockstep.may_expire(q) order by q.name limit 1"
)
_PRUNE_EXPIRED = "select * from lockstep.prune_expired($1, $2, $3, $4::timestamptz)"
_PARTITIONS_LOOKED_AT_MAX = 1_000
_AFTER = "\x01"
"""No name has it, so that with it a place is after a queue and before all others."""
_RUNS_LOOKED_AT_MAX = 20_000
"""By one search for what may go; it keeps the search short where little may."""


class Maintenance(Forwarding, Removing):
    samples_partitions_max: int

    async def prune(self, kind: PruneKind, *, after: Place | None = None, limit: int) -> Pruned:
        place = after or START
        if kind == "expiry":
            return await self._prune_expired(place, limit)
        looking = (kind, place.queue, place.after, limit, _RUNS_LOOKED_AT_MAX, self.now())
        found = (await self.database.fetch("prune_find", _PRUNE_FIND, *looking))[0]
        queue, queue_id, segment_ids, with_ids, looked_at = found
        if queue is None:
            return Pruned()

        async def remove() -> Pruned:
            removed = 0
            if segment_ids:
                ids, unread = await self._ids_in(with_ids or [])
                given = (queue_id, kind, segment_ids, unread, *ids.all(), self.now())
                removed = (await self.database.fetch("prune", _PRUNE, *given))[0][0]
            return Pruned(removed, next=Place(queue, looked_at))

        return await _apart(queue, remove)

    async def _prune_expired(self, place: Place, limit: int) -> Pruned:
        found = await self.database.fetch("expiring_queue", _EXPIRING_QUEUE, place.queue)
        if not found:
            return Pruned()
        queue = found[0][0]
        after = place.after if queue == place.queue else 0
        given = (_PRUNE_EXPIRED, queue, after, min(limit, _PARTITIONS_LOOKED_AT_MAX), self.now())

        async def expire() -> Pruned:
            rows = await self._forwarding(lambda connection: self.database.on(connection, "prune_expired", *given))
            found, looked_at, passed = rows[0]
            name = found or queue  # nothing in it expires any more, nor in those after it
            return Pruned(passed, next=Place(name + _AFTER) if looked_at is None else Place(name, looked_at))

        return await _apart(queue, expire)

    async def prune_partitions(self, idle_seconds: float, *, after: Place | None = None, limit: int) -> Pruned:
        given = ((after or START).after, float(idle_seconds), limit, self.now())
        removed, looked_at = (await self.database.fetch("prune_partitions", _PRUNE_PARTITIONS, *given))[0]
        return Pruned(partitions=removed, next=None if looked_at is None else Place("", looked_at))

    async def prune_history(self, seconds: float, *, limit: int) -> int:
        rows = await self.database.fetch("prune_history", _PRUNE_HISTORY, float(seconds), limit, self.now())
        removed: int = rows[0][0]
        return removed

    async def claim_duty(self, name: str, *, interval_seconds: float, hold_seconds: float, by: str) -> DutyClaim:
        given = (name, float(interval_seconds), float(hold_seconds), by, self.now())
        wait = (await self.database.fetch("claim_duty", _CLAIM_DUTY, *given))[0][0]
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
        rows = await self.database.fetch("finish_duty", _FINISH_DUTY, name, by, encoded, error, more, self.now())
        return bool(rows[0][0])

    async def duties(self) -> list[DutyInfo]:
        return [_duty_info(row) for row in await self._query("duty_list")]

    async def sample(self, *, seconds_max: float | None = None) -> int:
        time = asyncio.get_running_loop().time
        until = None if seconds_max is None else time() + seconds_max
        rows = await self.database.fetch("sampled_queues", _SAMPLED_QUEUES, self.now())
        # One time for all small queues, so that their samples lie on one line.
        at = rows[0][1] if rows else None
        walking = [row[0] for row in rows]
        sampled = 0
        while walking:
            going_on = []
            for queue_id in walking:
                taken, more = (await self.database.fetch("sample", _SAMPLE, queue_id, self.samples_partitions_max, at))[
                    0
                ]
                sampled += taken
                if more:
                    going_on.append(queue_id)
            if until is not None and time() >= until:
                break
            walking, at = going_on, self.now()
        return sampled

    async def samples(
        self,
        *,
        queue: str | None = None,
        from_at: datetime | None = None,
        to_at: datetime | None = None,
        after: Sample | None = None,
        limit: int = 1000,
    ) -> list[Sample]:
        place = (None, None) if after is None else (after.at, after.queue)
        rows = await self._query("sample_list", queue, from_at, to_at, *place, limit)
        fields = Sample.__struct_fields__
        return [Sample(**dict(zip(fields, row, strict=True))) for row in rows]

    async def removals(
        self,
        *,
        queue: str | None = None,
        from_at: datetime | None = None,
        to_at: datetime | None = None,
        after: Removal | None = None,
        limit: int = 1000,
    ) -> list[Removal]:
        place = (None, None, None) if after is None else (after.at, after.queue, after.kind)
        rows = await self._query("removal_list", queue, from_at, to_at, *place, limit)
        fields = Removal.__struct_fields__
        return [Removal(**dict(zip(fields, row, strict=True))) for row in rows]


async def _apart(queue: str, work: Callable[[], Awaitable[Pruned]]) -> Pruned:
    """Some of the work of a walk over all queues: what fails in one queue does not keep it from those after it."""
    try:
        return await work()
    except LockstepError as error:
        if error.details.get("unreachable"):
            raise
        fields = {"action": "queue_not_pruned", "queue": queue, "error": str(error)}
        logger.warning("queue_not_pruned", extra=fields)
        return Pruned(next=Place(queue + _AFTER), problem=f"queue {queue}: {error}")


def _duty_info(row: Any) -> DutyInfo:
    values = dict(zip(DutyInfo.__struct_fields__, row, strict=True))
    if values["last_effect"] is not None:
        values["last_effect"] = msgspec.json.decode(values["last_effect"])
    return DutyInfo(**values)

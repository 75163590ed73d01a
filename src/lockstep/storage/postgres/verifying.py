"""Checks of the stored data, in slices that are short statements, and repairs.

A slice begins with some partitions of a queue. With its last ones come the first of its segments; with the last of
those what belongs to the whole queue; and with the last queue's, what belongs to none: trace entries, in the order of
their traces, and lost segments. What takes longer than a statement may is tried in smaller slices, and what is too
large even alone is passed, and told.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from lockstep.core.maintenance import START, Part, Place, Verified
from lockstep.core.records import Problem, ProblemKind
from lockstep.errors import Unavailable
from lockstep.storage.postgres.failures import timed_out
from lockstep.storage.postgres.shared import Shared

_QUEUE_FROM = "select id, name from lockstep.queue where name >= $1 order by name limit 1"
_NEXT_QUEUE = "select name from lockstep.queue where name > $1 order by name limit 1"
_VERIFY: dict[Part, str] = {
    "partitions": "select * from lockstep.verify($1::int, $2::bigint, $3::bigint, $4::timestamptz)",
    "segments": "select * from lockstep.verify_segments($1::int, $2::bigint, $3::bigint)",
    "traces": "select * from lockstep.verify_traces($1::int, $2::uuid, $3::uuid)",
}
_VERIFY_DEPTH = "select * from lockstep.verify_depth($1)"
_VERIFY_LOST = "select * from lockstep.verify_lost()"
_REPAIRED_QUEUES = "select id, name from lockstep.queue where $1::int is null or id = $1 order by name"
_RESTORE_RUNS = "select lockstep.restore_runs($1)"
_REPAIR = "select lockstep.repair($1, $2, $3::timestamptz)"
_REPAIR_SEGMENTS = "select lockstep.repair_segments($1)"
_REPAIR_LOST = "select lockstep.repair_lost()"

_OF_RUNS = frozenset[ProblemKind](["seq_gap", "segment_missing", "manifest_wrong", "run_missing"])
"""What is wrong with the way from a seq to its message."""

_SLICE_PARTITIONS = 1_000
_SMALLER = 10
_LARGER = 2
"""A slice that takes too long is tried with so many times less; after one that did not, the next may have more."""


@dataclass(frozen=True, slots=True)
class _Checked:
    """What a check of one part of a slice found, and where it ended; None at the end of the part."""

    problems: list[Problem]
    count: int
    after: int | None


class Verifying(Shared):
    _verify_limit = _SLICE_PARTITIONS
    """What a slice may have, as far as is known from those before."""

    async def verify(self, *, queue: str | None = None) -> list[Problem]:
        if queue is not None:
            return await self._verify_queue(queue, await self._queue_id(queue))
        problems: list[Problem] = []
        place: Place | None = START
        while place is not None:
            verified = await self.verify_slice(after=place, partitions=_SLICE_PARTITIONS)
            problems += verified.problems
            place = verified.next
        return problems

    async def _verify_queue(self, queue: str, queue_id: int) -> list[Problem]:
        problems: list[Problem] = []
        parts: tuple[Part, ...] = ("partitions", "segments", "traces")
        for part in parts:
            after: int | None = 0
            while after is not None:
                checked = await self._check(queue_id, Place(queue, after, part), _SLICE_PARTITIONS)
                problems += checked.problems
                after = checked.after
        return problems + await self._check_depth(queue, queue_id)

    async def verify_slice(self, *, after: Place | None = None, partitions: int) -> Verified:
        place = after or START
        if place.part == "traces":
            return await self._verify_rest(Verified([], 0), place, partitions)
        found = await self.database.fetch("verify_queue", _QUEUE_FROM, place.queue)
        if not found:
            return await self._verify_rest(Verified([], 0), Place(part="traces"), partitions)
        queue_id, queue = found[0]
        if queue != place.queue:
            place = Place(queue)
        problems: list[Problem] = []
        count = 0
        if place.part == "partitions":
            checked = await self._check(queue_id, place, partitions)
            problems, count = checked.problems, checked.count
            if checked.after is not None:
                return Verified(problems, count, Place(queue, checked.after))
            place = Place(queue, 0, "segments")
        checked = await self._check(queue_id, place, partitions)
        problems = problems + checked.problems
        if checked.after is not None:
            return Verified(problems, count, Place(queue, checked.after, "segments"))
        problems = problems + await self._check_depth(queue, queue_id)
        following = await self.database.fetch("verify_next_queue", _NEXT_QUEUE, queue)
        if following:
            return Verified(problems, count, Place(following[0][0]))
        return await self._verify_rest(Verified(problems, count), Place(part="traces"), partitions)

    async def _verify_rest(self, before: Verified, place: Place, limit: int) -> Verified:
        """Check what belongs to no queue, after what the slice has checked before."""
        checked = await self._check(None, place, limit)
        problems = before.problems + checked.problems
        if checked.after is not None:
            return Verified(problems, before.partitions, Place(after=checked.after, part="traces"))
        lost = await self.database.fetch("verify_lost", _VERIFY_LOST)
        return Verified(problems + list(map(problem_of, lost)), before.partitions)

    async def _check(self, queue_id: int | None, place: Place, limit: int) -> _Checked:
        """Check the next things of one part after a place, at most so many, and no more than can be done in time."""
        limit = min(limit, self._verify_limit)
        after = UUID(int=place.after) if place.part == "traces" else place.after
        scope = () if place.part == "traces" else (queue_id,)
        upto, count = (await self._query(f"verify_{place.part}", *scope, after, limit))[0]
        if count == 0:
            return _Checked([], 0, None)
        at = (self.now(),) if place.part == "partitions" else ()
        reached = (UUID(str(upto)).int if place.part == "traces" else int(upto)) if count == limit else None
        try:
            rows = await self.database.fetch("verify", _VERIFY[place.part], queue_id, after, upto, *at)
        except Unavailable as error:
            if not timed_out(error):
                raise
            if limit > 1:
                self._verify_limit = max(limit // _SMALLER, 1)
                return await self._check(queue_id, place, limit)
            return _Checked([_unverified(place, upto)], count, reached)
        self._verify_limit = max(self._verify_limit, limit * _LARGER)
        return _Checked(list(map(problem_of, rows)), count, reached)

    async def _check_depth(self, queue: str, queue_id: int) -> list[Problem]:
        try:
            return list(map(problem_of, await self.database.fetch("verify_depth", _VERIFY_DEPTH, queue_id)))
        except Unavailable as error:
            if not timed_out(error):
                raise
            return [_too_large("how full the queue is", queue)]

    async def repair(self, *, queue: str | None = None) -> list[Problem]:
        before = await self.verify(queue=queue)
        if not before:
            return []
        queue_id = None if queue is None else await self._queue_id(queue)
        broken = {problem.queue for problem in before if problem.kind in _OF_RUNS}
        for id_, name in await self.database.fetch("repaired_queues", _REPAIRED_QUEUES, queue_id):
            # Unless all is sound, what no run names may be what one ought to name.
            sound = name not in broken or await self._restore_runs(id_, name)
            await self.database.fetch("repair", _REPAIR, id_, sound, self.now())
            if sound:
                await self.database.fetch("repair_segments", _REPAIR_SEGMENTS, id_)
        if queue is None:
            await self.database.fetch("repair_lost", _REPAIR_LOST)
        left = set(await self.verify(queue=queue))
        return [_repaired(problem) if problem not in left else problem for problem in before]

    async def _restore_runs(self, queue_id: int, queue: str) -> bool:
        """Make missing runs again where their place is known; whether the runs of the queue are sound now."""
        await self.database.fetch("restore_runs", _RESTORE_RUNS, queue_id)
        return not any(problem.kind in _OF_RUNS for problem in await self._verify_queue(queue, queue_id))


def problem_of(row: Any) -> Problem:
    """A problem from a row of `verify`."""
    return Problem(kind=row[0], text=row[1], queue=row[2], partition_id=row[3], repairable=row[4])


def _unverified(place: Place, what: object) -> Problem:
    if place.part == "traces":
        return _too_large(f"trace {what}", None)
    if place.part == "segments":
        return _too_large(f"segment {what}", place.queue)
    return _too_large(f"partition {what}", place.queue, partition_id=int(str(what)))


def _too_large(what: str, queue: str | None, *, partition_id: int | None = None) -> Problem:
    text = f"{what} could not be verified within statement_timeout_seconds"
    return Problem(kind="unverified", text=text, queue=queue, partition_id=partition_id, repairable=False)


def _repaired(problem: Problem) -> Problem:
    return Problem(
        kind=problem.kind,
        text=problem.text,
        queue=problem.queue,
        partition_id=problem.partition_id,
        repairable=True,
        repaired=True,
    )

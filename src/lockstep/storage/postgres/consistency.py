"""Checks of the stored data, in slices that are short statements, and repairs.

A slice begins with some partitions of a queue. The slice with the last partitions of a queue also covers its first
segments; the slice with its last segments also covers what belongs to the whole queue. The slice with the last queue
also covers what belongs to no queue: trace entries, in the order of their traces, and lost segments. A slice that
exceeds the statement timeout is retried in smaller slices. An item that is too large even alone is skipped and
reported.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from lockstep.core.maintenance import START, Part, Place, Verified
from lockstep.core.records import Problem, ProblemKind
from lockstep.errors import Unavailable
from lockstep.storage.postgres import sql
from lockstep.storage.postgres.context import Context
from lockstep.storage.postgres.failures import timed_out
from lockstep.storage.postgres.lookups import Lookups

_QUEUE_FROM = "select id, name from lockstep.queue where name >= $1 order by name limit 1"
_NEXT_QUEUE = "select name from lockstep.queue where name > $1 order by name limit 1"
_VERIFY: dict[Part, sql.Procedure[Any]] = {
    "partitions": sql.procedure("verify"),
    "segments": sql.procedure("verify_segments", label="verify"),
    "traces": sql.procedure("verify_traces", label="verify"),
}
_VERIFY_DEPTH: sql.Procedure[Any] = sql.procedure("verify_depth")
_VERIFY_LOST: sql.Procedure[Any] = sql.procedure("verify_lost")
_REPAIRED_QUEUES = "select id, name from lockstep.queue where $1::int is null or id = $1 order by name"
_RESTORE_RUNS: sql.Procedure[None] = sql.procedure("restore_runs")
_REPAIR: sql.Procedure[None] = sql.procedure("repair")
_REPAIR_SEGMENTS: sql.Procedure[None] = sql.procedure("repair_segments")
_REPAIR_LOST: sql.Procedure[None] = sql.procedure("repair_lost")
_OF_RUNS = frozenset[ProblemKind](["seq_gap", "segment_missing", "manifest_wrong", "run_missing"])
"""Problems on the way from a seq to its message."""
_SLICE_PARTITIONS = 1_000
_SMALLER = 10
_LARGER = 2
"""A slice that takes too long is divided by this and tried again; after one in time, the next may be larger."""


class PostgresConsistency:
    """Whether the stored data is right."""

    def __init__(self, context: Context, lookups: Lookups) -> None:
        self._context = context
        self._lookups = lookups
        self._verify_limit = _SLICE_PARTITIONS
        """The size of a slice, as learned from the previous ones."""

    async def verify(self, *, queue: str | None = None) -> list[Problem]:
        if queue is not None:
            return await self._verify_queue(queue, await self._lookups.queue_id(queue))
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
        found = await self._context.database.fetch("verify_queue", _QUEUE_FROM, place.queue)
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
        following = await self._context.database.fetch("verify_next_queue", _NEXT_QUEUE, queue)
        if following:
            return Verified(problems, count, Place(following[0]["name"]))
        return await self._verify_rest(Verified(problems, count), Place(part="traces"), partitions)

    async def _verify_rest(self, before: Verified, place: Place, limit: int) -> Verified:
        """Check what belongs to no queue, after the rest of the slice."""
        checked = await self._check(None, place, limit)
        problems = before.problems + checked.problems
        if checked.after is not None:
            return Verified(problems, before.partitions, Place(after=checked.after, part="traces"))
        lost = await self._context.database.call(_VERIFY_LOST())
        return Verified(problems + list(map(problem_of, lost)), before.partitions)

    async def _check(self, queue_id: int | None, place: Place, limit: int) -> _Checked:
        """Check the next items of one part after a place, up to a number and within a time."""
        limit = min(limit, self._verify_limit)
        after = UUID(int=place.after) if place.part == "traces" else place.after
        scope = () if place.part == "traces" else (queue_id,)
        upto, count = (await self._context.query(f"verify_{place.part}", *scope, after, limit))[0]
        if count == 0:
            return _Checked([], 0, None)
        at = {"at": self._context.now()} if place.part == "partitions" else {}
        reached = (UUID(str(upto)).int if place.part == "traces" else int(upto)) if count == limit else None
        try:
            rows = await self._context.database.call(
                _VERIFY[place.part](queue_id=queue_id, after=after, upto=upto, **at)
            )
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
            return list(map(problem_of, await self._context.database.call(_VERIFY_DEPTH(queue_id=queue_id))))
        except Unavailable as error:
            if not timed_out(error):
                raise
            return [_too_large("how full the queue is", queue)]

    async def repair(self, *, queue: str | None = None) -> list[Problem]:
        before = await self.verify(queue=queue)
        if not before:
            return []
        queue_id = None if queue is None else await self._lookups.queue_id(queue)
        broken = {problem.queue for problem in before if problem.kind in _OF_RUNS}
        for id_, name in await self._context.database.fetch("repaired_queues", _REPAIRED_QUEUES, queue_id):
            # If there are problems, a segment that no run names may belong to a lost run.
            sound = name not in broken or await self._restore_runs(id_, name)
            await self._context.database.call(_REPAIR(queue_id=id_, sound=sound, at=self._context.now()))
            if sound:
                await self._context.database.call(_REPAIR_SEGMENTS(queue_id=id_))
        if queue is None:
            await self._context.database.call(_REPAIR_LOST())
        left = set(await self.verify(queue=queue))
        return [_repaired(problem) if problem not in left else problem for problem in before]

    async def _restore_runs(self, queue_id: int, queue: str) -> bool:
        """Restore missing runs whose place is known. Returns whether the runs of the queue are sound now."""
        await self._context.database.call(_RESTORE_RUNS(queue_id=queue_id))
        return not any(problem.kind in _OF_RUNS for problem in await self._verify_queue(queue, queue_id))


@dataclass(frozen=True, slots=True)
class _Checked:
    """The problems found in one part of a slice, and where the check ended; None at the end of the part."""

    problems: list[Problem]
    count: int
    after: int | None


def problem_of(row: Any) -> Problem:
    """A problem from a row of `verify`."""
    kind, text, queue, partition_id, repairable = row
    return Problem(kind=kind, text=text, queue=queue, partition_id=partition_id, repairable=repairable)


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

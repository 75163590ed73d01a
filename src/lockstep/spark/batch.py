"""A batch read: all that lies between two positions. Spark plans a frame once, when it is first used."""

from __future__ import annotations

from dataclasses import replace

from lockstep.errors import PartitionNotFound
from lockstep.spark import positions
from lockstep.spark.offsets import EARLIEST, Place
from lockstep.spark.options import EVERYTHING, Position, ReadOptions
from lockstep.spark.positions import Desk, Look, Witness
from lockstep.spark.segments import Scope, list_segments
from lockstep.spark.stream import Task, default_parallelism

_LATEST = Position("latest")


def plan_batch(options: ReadOptions) -> list[Task]:
    """The tasks of a batch read. Raises QueueNotFound, PartitionNotFound."""
    desk = Desk(options.access)
    try:
        return desk.together(lambda: _planned(desk, options))
    finally:
        desk.close()


def _planned(desk: Desk, options: ReadOptions) -> list[Task]:
    queues = desk.ask(positions.find_queues, options.queues)
    found = desk.ask(positions.look, list(queues.values()))
    scope = desk.ask(positions.find_scope, queues, options.partitions, options.trace_id)
    if scope.partition_ids == ():
        raise PartitionNotFound(f"none of the queues has a partition {', '.join(options.partitions or ())}")
    scope, start, end = _bounds(options, scope, found)
    segments = desk.ask(list_segments, scope, start.base, end.to).between(start, end)
    witness = Witness(found.timeline)
    parts = segments.tasks(options.parallelism or default_parallelism())
    return [Task(part, scope, witness=witness) for part in parts]


def _bounds(options: ReadOptions, scope: Scope, found: Look) -> tuple[Scope, Place, Place]:
    """Times are what the segments say; everything else is a place."""
    starting, ending = options.starting or EVERYTHING, options.ending or _LATEST
    start = _place(starting, found, otherwise=EARLIEST, option="startingPosition")
    end = _place(ending, found, otherwise=Place.at(found.snapshot), option="endingPosition")
    from_at = starting.time(found.now) if starting.kind in ("time", "ago") else None
    to_at = ending.time(found.now) if ending.kind in ("time", "ago") else None
    return replace(scope, from_at=from_at, to_at=to_at), start, end


def _place(position: Position, found: Look, *, otherwise: Place, option: str) -> Place:
    match position.kind:
        case "earliest":
            return EARLIEST
        case "latest":
            return Place.at(found.snapshot)
        case "offset":
            assert position.place is not None
            return positions.place_given(position.place, position.system, found, option=option)
    return otherwise

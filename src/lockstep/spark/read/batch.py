"""A batch read: everything between two positions. Spark plans a frame once, when it is first used."""

from __future__ import annotations

from dataclasses import replace

from lockstep.errors import PartitionNotFound
from lockstep.spark.options import EVERYTHING, ReadOptions, ReadPosition
from lockstep.spark.read import positions
from lockstep.spark.read.offsets import EARLIEST, SnapshotPlace
from lockstep.spark.read.positions import Desk, Look, Witness
from lockstep.spark.read.segments import Scope, list_segments
from lockstep.spark.read.stream import SnapshotTask, default_parallelism

_LATEST = ReadPosition("latest")


def plan_batch(options: ReadOptions) -> list[SnapshotTask]:
    """The tasks of a batch read. Raises QueueNotFound, PartitionNotFound."""
    desk = Desk(options.access)
    try:
        return desk.together(lambda: _planned(desk, options))
    finally:
        desk.close()


def _planned(desk: Desk, options: ReadOptions) -> list[SnapshotTask]:
    queues, found = positions.find_read(desk, options)
    scope = positions.scope_of(desk, queues, options)
    if scope.partition_ids == ():
        named = options.partitions or dict.fromkeys(
            partition for _, partition, _ in (*(options.starting_seqs or ()), *(options.ending_seqs or ()))
        )
        raise PartitionNotFound(f"none of the queues has a partition {', '.join(named)}")
    scope, start, end = _bounds(options, scope, found)
    segments = desk.ask(list_segments, scope, start.base, end.to).between(start, end)
    witness = Witness(found.timeline)
    parts = segments.tasks(options.parallelism or default_parallelism())
    return [SnapshotTask(part, scope, witness=witness) for part in parts]


def _bounds(options: ReadOptions, scope: Scope, found: Look) -> tuple[Scope, SnapshotPlace, SnapshotPlace]:
    """Times are compared with those of segments; all other bounds are places."""
    starting, ending = options.starting or EVERYTHING, options.ending or _LATEST
    start = positions.place_of(starting, found, option="startingPosition") or EARLIEST
    end = positions.place_of(ending, found, option="endingPosition") or SnapshotPlace.at(found.snapshot)
    from_at = starting.time(found.now) if starting.kind in ("time", "ago") else None
    to_at = ending.time(found.now) if ending.kind in ("time", "ago") else None
    return replace(scope, from_at=from_at, to_at=to_at), start, end

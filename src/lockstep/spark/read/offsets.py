"""Positions of a stream: PostgreSQL snapshots, and offsets built from them.

A sequence or a time cannot be a position: of two transactions that push, the one with the higher number may commit
first, and a reader that has passed it misses the other. A snapshot says exactly which transactions have finished.
Between two snapshots S and T lie

    the transactions in progress in S that finished before T, and those that began after S and finished before T.

An offset is *all of S and, of what lies between S and T, the segments up to an id*, so that a limit can cut a batch.
Ids are drawn under the partition locks, and commits of a partition happen in seq order; each offset therefore contains
a prefix of every partition. It does not grow with the number of partitions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from lockstep.errors import CheckpointMismatch, InvalidOption


@dataclass(frozen=True, slots=True)
class Snapshot:
    """PostgreSQL's pg_snapshot: all transactions below xmax have finished, except for those in progress."""

    xmin: int
    xmax: int
    in_progress: tuple[int, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Snapshot:
        """Parse PostgreSQL's text form, xmin:xmax:in,progress."""
        try:
            xmin, xmax, in_progress = text.split(":")
            parsed = cls(int(xmin), int(xmax), tuple(int(xid) for xid in in_progress.split(",") if xid))
        except (ValueError, AttributeError) as error:
            raise InvalidOption(f"not a snapshot of PostgreSQL: {str(text)[:100]!r}") from error
        if not 0 < parsed.xmin <= parsed.xmax:
            raise InvalidOption(f"not a snapshot of PostgreSQL: {text[:100]!r}")
        return parsed

    def __str__(self) -> str:
        return f"{self.xmin}:{self.xmax}:{','.join(map(str, self.in_progress))}"

    def sees(self, xid: int) -> bool:
        return xid < self.xmin or (xid < self.xmax and xid not in self.in_progress)


NOTHING = Snapshot(1, 1)
"""Before every transaction."""


@dataclass(frozen=True, slots=True)
class SnapshotPlace:
    """All of `base`, and what lies between `base` and `to` up to the segment."""

    base: Snapshot
    to: Snapshot
    segment: int = 0

    @classmethod
    def at(cls, snapshot: Snapshot) -> SnapshotPlace:
        """Exactly what has finished in the snapshot."""
        return cls(snapshot, snapshot)

    def as_json(self) -> dict[str, Any]:
        return {"base": str(self.base), "to": str(self.to), "segment": self.segment}

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> SnapshotPlace:
        missing = [name for name in ("base", "to", "segment") if name not in given]
        if missing:
            raise InvalidOption(f"not an offset of Lockstep: it has no {', '.join(missing)}")
        segment = given["segment"]
        if not isinstance(segment, int) or isinstance(segment, bool) or segment < 0:
            raise InvalidOption(f"not an offset of Lockstep: its segment is {segment!r}")
        base, to = Snapshot.parse(given["base"]), Snapshot.parse(given["to"])
        if base.xmax > to.xmax:
            raise InvalidOption("not an offset of Lockstep: its base comes after its to")
        return cls(base, to, segment)


EARLIEST = SnapshotPlace.at(NOTHING)


@dataclass(frozen=True, slots=True)
class Mark:
    """What a stream leaves in the database before it gives Spark an offset. If the mark is missing, the database has
    lost something that the offset counts as read, and will assign the same transaction ids again."""

    ordinal: int
    token: str

    def __str__(self) -> str:
        return f"{self.ordinal}/{self.token}"

    @classmethod
    def of(cls, text: str) -> Mark:
        """Raises ValueError."""
        ordinal, _, token = text.partition("/")
        return cls(int(ordinal), str(UUID(token)))


@dataclass(frozen=True, slots=True)
class Offset:
    """A place of one stream, in one database, on known queues."""

    place: SnapshotPlace
    system: str
    """The database: PostgreSQL's system identifier and the database's own id."""
    stream: str
    queues: Mapping[str, int] = field(default_factory=dict)
    """The ids of the queues by name: a queue that was deleted and created again is another queue."""
    initial: bool = False
    """Nothing has been read yet."""
    since: SnapshotPlace | None = None
    """The start of the batch that ends here, if it differs from the end of the previous one. Set for the first batch,
    because Spark does not keep the initial offset but asks for it again, and for the first batch after a failover."""
    mark: Mark | None = None
    """Offsets of older versions have no mark, and neither has the initial one."""

    def as_json(self) -> dict[str, Any]:
        given: dict[str, Any] = {
            **self.place.as_json(),
            "system": self.system,
            "stream": self.stream,
            "queues": dict(self.queues),
        }
        if self.initial:
            given["initial"] = True
        if self.since is not None:
            given["since"] = self.since.as_json()
        if self.mark is not None:
            given["mark"] = str(self.mark)
        return given

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Offset:
        """Parse an offset from a checkpoint. Raises CheckpointMismatch if it does not belong to this source."""
        try:
            since, mark = given.get("since"), given.get("mark")
            return cls(
                SnapshotPlace.of(given),
                str(given["system"]),
                str(given["stream"]),
                dict(given["queues"]),
                bool(given.get("initial", False)),
                None if since is None else SnapshotPlace.of(since),
                None if mark is None else Mark.of(mark),
            )
        except (KeyError, TypeError, ValueError, AttributeError, InvalidOption) as error:
            raise CheckpointMismatch(
                f"the checkpoint's offset is not one of Lockstep's snapshot mode: {error}"
            ) from error

    def moved_to(
        self, place: SnapshotPlace, queues: Mapping[str, int], *, since: SnapshotPlace, mark: Mark | None = None
    ) -> Offset:
        """The end of a batch that starts at `since`."""
        begin = since if self.initial or since != self.place else None
        return replace(self, place=place, queues=queues, initial=False, since=begin, mark=mark)


def between(base: Snapshot, to: Snapshot) -> tuple[str, str, str, str]:
    """What lies between two snapshots, for SQL: the transactions that finished since the first one, the range of those
    that began since then, and which of these are still open. PostgreSQL's drivers do not know xid8, so all values are
    text."""
    finished = _array(xid for xid in base.in_progress if to.sees(xid))
    return finished, str(base.xmax), str(to.xmax), _array(to.in_progress)


def _array(xids: Any) -> str:
    return "{" + ",".join(map(str, xids)) + "}"

"""What a push has for each partition: its lanes, and which of their messages are left out as duplicates."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from lockstep.core.messages import COLUMN_NAMES, Batch, Columns
from lockstep.errors import OperationPending


@dataclass(slots=True)
class Dropped:
    """What of a lane is not pushed, because its transaction id was used before."""

    repeats: dict[int, int]
    """By position: the earlier position in the lane that has the same transaction id."""
    kept: list[int]
    """The positions that are pushed."""
    stored: dict[int, tuple[int, str]] = field(default_factory=dict)
    """By position: seq and id of the message with that transaction id that is stored already."""

    def drop(self, found: Iterable[tuple[int, int, str]]) -> None:
        """Drop messages that turned out to be stored already, by their place among those that were kept."""
        for offset, seq, identity in found:
            self.stored[self.kept[offset]] = (seq, identity)
        self.kept = [position for position in self.kept if position not in self.stored]


@dataclass(slots=True)
class Lanes:
    """What a call has for each partition, in the order in which the partitions first appear."""

    partitions: list[str]
    columns: list[Columns]
    members: list[list[int]] | None
    """By lane: the batches in it. None: lane i is batch i."""
    by_queue: dict[str, list[int]]
    ids: list[int]
    """The partitions' ids, once they are resolved."""
    dropped: dict[int, Dropped] = field(default_factory=dict)

    @classmethod
    def of(cls, batches: Sequence[Batch]) -> Lanes:
        members: dict[tuple[str, str], list[int]] | None = None
        firsts: Sequence[Batch] = batches
        if len({(batch.queue, batch.partition) for batch in batches}) < len(batches):
            members = {}
            for index, batch in enumerate(batches):
                members.setdefault((batch.queue, batch.partition), []).append(index)
            firsts = [batches[indexes[0]] for indexes in members.values()]
        by_queue: dict[str, list[int]] = {}
        for lane, batch in enumerate(firsts):
            by_queue.setdefault(batch.queue, []).append(lane)
        lanes = cls(
            partitions=[batch.partition for batch in firsts],
            columns=_columns(batches, members),
            members=None if members is None else list(members.values()),
            by_queue=by_queue,
            ids=[0] * len(firsts),
        )
        lanes._find_repeats()
        return lanes

    def _find_repeats(self) -> None:
        for lane, columns in enumerate(self.columns):
            ids = columns.transaction_ids
            if ids is None or len(set(ids)) == len(ids):
                continue
            first: dict[str, int] = {}
            repeats = {
                position: first[transaction_id]
                for position, transaction_id in enumerate(ids)
                if transaction_id is not None and first.setdefault(transaction_id, position) != position
            }
            if repeats:
                self.dropped[lane] = Dropped(repeats, [i for i in range(len(ids)) if i not in repeats])

    def pending(self, partition_ids: Iterable[int]) -> OperationPending:
        """The refusal of a push, with the indexes of the batches for whose partitions operations wait."""
        behind = set(partition_ids)
        found = [lane for lane, partition_id in enumerate(self.ids) if partition_id in behind]
        batches = found if self.members is None else [index for lane in found for index in self.members[lane]]
        return OperationPending(batches=sorted(batches))

    def pushed(self, lane: int) -> Columns:
        """What of the lane is pushed."""
        dropped = self.dropped.get(lane)
        return self.columns[lane] if dropped is None else self.columns[lane].take(dropped.kept)


def _columns(batches: Sequence[Batch], members: dict[Any, list[int]] | None) -> list[Columns]:
    if members is None:
        return [batch.columns for batch in batches]
    return [join_columns([batches[index].columns for index in indexes]) for indexes in members.values()]


def join_columns(parts: Sequence[Columns]) -> Columns:
    """The messages of all parts, in order; a column that any of them has is filled up with None."""
    if len(parts) == 1:
        return parts[0]
    joined = Columns(list(chain.from_iterable([part.payloads for part in parts])))
    if all([part.bare() for part in parts]):
        return joined
    for name in COLUMN_NAMES[1:]:
        columns = [getattr(part, name) for part in parts]
        if any(column is not None for column in columns):
            filled = (c if c is not None else [None] * len(p) for c, p in zip(columns, parts, strict=True))
            setattr(joined, name, list(chain.from_iterable(filled)))
    return joined

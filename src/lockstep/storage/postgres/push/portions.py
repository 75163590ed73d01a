"""The portions of a push, one per partition, and the messages that are dropped from them as duplicates."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from lockstep.core.messages import Batch, Columns, join_columns
from lockstep.errors import OperationPending


@dataclass(slots=True)
class Dropped:
    """The messages of a portion that are not pushed, because their transaction ids were used before."""

    repeats: dict[int, int]
    """By position: the earlier position in the portion that has the same transaction id."""
    kept: list[int]
    """The positions that are pushed."""
    stored: dict[int, tuple[int, str]] = field(default_factory=dict)
    """By position: seq and id of the stored message with that transaction id."""

    def drop(self, found: Iterable[tuple[int, int, str]]) -> None:
        """Drop messages that are already stored, by their position among the kept messages."""
        for offset, seq, identity in found:
            self.stored[self.kept[offset]] = (seq, identity)
        self.kept = [position for position in self.kept if position not in self.stored]


@dataclass(slots=True)
class Portions:
    """The portions of a call, in the order in which their partitions first appear."""

    partitions: list[str]
    columns: list[Columns]
    members: list[list[int]] | None
    """By portion: the batches in it. None: portion i is batch i."""
    by_queue: dict[str, list[int]]
    ids: list[int]
    """The partitions' ids, once they are resolved."""
    dropped: dict[int, Dropped] = field(default_factory=dict)

    @classmethod
    def of(cls, batches: Sequence[Batch]) -> Portions:
        members: dict[tuple[str, str], list[int]] | None = None
        firsts: Sequence[Batch] = batches
        if len({(batch.queue, batch.partition) for batch in batches}) < len(batches):
            members = {}
            for index, batch in enumerate(batches):
                members.setdefault((batch.queue, batch.partition), []).append(index)
            firsts = [batches[indexes[0]] for indexes in members.values()]
        by_queue: dict[str, list[int]] = {}
        for portion, batch in enumerate(firsts):
            by_queue.setdefault(batch.queue, []).append(portion)
        portions = cls(
            partitions=[batch.partition for batch in firsts],
            columns=_columns(batches, members),
            members=None if members is None else list(members.values()),
            by_queue=by_queue,
            ids=[0] * len(firsts),
        )
        portions._find_repeats()
        return portions

    def _find_repeats(self) -> None:
        for portion, columns in enumerate(self.columns):
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
                self.dropped[portion] = Dropped(repeats, [i for i in range(len(ids)) if i not in repeats])

    def pending(self, partition_ids: Iterable[int]) -> OperationPending:
        """The refusal of a push, with the indexes of the batches for whose partitions operations wait."""
        behind = set(partition_ids)
        found = [portion for portion, partition_id in enumerate(self.ids) if partition_id in behind]
        batches = found if self.members is None else [index for portion in found for index in self.members[portion]]
        return OperationPending(batches=sorted(batches))

    def pushed(self, portion: int) -> Columns:
        """The messages of the portion that are pushed."""
        dropped = self.dropped.get(portion)
        return self.columns[portion] if dropped is None else self.columns[portion].take(dropped.kept)


def _columns(batches: Sequence[Batch], members: dict[Any, list[int]] | None) -> list[Columns]:
    if members is None:
        return [batch.columns for batch in batches]
    return [join_columns([batches[index].columns for index in indexes]) for indexes in members.values()]

"""Where the messages of a push went, for its receipts."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import chain, repeat
from typing import overload
from uuid import UUID

from lockstep.core.ids import message_id
from lockstep.core.messages import Batch, Placement
from lockstep.storage.postgres.push.attempt import PushAttempt
from lockstep.storage.postgres.push.portions import Dropped, Portions

_NO_SEGMENT = UUID(int=0)


class Placements(Sequence[Placement]):
    """Where the messages of each batch went, computed on demand."""

    def __init__(
        self,
        batches: Sequence[Batch],
        portions: Portions,
        attempt: PushAttempt,
        *,
        uuids: Sequence[UUID] = (),
        first_seqs: Sequence[int] = (),
    ) -> None:
        self._batches = batches
        self._portions = portions
        self._attempt = attempt
        self._uuids = uuids
        self._first_seqs = first_seqs

    def __len__(self) -> int:
        return len(self._batches)

    @overload
    def __getitem__(self, index: int) -> Placement: ...
    @overload
    def __getitem__(self, index: slice) -> list[Placement]: ...
    def __getitem__(self, index: int | slice) -> Placement | list[Placement]:
        return self._slice(index) if isinstance(index, slice) else self._all[index]

    def __iter__(self) -> Iterator[Placement]:
        return iter(self._all)

    @cached_property
    def _all(self) -> list[Placement]:
        return self._slice(slice(None))

    def _slice(self, which: slice) -> list[Placement]:
        if self._portions.dropped or not self._first_seqs:
            return [self._placement(index) for index in range(*which.indices(len(self)))]
        ids, runs = self._portions.ids, self._runs
        found = [(ids[portion], before, *runs[portion]) for portion, before in self._places[which]]
        return [Placement(i, first_seq + before, uuid, n + before) for i, before, first_seq, uuid, n in found]

    def _placement(self, index: int) -> Placement:
        """The placements of a batch, of which some messages may have been dropped."""
        portion, start = self._places[index]
        first_seq, uuid, ordinal = self._runs.get(portion, (0, _NO_SEGMENT, 0))
        dropped = self._portions.dropped.get(portion)
        duplicates = None
        before = start
        if dropped is not None:
            before = bisect_left(dropped.kept, start)
            stop = start + len(self._batches[index].columns)
            duplicates = self._duplicates(dropped, range(start, stop), first_seq, uuid, ordinal)
        return Placement(self._portions.ids[portion], first_seq + before, uuid, ordinal + before, duplicates)

    @cached_property
    def _places(self) -> list[tuple[int, int]]:
        """By batch: its portion, and how many messages of the portion come before it."""
        if self._portions.members is None:
            return [(portion, 0) for portion in range(len(self._batches))]
        places = [(0, 0)] * len(self._batches)
        for portion, members in enumerate(self._portions.members):
            start = 0
            for index in members:
                places[index] = (portion, start)
                start += len(self._batches[index].columns)
        return places

    @cached_property
    def _runs(self) -> dict[int, tuple[int, UUID, int]]:
        """By portion: the first seq of its run, and the place of the run in its segment."""
        attempt = self._attempt
        uuids = chain.from_iterable(map(repeat, self._uuids, attempt.run_counts))
        places = zip(self._first_seqs, uuids, attempt.ordinals, strict=True)
        return dict(zip(attempt.portions, places, strict=True))

    @staticmethod
    def _duplicates(
        dropped: Dropped, positions: range, first_seq: int, uuid: UUID, ordinal: int
    ) -> dict[int, tuple[int, str]]:
        """By position in the batch: the message that has the same transaction id."""
        found: dict[int, tuple[int, str]] = {}
        for position in positions:
            original = dropped.repeats.get(position, position)
            if original in dropped.stored:
                found[position - positions.start] = dropped.stored[original]
            elif original != position:
                offset = bisect_left(dropped.kept, original)
                found[position - positions.start] = (first_seq + offset, message_id(uuid, ordinal + offset))
        return found

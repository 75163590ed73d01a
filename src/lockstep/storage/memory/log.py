"""One partition's stored messages."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import accumulate

from lockstep.core.ids import is_canonical_uuid, message_id, split_message_id
from lockstep.core.messages import COLUMN_NAMES, Columns, Run
from lockstep.core.rules import Ahead


def _by_seq(run: Run) -> int:
    return run.first_seq


def _by_id(run: Run) -> int:
    return run.segment.int | run.ordinal


class Log:
    """Runs in seq order. Removed messages leave a gap; `last_seq` stays."""

    def __init__(self) -> None:
        self.runs: list[Run] = []
        self.last_seq = 0
        # How many messages are stored before each run, and after the last: a lag costs two bisections.
        self._before: list[int] = [0]

    def __len__(self) -> int:
        return self._before[-1]

    @property
    def first_seq(self) -> int:
        """Of the oldest stored message; last_seq + 1 when none is stored."""
        return self.runs[0].first_seq if self.runs else self.last_seq + 1

    def append(self, run: Run) -> None:
        """Append messages; those that continue in the last run's segment are joined to that run."""
        last = self.runs[-1] if self.runs else None
        if last is not None and last.segment == run.segment and last.last_seq + 1 == run.first_seq:
            _extend(last.columns, run.columns)
            self._before[-1] += len(run)
        else:
            self.runs.append(replace(run, columns=_copy(run.columns, 0, len(run))))
            self._before.append(self._before[-1] + len(run))
        self.last_seq = run.last_seq

    def count_after(self, seq: int) -> int:
        """How many messages are stored after a seq."""
        index = bisect_right(self.runs, seq, key=_by_seq) - 1
        if index < 0:
            return len(self)
        run = self.runs[index]
        return len(self) - self._before[index] - min(seq - run.first_seq + 1, len(run))

    def first_after(self, seq: int) -> int | None:
        """The first stored seq after a seq."""
        run = self._run_after(seq)
        return None if run is None else max(run.first_seq, seq + 1)

    def ahead(self, seq: int) -> Ahead | None:
        """The stored messages after a seq, as the rules need them."""
        run = self._run_after(seq)
        return None if run is None else Ahead(run.created_at, self.runs[-1].created_at)

    def place_before(self, matches: Callable[[Run], bool]) -> int:
        """The last seq before the first run that matches; the last stored one if none does."""
        index = next((i for i, run in enumerate(self.runs) if matches(run)), len(self.runs))
        return self.runs[index - 1].last_seq if index else self.first_seq - 1

    def place_after(self, matches: Callable[[Run], bool]) -> int:
        """The last seq of the last run that matches; before everything if none does."""
        return next((run.last_seq for run in reversed(self.runs) if matches(run)), self.first_seq - 1)

    def find(self, seq: int) -> tuple[Run, int] | None:
        """The run that holds a seq, and where in it."""
        index = bisect_right(self.runs, seq, key=_by_seq) - 1
        if index < 0 or self.runs[index].last_seq < seq:
            return None
        return self.runs[index], seq - self.runs[index].first_seq

    def find_id(self, identity: str) -> int | None:
        """The seq of a message id. Ids rise with the seqs, so this is a bisection too."""
        if not is_canonical_uuid(identity):
            return None
        segment, ordinal = split_message_id(identity)
        index = bisect_right(self.runs, segment.int | ordinal, key=_by_id) - 1
        run = self.runs[index] if index >= 0 else None
        if run is None or run.segment != segment or ordinal - run.ordinal >= len(run):
            return None
        return run.first_seq + ordinal - run.ordinal

    def id_of(self, seq: int) -> str:
        """The message id of a stored seq."""
        found = self.find(seq)
        assert found is not None
        run, offset = found
        return message_id(run.segment, run.ordinal + offset)

    def read(self, seq: int, limit: int) -> Iterator[Run]:
        """Copies of the runs after a seq, the first one cut to begin there: at most `limit` messages."""
        index = max(bisect_right(self.runs, seq, key=_by_seq) - 1, 0)
        while limit > 0 and index < len(self.runs):
            run = self.runs[index]
            start = max(seq + 1 - run.first_seq, 0)
            stop = min(start + limit, len(run))
            if start < stop:
                yield _cut(run, start, stop)
                limit -= stop - start
            index += 1

    def backwards(self) -> Iterator[Run]:
        """Copies of the runs, the last one first."""
        return (_cut(run, 0, len(run)) for run in reversed(self.runs))

    def remove_all_but(self, kept: Iterable[tuple[int, int]]) -> list[Run]:
        """Remove every message outside the given ranges of seqs (first, last); returns the removed messages."""
        ranges = _merged(kept)
        removed: list[Run] = []
        runs, self.runs = self.runs, []
        for run in runs:
            for first, last, keep in _pieces(run.first_seq, run.last_seq, ranges):
                piece = _cut(run, first - run.first_seq, last - run.first_seq + 1)
                (self.runs if keep else removed).append(piece)
        self._before = list(accumulate(map(len, self.runs), initial=0))
        return removed

    def _run_after(self, seq: int) -> Run | None:
        """The run with the first message after a seq."""
        index = bisect_right(self.runs, seq, key=_by_seq)
        if index > 0 and self.runs[index - 1].last_seq > seq:
            return self.runs[index - 1]
        return self.runs[index] if index < len(self.runs) else None


def _cut(run: Run, start: int, stop: int) -> Run:
    return replace(
        run,
        first_seq=run.first_seq + start,
        ordinal=run.ordinal + start,
        columns=_copy(run.columns, start, stop),
    )


def _copy(columns: Columns, start: int, stop: int) -> Columns:
    """A slice that shares no list with the original, so that callers cannot change the stored messages."""
    copies = [None if column is None else column[start:stop] for column in columns.all()]
    return Columns(*copies)  # type: ignore[arg-type]


def _extend(columns: Columns, more: Columns) -> None:
    before, added = len(columns), len(more)
    for name in COLUMN_NAMES:
        column, new = getattr(columns, name), getattr(more, name)
        if column is None and new is None:
            continue
        if column is None:
            setattr(columns, name, [*([None] * before), *new])
        else:
            column.extend([None] * added if new is None else new)


def _merged(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same seqs as ranges in order that do not overlap."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return merged


def _pieces(first: int, last: int, kept: list[tuple[int, int]]) -> Iterator[tuple[int, int, bool]]:
    """The seqs from `first` to `last`, cut where kept ranges begin and end; for each piece, whether it is kept."""
    for low, high in kept:
        if high < first or low > last:
            continue
        if first < low:
            yield first, low - 1, False
        yield max(first, low), min(last, high), True
        first = high + 1
    if first <= last:
        yield first, last, False

"""Messages in."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from uuid import UUID

from lockstep.core import refusals
from lockstep.core.ids import SEGMENT_MESSAGES_MAX
from lockstep.core.messages import Appointment, Batch, Columns, Occupancy, Placement, PushResult, Run
from lockstep.core.policy import QueueOptions
from lockstep.core.rules import due_after_push
from lockstep.core.schedules import NewWaiting, find_repeats, placements_of, split, waiting_of
from lockstep.errors import OperationPending, TooLarge
from lockstep.storage.memory.state import Partition, Queue, State

_NO_SEGMENT = UUID(int=0)


def push(
    state: State, batches: Sequence[Batch], now: datetime, *, overtake: bool = False, bounded: bool = True
) -> PushResult:
    """Push the immediate messages, which may raise; then store the scheduled ones, which cannot. With `overtake` the
    push overtakes operations that wait for its partitions, which otherwise make it fail. Without `bounded` it creates
    partitions even if a queue has the maximum number."""
    if sum(len(batch.columns) for batch in batches) > SEGMENT_MESSAGES_MAX:
        raise TooLarge(f"one call may push at most {SEGMENT_MESSAGES_MAX} messages")
    if all(batch.schedule is None for batch in batches):
        _refuse_overtaking(state, batches, () if overtake else range(len(batches)))
        return _push_now(state, batches, now, bounded=bounded)
    at_once, later = split(batches, now, seconds_min=state.timing.schedule_seconds_min)
    _refuse_overtaking(state, batches, () if overtake else at_once)
    queues = {batches[index].queue for index in later}
    pushed = _push_now(state, [batches[index] for index in at_once], now, also=queues)
    items = waiting_of(batches, later)
    appointments = _schedule(state, items, now)
    placed = dict(zip(at_once, pushed.placements, strict=True))
    return PushResult(batches, placements_of(batches, placed, later, appointments), occupancy=pushed.occupancy)


def _refuse_overtaking(state: State, batches: Sequence[Batch], indexes: Iterable[int]) -> None:
    """Raises OperationPending, which names the batches for whose partitions operations wait."""
    behind = []
    for index in indexes if state.lanes else ():
        queue = state.queues.get(batches[index].queue)
        partition = None if queue is None else queue.partitions.get(batches[index].partition)
        if partition is not None and partition.id in state.lanes:
            behind.append(index)
    if behind:
        raise OperationPending(batches=behind)


def _schedule(state: State, items: list[NewWaiting], now: datetime) -> list[Appointment]:
    """Store the messages as scheduled; returns the place of each."""
    repeats = find_repeats(items)
    places: list[Appointment] = []
    for index, item in enumerate(items):
        if index in repeats:
            first = places[repeats[index]]
            places.append(Appointment(first.schedule_id, first.due_at, True))
        else:
            places.append(state.waitlist.add(item, now))
    return places


def _push_now(
    state: State, batches: Sequence[Batch], now: datetime, *, also: Collection[str] = (), bounded: bool = True
) -> PushResult:
    """Decide everything, which may raise; then store it, which cannot. The queues in `also` are created, too."""
    plan = _plan(state, batches)
    if bounded:
        for name, portions in plan.items():
            state.check_partitions(name, portions)
    occupancy = _check_room(state, plan)
    placements: dict[int, Placement] = {}
    for name in sorted({*plan, *also}):  # by name, so that the ids do not depend on the order of the batches
        queue = state.queues.get(name) or state.add_queue(name, QueueOptions(), now)
        _add_partitions(state, queue, plan.get(name, {}), now)
    for name, portions in plan.items():
        queue = state.queues[name]
        segment = _Segment(state, now)
        for portion in portions.values():
            placements.update(_store(state, queue.partition(portion.name), portion, segment, now))
    return PushResult(batches, [placements[index] for index in range(len(batches))], occupancy=occupancy)


@dataclass(slots=True)
class _Share:
    """The new messages of one batch."""

    index: int
    columns: Columns
    first_seq: int
    duplicates: dict[int, int]
    """Position in the batch to the seq of the first message with that transaction id."""


@dataclass(slots=True)
class _Portion:
    """All messages of one call for one partition."""

    name: str
    last_seq: int
    known: Mapping[str, int]
    """Transaction ids from before the call."""
    seen: dict[str, int] = field(default_factory=dict)
    """Transaction ids of this call."""
    shares: list[_Share] = field(default_factory=list)

    def add(self, index: int, columns: Columns) -> None:
        first_seq = self.last_seq + 1
        kept, duplicates = self._sort_out(columns)
        if duplicates:
            columns = columns.take(kept)
        self.last_seq += len(columns)
        self.shares.append(_Share(index, columns, first_seq, duplicates))

    def _sort_out(self, columns: Columns) -> tuple[list[int], dict[int, int]]:
        """The positions of new messages, and the duplicates."""
        kept: list[int] = []
        duplicates: dict[int, int] = {}
        for position, transaction_id in enumerate(columns.transaction_ids or ()):
            if transaction_id is not None:
                first = self.known.get(transaction_id) or self.seen.get(transaction_id)
                if first is not None:
                    duplicates[position] = first
                    continue
                self.seen[transaction_id] = self.last_seq + 1 + len(kept)
            kept.append(position)
        return kept, duplicates

    def new(self) -> int:
        return sum(len(share.columns) for share in self.shares)


_Plan = dict[str, dict[str, _Portion]]
"""Queue name and partition name, each in order of appearance."""


def _plan(state: State, batches: Sequence[Batch]) -> _Plan:
    plan: _Plan = {}
    for index, batch in enumerate(batches):
        portions = plan.setdefault(batch.queue, {})
        if batch.partition not in portions:
            portions[batch.partition] = _portion(state.queues.get(batch.queue), batch.partition)
        portions[batch.partition].add(index, batch.columns)
    return plan


def _portion(queue: Queue | None, name: str) -> _Portion:
    partition = queue.partitions.get(name) if queue is not None else None
    if partition is None:
        return _Portion(name, 0, {})
    return _Portion(name, partition.log.last_seq, partition.dedup)


def _check_room(state: State, plan: _Plan) -> dict[str, Occupancy]:
    """How full the queues with a max_size will be; raises QueueFull if one would be too full."""
    occupancy = {}
    for name, portions in plan.items():
        queue = state.queues.get(name)
        max_size = queue.options.max_size if queue is not None else 0
        if queue is None or not max_size:
            continue
        depth, new = queue.pending(), sum(portion.new() for portion in portions.values())
        if new and depth + new > max_size:
            raise refusals.queue_full(name, depth=depth, max_size=max_size, new=new)
        occupancy[name] = Occupancy(depth + new, max(max_size - depth - new, 0))
    return occupancy


def _add_partitions(state: State, queue: Queue, portions: Mapping[str, _Portion], now: datetime) -> None:
    """Create missing partitions, by name."""
    for name in sorted(portions):
        if name not in queue.partitions:
            state.add_partition(queue, name, now)


class _Segment:
    """Places in the segment of one queue and call, which is created for the first message."""

    def __init__(self, state: State, now: datetime) -> None:
        self._state = state
        self._now = now
        self._segment: UUID | None = None
        self._ordinal = 0

    def place(self, messages: int) -> tuple[UUID, int]:
        if self._segment is None:
            self._segment = self._state.new_segment(self._now)
        ordinal = self._ordinal
        self._ordinal += messages
        return self._segment, ordinal


def _store(
    state: State, partition: Partition, portion: _Portion, places: _Segment, now: datetime
) -> Iterator[tuple[int, Placement]]:
    """Store what is new for one partition; yields the placement of each batch by its index."""
    partition.dedup.update(portion.seen)
    for share in portion.shares:
        segment, ordinal = places.place(len(share.columns)) if len(share.columns) else (_NO_SEGMENT, 0)
        if len(share.columns):
            queue = partition.queue.name
            run = Run(queue, partition.name, partition.id, share.first_seq, segment, ordinal, now, share.columns)
            partition.log.append(run)
            _index_traces(state, run)
        duplicates = {at: (seq, partition.log.id_of(seq)) for at, seq in share.duplicates.items()}
        yield share.index, Placement(partition.id, share.first_seq, segment, ordinal, duplicates or None)
    if portion.new():
        _wake(state, partition, now)


def _index_traces(state: State, run: Run) -> None:
    for seq, trace_id in enumerate(run.columns.trace_ids or (), run.first_seq):
        if trace_id is not None:
            state.traces.setdefault(trace_id, set()).add((run.partition_id, seq))


def _wake(state: State, partition: Partition, now: datetime) -> None:
    for group in partition.queue.groups.values():
        cursor = group.cursors[partition.id]
        due_at = due_after_push(cursor, now, partition.queue.options)
        if due_at != cursor.due_at:
            state.put(group, partition, replace(cursor, due_at=due_at))

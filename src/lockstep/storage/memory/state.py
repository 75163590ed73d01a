"""The data of the memory store, and the few changes that must keep several dicts consistent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import count
from uuid import UUID

from lockstep.core import refusals
from lockstep.core.ids import segment_uuid7
from lockstep.core.messages import Message, Run
from lockstep.core.names import GROUPS_MAX, QUEUE_MODE, namespace_and_task
from lockstep.core.policy import GroupMode, QueueOptions
from lockstep.core.records import Subscription
from lockstep.core.rules import Cursor, Death, due_after_release
from lockstep.core.schedules import Timing
from lockstep.core.shared import Range, low_water, seen_at
from lockstep.core.streams import NewStreamQuery, StateRow
from lockstep.core.traces import TraceEvent
from lockstep.errors import GroupModeMismatch
from lockstep.storage.memory.agenda import Agenda
from lockstep.storage.memory.log import Log
from lockstep.storage.memory.waitlist import Waitlist

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# The time in a UUIDv7 has a resolution of 1/4096 ms; this is the least that surely changes it.
_UUID_TICK_NS = 245


def _utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(slots=True, eq=False)
class Partition:
    id: int
    queue: Queue
    name: str
    created_at: datetime
    log: Log = field(default_factory=Log)
    dedup: dict[str, int] = field(default_factory=dict)
    """Transaction id to seq."""
    dead: dict[int, set[int]] = field(default_factory=dict)
    """Seq to the ids of its dead letters."""
    events: dict[int, list[TraceEvent]] = field(default_factory=dict)
    """Trace events by seq."""

    def message(self, seq: int) -> Message:
        found = self.log.find(seq)
        assert found is not None
        run, offset = found
        return run.message(offset)

    def resolve(self, identity: str) -> int | None:
        """The seq of a transaction id that a producer gave, or of a message id."""
        seq = self.dedup.get(identity)
        return self.log.find_id(identity) if seq is None else seq

    def leased(self, cursor: Cursor, now: datetime) -> int:
        """How many stored messages a cursor holds under a live lease."""
        if not cursor.leased(now) or cursor.lease_to is None:
            return 0
        return self.log.count_after(cursor.acked) - self.log.count_after(cursor.lease_to)

    def pending(self) -> int:
        """The lag of the group that is furthest behind; everything while there is no group."""
        lags = (group.lag_of(self) for group in self.queue.groups.values())
        return max(lags, default=len(self.log))

    def stored(self, one: Range) -> int:
        """How many messages of a range are stored."""
        return self.log.count_after(one.first - 1) - self.log.count_after(one.last)


@dataclass(slots=True, eq=False)
class Group:
    name: str
    queue: Queue
    created_at: datetime
    cursors: dict[int, Cursor] = field(default_factory=dict)
    """By partition id: one for every partition of the queue."""
    mode: GroupMode = "ordered"
    ranges: dict[int, list[Range]] = field(default_factory=dict)
    """Of a shared group, by partition id: the messages in flight, by seq."""
    paused_at: datetime | None = None
    """Since when nothing is delivered to it."""
    agenda: Agenda = field(init=False)

    def __post_init__(self) -> None:
        self.agenda = Agenda(self.cursors)

    def lag(self) -> int:
        return sum(map(self.lag_of, self.queue.partitions.values()))

    def lag_of(self, partition: Partition) -> int:
        """Stored messages that are not done: those ahead of the cursor, and those in flight."""
        ahead = partition.log.count_after(self.cursors[partition.id].acked)
        return ahead + sum(map(partition.stored, self.ranges.get(partition.id, ())))

    def done_upto(self, partition: Partition) -> int:
        """Up to where everything is done."""
        return low_water(self.cursors[partition.id].acked, self.ranges.get(partition.id, ()))

    def leased(self, partition: Partition, now: datetime) -> int:
        """How many stored messages are under a live lease."""
        held = (one for one in self.ranges.get(partition.id, ()) if one.leased(now))
        return partition.leased(self.cursors[partition.id], now) + sum(map(partition.stored, held))

    def places(self, partition: Partition, now: datetime) -> list[Cursor]:
        """For retention: up to where it is done, and up to where nothing is leased, as cursors."""
        held = next((one for one in self.ranges.get(partition.id, ()) if one.leased(now)), None)
        done = replace(self.cursors[partition.id], acked=self.done_upto(partition))
        return [done] if held is None else [done, Cursor(held.first - 1, held.due_at, held.lease_id)]

    def passed(self, partition: Partition) -> int:
        """How many seqs it has done, or passed, in all."""
        return self.cursors[partition.id].acked - sum(map(len, self.ranges.get(partition.id, ())))

    def oldest_at(self, partition: Partition) -> datetime | None:
        """When the first message was created that is stored and not done."""
        head = next((one for one in self.ranges.get(partition.id, ()) if partition.stored(one)), None)
        ahead = partition.log.ahead(self.cursors[partition.id].acked if head is None else head.first - 1)
        return None if ahead is None else ahead.next_created_at

    def is_leased(self, partition: Partition, now: datetime) -> bool:
        """Whether there is a live lease, even if nothing of it is stored any more."""
        held = any(one.leased(now) for one in self.ranges.get(partition.id, ()))
        return held or self.cursors[partition.id].leased(now)

    def seen_at(self, partition: Partition, seq: int) -> Cursor:
        """The cursor as one message sees it."""
        cursor = self.cursors[partition.id]
        return cursor if self.mode == "ordered" else seen_at(cursor, self.ranges.get(partition.id, ()), seq)


@dataclass(slots=True, frozen=True)
class StoredSubscription:
    subscription: Subscription
    created_at: datetime

    def at(self, now: datetime) -> Subscription:
        """Where a newly created group begins: with `new`, from when it was first subscribed."""
        if self.subscription.mode == "new" and self.created_at < now:
            return Subscription("from", self.created_at)
        return self.subscription


@dataclass(slots=True, eq=False)
class Queue:
    id: int
    name: str
    namespace: str
    task: str
    options: QueueOptions
    created_at: datetime
    partitions: dict[str, Partition] = field(default_factory=dict)
    groups: dict[str, Group] = field(default_factory=dict)
    subscriptions: dict[str, StoredSubscription] = field(default_factory=dict)
    """By group; a group may be deleted and its subscription kept."""

    def partition(self, name: str) -> Partition:
        if name not in self.partitions:
            raise refusals.no_partition(self.name, name)
        return self.partitions[name]

    def group(self, name: str) -> Group:
        if name not in self.groups:
            raise refusals.no_group(name, self.name)
        return self.groups[name]

    def chosen(self, partition: str | None) -> list[Partition]:
        """One partition, or all by id."""
        return list(self.partitions.values()) if partition is None else [self.partition(partition)]

    def pending(self) -> int:
        """The lag of the group that is furthest behind; everything while there is no group."""
        if not self.groups:
            return sum(len(partition.log) for partition in self.partitions.values())
        return max(group.lag() for group in self.groups.values())


@dataclass(slots=True, frozen=True)
class DeadEntry:
    id: int
    partition: Partition
    seq: int
    group: str
    attempts: int
    error: str | None
    failed_at: datetime
    copy: tuple[Partition, int] | None = None
    """Where its copy was pushed in a dead queue, and with which seq."""
    copy_done: bool = False
    """Retention removed the copy after queue mode had completed it."""


@dataclass(slots=True)
class StoredQuery:
    """A stream query with its state."""

    id: int
    asked: NewStreamQuery
    """As it was last requested."""
    rows: dict[int, dict[str, StateRow]] = field(default_factory=dict)
    """By partition id and key."""


class State:
    """All queues, and the indexes over them."""

    def __init__(self, clock: Callable[[], datetime] | None = None, timing: Timing | None = None) -> None:
        self.now = clock or _utc_now
        self.timing = timing or Timing()
        self.queues: dict[str, Queue] = {}
        self.partitions: dict[int, Partition] = {}
        self.leases: dict[str, set[tuple[Group, Partition]]] = {}
        self.traces: dict[str, set[tuple[int, int]]] = {}
        """Trace id to partition id and seq."""
        self.dead_letters: dict[int, DeadEntry] = {}
        self.dying: list[int] = []
        """Dead letters of this call whose messages are still to be pushed to a dead queue."""
        self.trace_events: dict[int, TraceEvent] = {}
        self.stream_queries: dict[str, StoredQuery] = {}
        self.waitlist = Waitlist()
        self.queue_groups_max = GROUPS_MAX
        self.queue_partitions_max: int | None = None
        self.lanes: dict[int, set[int]] = {}
        """By partition id: the serials of the bundles of operations that wait for it."""
        self._queue_ids = count(1)
        self._partition_ids = count(1)
        self._dead_letter_ids = count(1)
        self.trace_event_ids = count(1)
        self.stream_query_ids = count(1)
        self._segment_ns = 0

    # Queues and partitions

    def queue(self, name: str) -> Queue:
        if name not in self.queues:
            raise refusals.no_queue(name)
        return self.queues[name]

    def chosen(self, queue: str | None) -> list[Queue]:
        """One queue, or all by name."""
        return [self.queues[name] for name in sorted(self.queues)] if queue is None else [self.queue(queue)]

    def add_queue(
        self,
        name: str,
        options: QueueOptions,
        now: datetime,
        *,
        namespace: str | None = None,
        task: str | None = None,
    ) -> Queue:
        """A new queue, as yet without partitions."""
        own_namespace, own_task = namespace_and_task(name)
        self.queues[name] = Queue(
            id=next(self._queue_ids),
            name=name,
            namespace=own_namespace if namespace is None else namespace,
            task=own_task if task is None else task,
            options=options,
            created_at=now,
        )
        return self.queues[name]

    def add_partition(self, queue: Queue, name: str, now: datetime) -> Partition:
        """A new partition, which every group of the queue reads from its first message."""
        partition = Partition(next(self._partition_ids), queue, name, now)
        queue.partitions[name] = self.partitions[partition.id] = partition
        for group in queue.groups.values():
            self.put(group, partition, Cursor())
        return partition

    def check_partitions(self, queue: str, names: Iterable[str]) -> None:
        """Raises TooManyPartitions if the missing partitions exceed the limit of the queue."""
        there = self.queues[queue].partitions if queue in self.queues else {}
        new = len(set(names).difference(there))
        if new and self.queue_partitions_max is not None and len(there) + new > self.queue_partitions_max:
            raise refusals.no_room_for_partitions(there=len(there), new=new, limit=self.queue_partitions_max)

    def remove_queue(self, queue: Queue) -> None:
        for group in list(queue.groups.values()):
            self.remove_group(group)
        for partition in queue.partitions.values():
            self.remove_messages(partition, kept=())
            for query in self.stream_queries.values():
                query.rows.pop(partition.id, None)
            del self.partitions[partition.id]
        self.waitlist.remove_of(queue.name)
        del self.queues[queue.name]

    # Groups and cursors

    def group(
        self, queue: Queue, name: str, subscription: Subscription, now: datetime, *, mode: GroupMode | None = None
    ) -> Group:
        """The group; created, if it is new, where its stored subscription says, else the given one. Raises
        GroupModeMismatch."""
        mode = self.group_mode(queue, name, mode)
        if name in queue.groups:
            return queue.groups[name]
        if name != QUEUE_MODE and len(queue.groups.keys() - {QUEUE_MODE}) >= self.queue_groups_max:
            raise refusals.no_room_for_group(name, self.queue_groups_max)
        if name == QUEUE_MODE:
            subscription = Subscription()
        elif name in queue.subscriptions:
            subscription = queue.subscriptions[name].at(now)
        else:
            queue.subscriptions[name] = StoredSubscription(subscription, now)
        group = queue.groups[name] = Group(name, queue, now, mode=mode)
        for partition in queue.partitions.values():
            self.put_released(group, partition, Cursor(_beginning(partition.log, subscription)), not_before=now)
        return group

    def group_mode(self, queue: Queue, name: str, asked: GroupMode | None) -> GroupMode:
        """The mode that a group has or will have. Raises GroupModeMismatch if another one was requested."""
        if name not in queue.groups:
            return asked or queue.options.group_mode
        mode = queue.groups[name].mode
        if asked not in (None, mode):
            raise GroupModeMismatch(f"group {name!r} on queue {queue.name!r} is {mode}, not {asked}")
        return mode

    def remove_group(self, group: Group) -> None:
        for partition in group.queue.partitions.values():
            self.put(group, partition, Cursor())
            self.put_ranges(group, partition, [])
        del group.queue.groups[group.name]

    def put(self, group: Group, partition: Partition, cursor: Cursor) -> None:
        """Set a cursor."""
        before = group.cursors.get(partition.id)
        if before is not None and before.lease_id is not None and before.lease_id != cursor.lease_id:
            self._end_lease(before.lease_id, group, partition)
        if cursor.lease_id is not None:
            self.leases.setdefault(cursor.lease_id, set()).add((group, partition))
        group.cursors[partition.id] = cursor
        group.agenda.note(partition.id)

    def put_ranges(self, group: Group, partition: Partition, ranges: Iterable[Range]) -> None:
        """Set the messages in flight."""
        before = {one.lease_id for one in group.ranges.pop(partition.id, ()) if one.lease_id is not None}
        kept = sorted(ranges, key=lambda one: one.first)
        if kept:
            group.ranges[partition.id] = kept
        after = {one.lease_id for one in kept if one.lease_id is not None}
        for lease_id in before - after:
            self._end_lease(lease_id, group, partition)
        for lease_id in after:
            self.leases.setdefault(lease_id, set()).add((group, partition))

    def _end_lease(self, lease_id: str, group: Group, partition: Partition) -> None:
        self.leases[lease_id].discard((group, partition))
        if not self.leases[lease_id]:
            del self.leases[lease_id]

    def put_released(self, group: Group, partition: Partition, cursor: Cursor, *, not_before: datetime) -> None:
        """Set a cursor without a lease, due when the messages ahead of it become visible."""
        ahead = partition.log.ahead(cursor.acked)
        due_at = due_after_release(ahead, group.queue.options, not_before=not_before)
        self.put(group, partition, replace(cursor, due_at=due_at))

    def cursors(self, partition: Partition) -> Iterator[tuple[Group, Cursor]]:
        """The cursors on a partition, by group name."""
        groups = partition.queue.groups
        return ((groups[name], groups[name].cursors[partition.id]) for name in sorted(groups))

    def leaseholders(self, lease_id: str) -> list[tuple[Group, Partition]]:
        """The holders of a lease, live or expired, by partition id."""
        return sorted(self.leases.get(lease_id, ()), key=lambda holder: holder[1].id)

    # Messages

    def new_segment(self, now: datetime) -> UUID:
        """A segment's UUID, later than every one before, even if the clock stands still or steps back."""
        now_ns = (now - _EPOCH) // timedelta(microseconds=1) * 1000
        self._segment_ns = max(now_ns, self._segment_ns + _UUID_TICK_NS)
        return segment_uuid7(self._segment_ns)

    def remove_messages(self, partition: Partition, *, kept: Iterable[tuple[int, int]]) -> int:
        """Remove the messages outside the kept ranges of seqs, with all that points at them."""
        removed = partition.log.remove_all_but(kept)
        for run in removed:
            self._forget(partition, run)
        return sum(map(len, removed))

    def _forget(self, partition: Partition, run: Run) -> None:
        for transaction_id in run.columns.transaction_ids or ():
            if transaction_id is not None:
                del partition.dedup[transaction_id]
        for seq, trace_id in enumerate(run.columns.trace_ids or (), run.first_seq):
            if trace_id is not None:
                self.remove_trace(trace_id, (partition.id, seq))
        if partition.dead:
            for seq in range(run.first_seq, run.last_seq + 1):
                for dead_letter_id in partition.dead.pop(seq, ()):
                    del self.dead_letters[dead_letter_id]
        if partition.events:
            for seq in range(run.first_seq, run.last_seq + 1):
                for event in partition.events.pop(seq, ()):
                    del self.trace_events[event.id]

    def remove_trace(self, trace_id: str, place: tuple[int, int]) -> None:
        self.traces[trace_id].discard(place)
        if not self.traces[trace_id]:
            del self.traces[trace_id]

    # Dead letters

    def add_dead_letter(self, group: Group, partition: Partition, death: Death, now: datetime) -> int | None:
        """Record a death; returns the dead letter's id. A message that is no longer stored leaves none."""
        if not death.recorded or partition.log.find(death.seq) is None:
            return None
        entry = DeadEntry(
            next(self._dead_letter_ids), partition, death.seq, group.name, death.attempts, death.error, now
        )
        self.dead_letters[entry.id] = entry
        partition.dead.setdefault(entry.seq, set()).add(entry.id)
        if partition.queue.options.dead_queue is not None:
            self.dying.append(entry.id)
        return entry.id

    def remove_dead_letter(self, dead_letter_id: int) -> None:
        entry = self.dead_letters.pop(dead_letter_id)
        ids = entry.partition.dead[entry.seq]
        ids.discard(dead_letter_id)
        if not ids:
            del entry.partition.dead[entry.seq]


def _beginning(log: Log, subscription: Subscription) -> int:
    """Up to where a new group counts everything as done."""
    if subscription.mode == "new":
        return log.last_seq
    if subscription.mode == "all" or subscription.from_at is None:
        return log.first_seq - 1
    from_at = subscription.from_at
    return log.place_before(lambda run: run.created_at >= from_at)

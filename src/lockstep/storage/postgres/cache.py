"""The caches of a store: decoded segments, and ids by name."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from itertools import accumulate
from uuid import UUID

from lockstep.config import Config
from lockstep.core.messages import Columns
from lockstep.errors import SealBroken

_VALUE_OVERHEAD_BYTES = 64
"""Memory of a value in Python besides its bytes: the object's header and its slot in the list."""


_LEARNED: ContextVar[list[Callable[[], object]] | None] = ContextVar("lockstep_learned", default=None)
"""How to forget each name that the transaction of this task has learned."""


@contextmanager
def forgetting_on_failure() -> Iterator[None]:
    """Around a transaction, or a part of one: if it fails, what it created is rolled back, so the names that it learned
    are forgotten. Names that were known before stay."""
    around, learned = _LEARNED.get(), list[Callable[[], object]]()
    token = _LEARNED.set(learned)
    try:
        yield
    except BaseException:
        for forget in learned:
            forget()
        raise
    else:
        if around is not None:
            around += learned
    finally:
        _LEARNED.reset(token)


def _note(forget: Callable[[], object]) -> None:
    learned = _LEARNED.get()
    if learned is not None:
        learned.append(forget)


@dataclass(frozen=True, slots=True)
class SegmentOwners:
    """The partitions of the messages of an encrypted segment, according to its binding."""

    queue_id: int
    partition_ids: list[int]
    ends: list[int]
    """By entry of partition_ids: the ordinal after its last message."""

    @classmethod
    def of(cls, queue_id: int, partition_ids: list[int], counts: list[int]) -> SegmentOwners:
        return cls(queue_id, partition_ids, list(accumulate(counts)))

    def require(self, partition_id: int, ordinal: int, count: int) -> None:
        """Raise SealBroken unless these messages are the partition's."""
        entry = bisect_right(self.ends, ordinal)
        is_theirs = entry < len(self.ends) and self.partition_ids[entry] == partition_id
        if not is_theirs or ordinal + count > self.ends[entry]:
            raise SealBroken("a stored message was encrypted for another partition")


@dataclass(frozen=True, slots=True)
class Segment:
    """A decoded segment. Segments never change, so a cached segment is always valid."""

    uuid: UUID
    created_at: datetime
    columns: Columns
    content_bytes: int
    """All its values together."""
    owners: SegmentOwners | None = None
    """Of an encrypted segment that was read: the partitions of its messages."""

    def memory_bytes(self) -> int:
        columns = 1 + sum([column is not None for column in self.columns.described()])
        packed = 0 if self.columns.part is None else len(self.columns.part.block.body)
        return self.content_bytes + packed + columns * len(self.columns) * _VALUE_OVERHEAD_BYTES


class SegmentCache:
    """The most recently used segments, up to a limit of bytes."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0
        self.hits = 0
        self.misses = 0
        self._segments: OrderedDict[int, tuple[Segment, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._segments)

    def get(self, segment_id: int) -> Segment | None:
        found = self._segments.get(segment_id)
        if found is None:
            self.misses += 1
            return None
        self.hits += 1
        self._segments.move_to_end(segment_id)
        return found[0]

    def clear(self) -> None:
        self._segments.clear()
        self.bytes = 0

    def put(self, segment_id: int, segment: Segment) -> None:
        size = segment.memory_bytes()
        if size > self.bytes_max or segment_id in self._segments:
            return
        self._segments[segment_id] = (segment, size)
        self.bytes += size
        while self.bytes > self.bytes_max:
            _, (_, freed) = self._segments.popitem(last=False)
            self.bytes -= freed


@dataclass(slots=True)
class QueueNames:
    """A queue's id, its storage options, and the ids of its known partitions and groups."""

    id: int
    compression: str
    encryption: bool
    limited: bool
    """It has a max_size."""
    expiring: bool = False
    """Whether messages in it may have expiry times of their own, as far as is known."""
    counted: int | None = None
    """How many partitions it had when some were created here, up to the id `counted_upto`."""
    counted_upto: int | None = None
    balanced: int | None = None
    """How many numbered partitions it has; None until it is looked up."""
    partitions: dict[str, int] = field(default_factory=dict)
    last_runs: dict[int, int] = field(default_factory=dict)
    """By partition id: the first seq of its last run seen here. It saves reading older ones."""
    groups: dict[str, int] = field(default_factory=dict)
    shared: set[str] = field(default_factory=set)
    """The shared groups among them. A group keeps its mode as long as its id."""
    unplaced: set[str] = field(default_factory=set)
    """The groups that may lack cursors. A group that has them all keeps them as long as its id."""

    def note_expiring(self) -> None:
        if not self.expiring:
            self.expiring = True
            _note(partial(setattr, self, "expiring", False))

    def put_group(self, group: str, group_id: int, mode: str, placed: bool) -> int:
        if group not in self.groups:
            _note(partial(self.groups.pop, group, None))
        self.groups[group] = group_id
        if placed:
            self.unplaced.discard(group)
        else:
            self.unplaced.add(group)
        if mode == "shared":
            self.shared.add(group)
        else:
            self.shared.discard(group)
        return group_id


class NameCache:
    """Ids by name. They may be out of date: a call that uses such an id detects it, forgets the queue and looks it up
    again."""

    def __init__(self, partitions_max: int, *, queue_partitions_max: int | None = None) -> None:
        self.partitions_max = partitions_max
        self.queue_partitions_max = queue_partitions_max
        """How many partitions pushes may create in a queue."""
        self._queues: dict[str, QueueNames] = {}
        self._partitions = 0

    @classmethod
    def of(cls, config: Config) -> NameCache:
        return cls(config.partition_cache_entries_max, queue_partitions_max=config.queue_partitions_max)

    def get(self, queue: str) -> QueueNames | None:
        return self._queues.get(queue)

    def put(self, queue: str, names: QueueNames) -> QueueNames:
        """Remember a queue; its known partitions and groups are kept if it is still the same queue."""
        known = self._queues.get(queue)
        if known is not None and known.id == names.id:
            known.compression, known.encryption, known.limited = (
                names.compression,
                names.encryption,
                names.limited,
            )
            return known
        self.forget(queue)
        self._queues[queue] = names
        _note(partial(self._forget_this, queue, names))
        return names

    def put_partitions(self, queue: str, partitions: dict[str, int], *, of: QueueNames) -> None:
        """Remember partitions, unless the queue that they belong to was forgotten while they were looked up."""
        names = self._queues.get(queue)
        if names is not of:
            return
        if self._partitions + len(partitions) > self.partitions_max:
            for known in self._queues.values():
                known.partitions.clear()
                known.last_runs.clear()
            self._partitions = 0
        before = len(names.partitions)
        names.partitions.update(partitions)
        self._partitions += len(names.partitions) - before
        _note(partial(self._forget_partitions, queue, names, partitions.keys()))

    def _forget_partitions(self, queue: str, names: QueueNames, partitions: Collection[str]) -> None:
        before = len(names.partitions)
        for partition in partitions:
            names.partitions.pop(partition, None)
        if self._queues.get(queue) is names:
            self._partitions -= before - len(names.partitions)

    def _forget_this(self, queue: str, names: QueueNames) -> None:
        if self._queues.get(queue) is names:
            self.forget(queue)

    def clear(self) -> None:
        self._queues.clear()
        self._partitions = 0

    def forget(self, queue: str) -> None:
        names = self._queues.pop(queue, None)
        if names is not None:
            self._partitions -= len(names.partitions)


@dataclass(slots=True)
class Memory:
    """Ids and segments from one timeline of the database. On another timeline the same ids have other meanings, so a
    call that began before the change keeps this object, and the next call gets a new one."""

    epoch: int
    names: NameCache
    segments: SegmentCache
    noted: dict[tuple[str, str, str, str], float] = field(default_factory=dict)
    """Until when a poll for a queue that does not exist need not be recorded again."""

    def renewed(self, epoch: int) -> Memory:
        """An empty copy, which keeps the counts of cache hits."""
        segments = SegmentCache(self.segments.bytes_max)
        segments.hits, segments.misses = self.segments.hits, self.segments.misses
        names = NameCache(self.names.partitions_max, queue_partitions_max=self.names.queue_partitions_max)
        return Memory(epoch, names, segments)

"""A stream in lease mode: it shares a consumer group with ordinary consumers, including attempts and dead letters.

Its offset is the ordinal of its last lease. Leases are renewed until the batch is done: a sink on the same database
acks them in its own transaction (option `commitStream`); otherwise they are acked when Spark reports the end of the
batch, at the latest when it asks for the next one. A batch that Spark runs again after a restart was not finished: that
charges an attempt, as for any consumer, and the batch contains what the stream still holds.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np

from lockstep.errors import CheckpointMismatch, InvalidOption, LockstepError
from lockstep.spark.claims import claim
from lockstep.spark.lease.leases import Attempt, LeasedRun, LeaseGroup, StreamLeases
from lockstep.spark.options import ReadOptions, ReadPosition
from lockstep.spark.read import positions
from lockstep.spark.read.columns import StoredSegment
from lockstep.spark.read.payloads import Payloads
from lockstep.spark.read.positions import Desk, Look, Witness
from lockstep.spark.read.segment_reader import ArrowReader
from lockstep.spark.read.segments import Scope, Segments
from lockstep.spark.read.stream import default_parallelism
from lockstep.storage.postgres.encryption import Encryption

if TYPE_CHECKING:
    import psycopg
    import pyarrow as pa
    from pyspark.sql.datasource import DataSourceStreamReader
    from pyspark.sql.types import StructType

    from lockstep.spark.read.segment_reader import Connection

_log = logging.getLogger(__name__)

MESSAGES_MAX = 100_000
"""Of a batch without the option maxMessagesPerTrigger."""
PARTITIONS_MAX = 10_000
QUIET_SECONDS = 0.05
"""Spark polls an idle stream every few milliseconds; the database is polled at most this often."""
_RENEWALS = 3
"""How many times a lease is renewed within its duration."""
_NEVER = 2**62
_UNFINISHED = "the Spark batch that had it did not finish"

SeqRange = tuple[int, int, int]
"""A partition's id, and the first and last seq."""
_ATTEMPT = "attempt"


@dataclass(frozen=True, slots=True)
class LeaseOffset:
    """Everything leased up to an ordinal."""

    ordinal: int
    stream: str
    system: str

    def as_json(self) -> dict[str, Any]:
        return {"lease": self.ordinal, "stream": self.stream, "system": self.system}

    @classmethod
    def of(cls, given: Mapping[str, Any], *, stream: str, system: str) -> LeaseOffset:
        """Parse an offset from a checkpoint. Raises CheckpointMismatch if it does not belong to this stream in this
        database.
        """
        if not isinstance(given.get("lease"), int):
            raise CheckpointMismatch("the checkpoint's offset is not one of Lockstep's lease mode")
        if given.get("stream") != stream:
            raise CheckpointMismatch(f"the checkpoint is of stream {given.get('stream')!r}, and not of {stream!r}")
        positions.check_system(str(given.get("system")), system)
        return cls(given["lease"], stream, system)


@dataclass(frozen=True, slots=True)
class LeaseTask:
    """What one task reads: segments, and the leased ranges of each."""

    segments: Segments
    ranges: Mapping[int, Sequence[SeqRange]]
    queues: Mapping[int, str]
    witness: Witness
    attempts: Sequence[Attempt] | None = None
    """If they are requested."""


class LeaseStream:
    """The offsets and the tasks of a stream in lease mode. Does not need Spark."""

    def __init__(self, options: ReadOptions, *, clock: Callable[[], datetime | None] = lambda: None) -> None:
        _check(options)
        assert options.stream_name is not None
        self._options = options
        self._name = options.stream_name
        self._clock = clock
        self._config = options.access.config()
        self._desk = Desk(options.access, opened=self._begin_anew)
        self._renewing: Renewing | None = None
        self._groups: list[LeaseGroup] = []
        self._found: Look | None = None
        self._begun = False
        self._done = -1
        """Everything up to here is known to be acked."""
        self._left: int | None = None
        """How many messages a run that ends by itself may still lease."""
        self._quiet_until = 0.0

    def _begin_anew(self, connection: psycopg.Connection[Any]) -> None:
        """A new connection may lead to a promoted server, where ids may mean something else and acks may be missing."""
        claim(connection, self._name)
        self._groups, self._found, self._done = [], None, -1

    def initial(self) -> LeaseOffset:
        """Where a stream without a checkpoint starts: before everything that a stream of its name has leased and not
        done. Spark asks again if the first batch has to run again."""

        def initial() -> LeaseOffset:
            self._open()
            return LeaseOffset(self._ask(StreamLeases.start), self._name, self._look().system)

        return self._desk.together(initial)

    def latest(self, given: Mapping[str, Any], *, messages_max: int | None) -> LeaseOffset:
        """The end of the next batch, which is leased now; the start itself if there are no messages. Everything up to
        the start is done, because Spark asks for the next batch only then."""
        return self._desk.together(lambda: self._latest(given, messages_max))

    def _latest(self, given: Mapping[str, Any], messages_max: int | None) -> LeaseOffset:
        start = self._begin(given)
        self._ack(start.ordinal)
        if self._ask(StreamLeases.has_unacked, start.ordinal):
            return replace(start, ordinal=self._ask(StreamLeases.last))
        if time.monotonic() < self._quiet_until:
            return start
        end = self._lease(start.ordinal, min(messages_max or _NEVER, self._options.messages_max or MESSAGES_MAX))
        if end is None:
            self._quiet_until = time.monotonic() + QUIET_SECONDS
            return start
        return replace(start, ordinal=end)

    def _lease(self, after: int, messages: int) -> int | None:
        """Lease from each queue in turn until there are enough messages; returns the last ordinal, if any."""
        end = None
        if self._left is not None:
            messages = min(messages, self._left)
        for group in self._groups:
            if messages <= 0:
                break
            partitions = min(messages, PARTITIONS_MAX)
            leased = self._ask(StreamLeases.lease, group, after=after, partitions=partitions, messages=messages)
            if leased is not None:
                end, count = leased
                messages -= count
                self._left = None if self._left is None else self._left - count
        # Rotate: the first queue may leave no room for the others.
        self._groups = [*self._groups[1:], *self._groups[:1]]
        return end

    def stop_at_now(self) -> None:
        """Lease no more than the groups have pending now."""

        def pending() -> int:
            self._open()
            return int(self._ask(StreamLeases.pending, self._groups))

        self._left = self._desk.together(pending)

    def plan(self, given_start: Mapping[str, Any], given_end: Mapping[str, Any]) -> list[LeaseTask]:
        """The tasks of a batch."""
        return self._desk.together(lambda: self._plan(given_start, given_end))

    def _plan(self, given_start: Mapping[str, Any], given_end: Mapping[str, Any]) -> list[LeaseTask]:
        start = self._begin(given_start)
        end = LeaseOffset.of(given_end, stream=self._name, system=start.system)
        runs: list[LeasedRun] = self._ask(StreamLeases.plan, start.ordinal, end.ordinal)
        queues = {group.queue_id: group.queue for group in self._groups}
        witness = Witness(self._look().timeline)
        tasks = _tasks(runs, queues, witness, self._options.parallelism or default_parallelism())
        if _ATTEMPT not in (self._options.columns or ()):
            return tasks
        attempts: list[Attempt] = self._ask(StreamLeases.attempts, start.ordinal, end.ordinal)
        return [replace(task, attempts=attempts) for task in tasks]

    def commit(self, given: Mapping[str, Any]) -> None:
        """Spark will not request anything up to here again."""

        def commit() -> None:
            self._open()
            self._ack(LeaseOffset.of(given, stream=self._name, system=self._look().system).ordinal)

        self._desk.together(commit)

    def close(self) -> None:
        """Stop renewing. Leases that were not planned are released. Whether a planned batch is done is known only to
        its checkpoint, so its leases stay until the next start or until they expire."""
        if self._renewing is not None:
            self._renewing.close()
            self._renewing = None
        try:
            if self._begun:
                self._ask(StreamLeases.release)
        except LockstepError as error:
            _log.warning("the leases of stream %s run out by themselves: %s", self._name, error)
        finally:
            self._desk.close()

    def _begin(self, given: Mapping[str, Any]) -> LeaseOffset:
        """Begin a batch. The first time, settle what an earlier process has left: what Spark knows to be done is acked;
        what it runs again has failed, and is leased again as far as it still exists."""
        self._open()
        start = LeaseOffset.of(given, stream=self._name, system=self._look().system)
        if not self._begun:
            self._ask(StreamLeases.keep, 0, start.ordinal)
            self._ask(StreamLeases.fail, start.ordinal, _UNFINISHED)
            self._ask(StreamLeases.keep, start.ordinal, _NEVER)
            self._begun = True
        return start

    def _ack(self, upto: int) -> None:
        if upto <= self._done:
            return
        acked = self._ask(StreamLeases.ack, upto)
        if acked.lost:
            _log.warning(
                "stream %s lost its leases before it acked, so others process again: %s", self._name, acked.lost
            )
        self._done = upto

    def _open(self) -> None:
        if self._groups:
            return
        mode, from_at = _subscription(self._options.starting)
        assert self._options.group is not None
        self._groups = [
            self._ask(StreamLeases.subscribe, queue, self._options.group, mode=mode, from_at=from_at)
            for queue in self._options.queues
        ]
        seconds = min(group.lease_seconds for group in self._groups) / _RENEWALS
        if self._renewing is None:
            self._renewing = Renewing(self._options, self._name, seconds)

    def _look(self) -> Look:
        """Where the connection leads; constant for its lifetime."""
        if self._found is None:
            self._found = self._desk.ask(positions.look, [group.queue_id for group in self._groups])
        return self._found

    def _ask(self, verb: Any, *args: Any, **kwargs: Any) -> Any:
        def ask(connection: psycopg.Connection[Any]) -> Any:
            return verb(StreamLeases(connection, self._name, self._config, clock=self._clock), *args, **kwargs)

        return self._desk.ask(ask)


class Renewing:
    """A thread that renews the leases of a stream while its batches run."""

    def __init__(self, options: ReadOptions, stream: str, seconds: float) -> None:
        self._options = options
        self._stream = stream
        self._seconds = seconds
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"renew {stream}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        desk = Desk(self._options.access)
        config = self._options.access.config()
        seconds = self._seconds
        while not self._stopped.wait(seconds):
            try:
                desk.ask(lambda connection: StreamLeases(connection, self._stream, config).renew())
                seconds = self._seconds
            except LockstepError as error:
                # There is time for more attempts before the leases expire.
                _log.warning("the leases of stream %s were not renewed: %s", self._stream, error)
                seconds = self._seconds / 4
        desk.close()


def _check(options: ReadOptions) -> None:
    if options.stream_name is None:
        raise InvalidOption(
            "mode lease needs the option streamName: a name of this stream's own, under which it finds its leases again"
        )
    for name, value in (
        ("partitions", options.partitions),
        ("traceId", options.trace_id),
        ("endingPosition", options.ending),
        ("maxBytesPerTrigger", options.bytes_max),
        ("minMessagesPerTrigger", options.messages_min),
    ):
        if value is not None:
            raise InvalidOption(f"the option {name} is for mode snapshot: a consumer group delivers what is next")


def _subscription(position: ReadPosition | None) -> tuple[str, datetime | None]:
    """Where a new group starts."""
    match None if position is None else position.kind:
        case None | "earliest":
            return "all", None
        case "latest":
            return "new", None
        case "time" | "ago":
            assert position is not None
            return "from", position.time(datetime.now(UTC))
    raise InvalidOption("in mode lease the option startingPosition is where a new group begins, and is no offset")


def _tasks(runs: Sequence[LeasedRun], queues: Mapping[int, str], witness: Witness, parallelism: int) -> list[LeaseTask]:
    """The runs grouped by segment, so that a task decodes each segment once."""
    ranges: dict[int, list[SeqRange]] = {}
    messages: dict[int, int] = {}
    for run in runs:
        ranges.setdefault(run.segment_id, []).append((run.partition_id, run.first_seq, run.last_seq))
        messages[run.segment_id] = messages.get(run.segment_id, 0) + run.last_seq - run.first_seq + 1
    ids = sorted(ranges)
    counts = np.array([messages[segment_id] for segment_id in ids], np.int64)
    nothing = np.zeros(len(ids), np.int64)
    segments = Segments(np.array(ids, np.int64), counts, sizes=nothing, txids=nothing)
    return [
        LeaseTask(part, {int(segment_id): ranges[int(segment_id)] for segment_id in part.ids}, queues, witness)
        for part in segments.tasks(parallelism)
    ]


@dataclass(frozen=True, slots=True)
class LeasedReader(ArrowReader):
    """Reads the leased parts of segments."""

    ranges: Mapping[int, Sequence[SeqRange]] = field(default_factory=dict)
    attempts: Mapping[int, Sequence[Attempt]] | None = None
    """By partition."""

    @classmethod
    def of(cls, options: ReadOptions, schema: pa.Schema, task: LeaseTask) -> LeasedReader:
        scope = Scope(task.queues)
        payloads = Payloads(options.payloads, options.payload_mode)
        attempts = None if task.attempts is None else _by_partition(task.attempts)
        return cls(options.access, scope, schema, payloads, witness=task.witness, ranges=task.ranges, attempts=attempts)

    def _fetch(self, connection: Connection, ids: Sequence[int], encryption: Encryption) -> list[StoredSegment]:
        found = ArrowReader._fetch(self, connection, ids, encryption)
        for segment in found:
            cut(segment, self.ranges[segment.id])
            if self.attempts is not None:
                number(segment, self.attempts)
        return found


def _by_partition(attempts: Sequence[Attempt]) -> dict[int, list[Attempt]]:
    found: dict[int, list[Attempt]] = {}
    for one in sorted(attempts, key=lambda one: (one.partition_id, one.first_seq)):
        found.setdefault(one.partition_id, []).append(one)
    return found


def number(segment: StoredSegment, attempts: Mapping[int, Sequence[Attempt]]) -> None:
    """Add the delivery attempt to the messages. Their runs are split where it changes."""
    columns = zip(segment.partition_ids, segment.first_seqs, segment.counts, segment.ordinals, strict=True)
    numbered = [piece for run in columns for piece in _numbered(run, attempts.get(run[0], ()))]
    split = [list(column) for column in zip(*numbered, strict=True)] or [[], [], [], [], []]
    segment.partition_ids, segment.first_seqs, segment.counts, segment.ordinals, segment.attempts = split


def _numbered(run: tuple[int, int, int, int], attempts: Sequence[Attempt]) -> Iterator[tuple[int, int, int, int, int]]:
    """The pieces of a run, with the attempt of each; 0 for pieces that nobody holds any more."""
    partition_id, seq, count, ordinal = run
    end = seq + count
    for one in attempts:
        first = max(one.first_seq, seq)
        after = end if one.last_seq is None else min(one.last_seq + 1, end)
        if first >= after:
            continue
        if first > seq:
            yield partition_id, seq, first - seq, ordinal, 0
        yield partition_id, first, after - first, ordinal + first - seq, one.attempt
        seq, ordinal = after, ordinal + after - seq
    if seq < end:
        yield partition_id, seq, end - seq, ordinal, 0


def cut(segment: StoredSegment, ranges: Sequence[SeqRange]) -> None:
    """The parts of a segment's runs within the ranges."""
    places: dict[int, list[int]] = {}
    for place, partition_id in enumerate(segment.partition_ids):
        places.setdefault(partition_id, []).append(place)
    kept = sorted(_kept(segment, places, ranges), key=lambda run: run[3])
    columns = [list(column) for column in zip(*kept, strict=True)] or [[], [], [], []]
    segment.partition_ids, segment.first_seqs, segment.counts, segment.ordinals = columns


def _kept(
    segment: StoredSegment, places: Mapping[int, Sequence[int]], ranges: Sequence[SeqRange]
) -> Iterator[tuple[int, int, int, int]]:
    """Partition, first seq, count and ordinal of each remaining run."""
    for partition_id, first, last in ranges:
        for place in places.get(partition_id, ()):
            run_first = segment.first_seqs[place]
            begin = max(first, run_first)
            end = min(last, run_first + segment.counts[place] - 1)
            if begin <= end:
                yield partition_id, begin, end - begin + 1, segment.ordinals[place] + begin - run_first


def lease_stream_reader(options: Mapping[str, str], schema: StructType) -> DataSourceStreamReader:
    """The reader of `spark.readStream.format("lockstep").option("mode", "lease")`."""
    from lockstep.spark.lease.lease_reader import LeaseReader

    return LeaseReader(ReadOptions.of(options), schema)

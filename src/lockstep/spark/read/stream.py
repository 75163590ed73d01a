"""A stream in snapshot mode: its next batch, the tasks that read it, and its published position.

The state of a stream is its checkpoint, which Spark keeps; an instance of this lives as long as the query runs, in a
process of the driver. It needs no Spark.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import uuid4

import psycopg

from lockstep.core.rights import Pattern
from lockstep.errors import CheckpointAhead, CheckpointMismatch, DataLost, InvalidOption
from lockstep.spark.claims import claim
from lockstep.spark.options import EVERYTHING, ReadOptions, ReadPosition
from lockstep.spark.read import positions
from lockstep.spark.read.losses import LossWatch, report_loss
from lockstep.spark.read.offsets import EARLIEST, NOTHING, Offset, Snapshot, SnapshotPlace
from lockstep.spark.read.positions import Desk, Look, Witness
from lockstep.spark.read.segments import Scope, Segments, list_segments

_log = logging.getLogger(__name__)

QUIET_SECONDS = 0.05
"""Spark polls an idle stream every few milliseconds; the database is polled at most this often."""
PUBLISH_SECONDS = 10.0
"""How often an idle stream reports that it is alive."""


@dataclass(frozen=True, slots=True)
class SnapshotTask:
    """What one task reads."""

    segments: Segments
    scope: Scope
    watch: LossWatch | None = None
    witness: Witness | None = None


def default_parallelism() -> int:
    return os.cpu_count() or 1


class SnapshotStream:
    """The offsets and the tasks of a stream."""

    def __init__(
        self,
        options: ReadOptions,
        *,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        if options.ending is not None or options.ending_seqs is not None:
            raise InvalidOption("endingPosition and endingSeqs are for batch reads; a stream has no end")
        self._options = options
        self._clock = clock
        self._pause = pause
        self._desk = Desk(options.access, opened=self._begin_anew)
        config = options.access.config()
        self._hold_seconds = config.spark_position_seconds_max
        if options.stream_name is None:
            self._hold_seconds = min(config.spark_unnamed_position_seconds_max, self._hold_seconds)
        self._target: Snapshot | None = None
        self._is_target_old = False
        self._listed: _Listed | None = None
        self._quiet_until = 0.0
        self._last_batch_at = self._passed_at = clock()
        self._pattern = None if options.pattern is None else Pattern(options.pattern)
        self._gone: set[str] = set()
        self._published: tuple[str, SnapshotPlace] | None = None
        self._published_at = 0.0
        self._begun_at: datetime | None = None
        self._warned = 0
        self._latest: Offset | None = None

    @property
    def _sources(self) -> tuple[str, ...]:
        """The queues according to the options."""
        return self._options.queues if self._options.pattern is None else (self._options.pattern,)

    def _begin_anew(self, connection: psycopg.Connection[Any]) -> None:
        """A new connection may lead to a promoted server, so listings from the old one are discarded."""
        if self._options.stream_name is not None:
            claim(connection, self._options.stream_name, self._sources)
        self._listed = self._published = None
        self._is_target_old = self._target is not None

    def initial(self) -> Offset:
        """Where a stream without a checkpoint starts."""
        return self._desk.together(self._initial)

    def _initial(self) -> Offset:
        queues, found = self._look()
        place = self._place(self._options.starting or EVERYTHING, queues, found)
        stream = uuid4().hex[:16]
        # The start precedes the first message on every timeline.
        mark = None if place == EARLIEST else self._desk.ask(positions.mark, stream)
        return Offset(place, found.system, stream, queues, initial=True, mark=mark)

    def _place(self, position: ReadPosition, queues: Mapping[str, int], found: Look) -> SnapshotPlace:
        place = positions.place_of(position, found, option="startingPosition")
        if place is not None:
            return place
        at = position.time(found.now)
        first = self._desk.ask(positions.first_since, list(queues.values()), at)
        return SnapshotPlace.at(found.snapshot) if first is None else SnapshotPlace(NOTHING, found.snapshot, first - 1)

    def stop_at_now(self) -> None:
        """Read the existing messages, and none that arrive later."""
        self._target = self._desk.together(self._look)[1].snapshot
        self._is_target_old = False

    def latest(self, start: Offset, *, limited: bool = True) -> Offset:
        """The end of the next batch; the start itself if there is none. Without limits, everything that exists."""
        if self._clock() < self._quiet_until:
            # Answering from memory would be wrong: the caller expects to see everything pushed before the call.
            self._pause(self._quiet_until - self._clock())
        return self._desk.together(lambda: self._latest_of(start, limited=limited))

    def _latest_of(self, start: Offset, *, limited: bool) -> Offset:
        now = self._clock()
        queues, found = self._checked(start)
        begin = self._begin(start, found)
        if not start.initial:
            self._recognise(start)
        if begin == start.place:
            self._publish(start)
        if self._is_target_old:
            self._target, self._is_target_old = found.snapshot, False
        upto = self._target or found.snapshot
        self._latest = start.moved_to(SnapshotPlace.at(upto), queues, since=begin)
        scope = self._scope(queues)
        self._look_for_losses(begin, scope, upto)
        end, messages = self._end(begin, scope, upto, limited=limited)
        if end is None:
            end = self._passed(begin, scope, upto, now)
        elif limited and self._waits(messages, now):
            end = None
        if end is None:
            self._quiet_until = now + QUIET_SECONDS
            # Spark always runs a first batch, even an empty one: from then on there is a checkpoint.
            return self._marked(start, begin, queues, begin) if start.initial else start
        self._last_batch_at = now
        return self._marked(start, end, queues, begin)

    def _marked(self, start: Offset, end: SnapshotPlace, queues: Mapping[str, int], begin: SnapshotPlace) -> Offset:
        """The end of a batch with a mark; from here on the database can tell whether it has everything before it."""
        return start.moved_to(end, queues, since=begin, mark=self._desk.ask(positions.mark, start.stream))

    def _begin(self, start: Offset, found: Look) -> SnapshotPlace:
        """Where the next batch starts: at the end of the last one; or, if the database has lost part of that and the
        stream may continue anyway, at its last published position. Raises CheckpointAhead."""
        try:
            self._desk.ask(positions.check_known, start, found.snapshot)
        except CheckpointAhead as error:
            place, is_accepted = self._desk.ask(positions.published, start.stream)
            if place is None:
                raise CheckpointAhead(
                    "the database has lost all that it knew of the stream: it needs a new checkpoint, and the option "
                    "startingPosition where that does not begin with the first message",
                    stream=start.stream,
                ) from error
            if not is_accepted and self._options.on_failover != "continue":
                raise
            _log.warning("stream %s reads again what came since it last published its position", start.stream)
            return place
        return start.place

    def _end(
        self, start: SnapshotPlace, scope: Scope, upto: Snapshot, *, limited: bool
    ) -> tuple[SnapshotPlace | None, int]:
        """Where the next batch ends, and how many messages there are: a started range is finished before a new one
        starts.
        """
        for base, to, after in ((start.base, start.to, start.segment), (start.to, upto, 0)):
            rest = self._list(scope, base, to, after=after).between(start, SnapshotPlace.at(to))
            if len(rest):
                return _cut(rest, base, to, self._options if limited else None), int(rest.messages.sum())
        return None, 0

    def _passed(self, start: SnapshotPlace, scope: Scope, upto: Snapshot, now: float) -> SnapshotPlace | None:
        """Where an empty batch ends that skips messages of other partitions or traces, so that these neither count as
        lag nor are held. It occurs from time to time, and before a run ends by itself."""
        if scope.partition_ids is None and scope.trace_id is None:
            return None
        if self._target is None and now - self._passed_at < PUBLISH_SECONDS:
            return None
        self._passed_at = now
        whole = replace(scope, partition_ids=None, trace_id=None)
        others = self._desk.ask(list_segments, whole, start.base, upto).between(start, SnapshotPlace.at(upto))
        return SnapshotPlace.at(upto) if len(others) else None

    def _waits(self, messages: int, now: float) -> bool:
        """Whether the next batch is still too small."""
        if self._options.messages_min is None or self._target is not None:
            return False
        late = now - self._last_batch_at >= self._options.delay_max.total_seconds()
        return messages < self._options.messages_min and not late

    def plan(self, start: Offset, end: Offset) -> list[SnapshotTask]:
        """The tasks of a batch. The end contains its start, if that differs from the previous end."""
        return self._desk.together(lambda: self._plan(start, end))

    def _plan(self, start: Offset, end: Offset) -> list[SnapshotTask]:
        begin = start.place if end.since is None else end.since
        read = Offset(begin, end.system, end.stream, end.queues)
        queues, found = self._checked(read)
        if self._begin(end, found) != end.place:
            return []  # the batch is no longer known; its remaining messages are in the next one
        if not start.initial:
            self._recognise(read)
        self._publish(read)
        if self._options.stream_name is not None:
            # A sink on this database may record in its own transaction that this is read (option commitStream).
            self._desk.ask(positions.note_plan, stream=end.stream, place=end.place)
        # A queue created since then may have messages from this time, but the batch ended without it.
        scope = self._scope({name: id_ for name, id_ in queues.items() if name in end.queues})
        after = begin.segment if begin.to == end.place.to else 0
        segments = self._list(scope, begin.base, end.place.to, after=after).between(begin, end.place)
        watch = None if self._begun_at is None else LossWatch(self._begun_at, self._options.fail_on_data_loss)
        parallelism = self._options.parallelism or default_parallelism()
        witness = Witness(found.timeline, end.stream, end.mark)
        return [SnapshotTask(part, scope, watch, witness) for part in segments.tasks(parallelism)]

    def commit(self, end: Offset) -> None:
        """Spark will not request anything up to here again."""
        self._desk.together(lambda: self._commit(end))

    def _commit(self, end: Offset) -> None:
        found = self._desk.ask(positions.look, list(end.queues.values()))
        if self._begin(end, found) == end.place:
            self._publish(end, committed=True)

    def report(self) -> Offset | None:
        """How far the stream could be."""
        return self._latest

    def close(self) -> None:
        self._desk.close()

    def _look(self) -> tuple[dict[str, int], Look]:
        return positions.find_read(self._desk, self._options)

    def _scope(self, queues: Mapping[str, int]) -> Scope:
        # Looked up each time: a partition may appear with its first message.
        return positions.scope_of(self._desk, queues, self._options)

    def _list(self, scope: Scope, base: Snapshot, to: Snapshot, *, after: int = 0) -> Segments:
        """Segments between two snapshots. The last answer is cached, because a batch asks twice, and a long backlog is
        cut into many batches."""
        if self._listed is None or not self._listed.has(scope, base, to, after):
            found = self._desk.ask(list_segments, scope, base, to, after=after)
            self._listed = _Listed(scope, base, to, after, found)
        return self._listed.segments

    def _checked(self, start: Offset) -> tuple[dict[str, int], Look]:
        """The queues of an offset, and the database if the offset belongs to it. Raises CheckpointMismatch,
        DataLost.
        """
        queues, found = self._look()
        positions.check_system(start.system, found.system)
        self._check_added(start, {name: id_ for name, id_ in queues.items() if name not in start.queues})
        for name, id_ in queues.items():
            if start.queues.get(name, id_) != id_:
                self._lose(f"queue {name!r} was deleted and made again since the stream last read it")
        if self._pattern is not None:
            self._check_gone([name for name in start.queues if name not in queues and self._pattern.matches(name)])
        return queues, found

    def _check_gone(self, names: Sequence[str]) -> None:
        """For queues named by the options this is an error, whatever they say about losses."""
        for name in names:
            if name not in self._gone:
                self._lose(f"queue {name!r} was deleted since the stream last read it")
                self._gone.add(name)

    def _check_added(self, start: Offset, added: Mapping[str, int]) -> None:
        """Raises CheckpointMismatch if queues that the stream did not read before have messages that it would skip."""
        if not added:
            return
        has_before = self._desk.ask(positions.has_before, list(added.values()), start.place)
        if has_before:
            raise CheckpointMismatch(
                f"the stream reads a queue more than before, {', '.join(sorted(added))}, which has messages from "
                "before what the stream has read: they would be passed over. It needs a new checkpoint"
            )

    def _recognise(self, start: Offset) -> None:
        """Find the position that the stream published in its last run. Raises DataLost."""
        if self._published is not None or not start.queues:
            return
        self._begun_at = self._desk.ask(positions.begun_at, start.stream)
        if self._begun_at is None:
            self._lose(
                "the position of the stream was forgotten, by request or after spark_position_seconds_max, so "
                "retention may have removed messages that it had not read"
            )

    def _lose(self, text: str) -> None:
        if self._options.fail_on_data_loss:
            raise DataLost(f"{text}; with the option failOnDataLoss=false the stream continues")
        _log.warning(text)

    def _look_for_losses(self, start: SnapshotPlace, scope: Scope, upto: Snapshot) -> None:
        if self._begun_at is None:
            return
        lost = self._desk.ask(
            positions.count_lost,
            queue_ids=list(scope.queues),
            partition_ids=scope.partition_ids,
            since=self._begun_at,
            place=start,
            upto=upto,
        )
        if lost != self._warned:
            report_loss(lost, scope.queues.values(), fail=self._options.fail_on_data_loss)
        self._warned = lost

    def _publish(self, offset: Offset, *, committed: bool = False) -> None:
        """Publish the position of the stream, when it has changed and from time to time.

        A stream that has not planned a batch has no checkpoint and holds nothing back. The first position after a start
        is that of the checkpoint: nothing before it will be requested.
        """
        now = self._clock()
        if offset.initial:
            return
        is_news = self._published != (offset.stream, offset.place)
        if not committed and not is_news and now - self._published_at < PUBLISH_SECONDS:
            return
        is_first = self._published is None
        self._desk.ask(
            positions.publish,
            stream=offset.stream,
            name=self._options.stream_name or f"{'+'.join(self._sources)[:200]}/{offset.stream}",
            queue_ids=list(offset.queues.values()),
            hold_seconds=self._hold_seconds,
            read=offset.place,
            committed=offset.place if committed or is_first else None,
        )
        self._published, self._published_at = (offset.stream, offset.place), now
        if self._begun_at is None:
            self._begun_at = self._desk.ask(positions.begun_at, offset.stream)


@dataclass(frozen=True, slots=True)
class _Listed:
    scope: Scope
    base: Snapshot
    to: Snapshot
    after: int
    segments: Segments

    def has(self, scope: Scope, base: Snapshot, to: Snapshot, after: int) -> bool:
        return (scope, base, to) == (self.scope, self.base, self.to) and self.after <= after


def _cut(rest: Segments, base: Snapshot, to: Snapshot, limits: ReadOptions | None) -> SnapshotPlace:
    """Where a batch ends that takes as much of the rest as the limits allow."""
    if limits is None:
        return SnapshotPlace.at(to)
    taken = rest.within(messages=limits.messages_max, size=limits.bytes_max)
    return SnapshotPlace.at(to) if len(taken) == len(rest) else SnapshotPlace(base, to, int(taken.ids[-1]))

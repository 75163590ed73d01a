"""A stream in snapshot mode: what its next batch is, which tasks read it, and how far it is known to be.

The state of a stream is its checkpoint, which Spark keeps; an instance of this lives as long as the query runs, in a
process of the driver. It needs no Spark.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from uuid import uuid4

from lockstep.errors import CheckpointAhead, CheckpointMismatch, DataLost, InvalidOption
from lockstep.spark import positions
from lockstep.spark.losses import Watch, report_loss
from lockstep.spark.offsets import EARLIEST, NOTHING, Offset, Place, Snapshot
from lockstep.spark.options import EVERYTHING, Position, ReadOptions
from lockstep.spark.positions import Desk, Look, Witness
from lockstep.spark.segments import Scope, Segments, list_segments

_log = logging.getLogger(__name__)

QUIET_SECONDS = 0.05
"""Spark asks an idle stream every few milliseconds; the database is asked no more often than this."""
PUBLISH_SECONDS = 10.0
"""How often an idle stream says that it is still there."""


@dataclass(frozen=True, slots=True)
class Task:
    """What one task reads."""

    segments: Segments
    scope: Scope
    watch: Watch | None = None
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
        if options.ending is not None:
            raise InvalidOption("the option endingPosition is for batch reads; a stream has no end")
        self._options = options
        self._clock = clock
        self._pause = pause
        self._desk = Desk(options.access, opened=self._begin_anew)
        self._hold_seconds = options.access.config().spark_position_seconds_max
        self._target: Snapshot | None = None
        self._is_target_old = False
        self._listed: _Listed | None = None
        self._quiet_until = 0.0
        self._last_batch_at = self._passed_at = clock()
        self._published: tuple[str, Place] | None = None
        self._published_at = 0.0
        self._begun_at: datetime | None = None
        self._warned = 0
        self._latest: Offset | None = None

    def _begin_anew(self, _connection: object) -> None:
        """A new connection may lead to a server that took over: what was listed on another is not used there."""
        self._listed = self._published = None
        self._is_target_old = self._target is not None

    def initial(self) -> Offset:
        """Where a stream without a checkpoint begins."""
        return self._desk.together(self._initial)

    def _initial(self) -> Offset:
        queues, found = self._look()
        place = self._place(self._options.starting or EVERYTHING, queues, found)
        stream = uuid4().hex[:16]
        # Before the first message is before it on every timeline.
        mark = None if place == EARLIEST else self._desk.ask(positions.mark, stream)
        return Offset(place, found.system, stream, queues, initial=True, mark=mark)

    def _place(self, position: Position, queues: Mapping[str, int], found: Look) -> Place:
        match position.kind:
            case "earliest":
                return EARLIEST
            case "latest":
                return Place.at(found.snapshot)
            case "offset":
                assert position.place is not None
                return positions.place_given(position.place, position.system, found, option="startingPosition")
        at = position.time(found.now)
        first = self._desk.ask(positions.first_since, list(queues.values()), at)
        return Place.at(found.snapshot) if first is None else Place(NOTHING, found.snapshot, first - 1)

    def stop_at_now(self) -> None:
        """Read what is there now and nothing that comes later."""
        self._target = self._desk.together(self._look)[1].snapshot
        self._is_target_old = False

    def latest(self, start: Offset, *, limited: bool = True) -> Offset:
        """The end of the next batch; the start itself if there is none. Without limits it is all that is there."""
        if self._clock() < self._quiet_until:
            # To answer from memory would be wrong: who asks now wants to know of what was pushed before it asked.
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
        self._latest = start.moved_to(Place.at(upto), queues, since=begin)
        scope = self._scope(queues)
        self._look_for_losses(begin, scope, upto)
        end, messages = self._end(begin, scope, upto, limited=limited)
        if end is None:
            end = self._passed(begin, scope, upto, now)
        elif limited and self._waits(messages, now):
            end = None
        if end is None:
            self._quiet_until = now + QUIET_SECONDS
            # Spark always runs a first batch, be it empty: from then on there is a checkpoint, and it has begun.
            return self._marked(start, begin, queues, begin) if start.initial else start
        self._last_batch_at = now
        return self._marked(start, end, queues, begin)

    def _marked(self, start: Offset, end: Place, queues: Mapping[str, int], begin: Place) -> Offset:
        """The end of a batch; from here on the database can tell whether it has all that lies before it."""
        return start.moved_to(end, queues, since=begin, mark=self._desk.ask(positions.mark, start.stream))

    def _begin(self, start: Offset, found: Look) -> Place:
        """Where the next batch begins: where the last one ended; or, if the database has lost some of that and the
        stream may go on all the same, where it was when it last said so. Raises CheckpointAhead."""
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

    def _end(self, start: Place, scope: Scope, upto: Snapshot, *, limited: bool) -> tuple[Place | None, int]:
        """Where the next batch ends, and how many messages there are: what was begun is ended before more is begun."""
        for base, to, after in ((start.base, start.to, start.segment), (start.to, upto, 0)):
            rest = self._list(scope, base, to, after=after).between(start, Place.at(to))
            if len(rest):
                return _cut(rest, base, to, self._options if limited else None), int(rest.messages.sum())
        return None, 0

    def _passed(self, start: Place, scope: Scope, upto: Snapshot, now: float) -> Place | None:
        """Where an empty batch ends that passes messages of other partitions, or of other traces, so that they neither
        count as lag nor are held. It comes from time to time, and before a run ends by itself."""
        if scope.partition_ids is None and scope.trace_id is None:
            return None
        if self._target is None and now - self._passed_at < PUBLISH_SECONDS:
            return None
        self._passed_at = now
        whole = replace(scope, partition_ids=None, trace_id=None)
        others = self._desk.ask(list_segments, whole, start.base, upto).between(start, Place.at(upto))
        return Place.at(upto) if len(others) else None

    def _waits(self, messages: int, now: float) -> bool:
        """Whether the next batch is still too small."""
        if self._options.messages_min is None or self._target is not None:
            return False
        late = now - self._last_batch_at >= self._options.delay_max.total_seconds()
        return messages < self._options.messages_min and not late

    def plan(self, start: Offset, end: Offset) -> list[Task]:
        """The tasks of a batch. The end says where it began, if that is not where the last one ended."""
        return self._desk.together(lambda: self._plan(start, end))

    def _plan(self, start: Offset, end: Offset) -> list[Task]:
        begin = start.place if end.since is None else end.since
        read = Offset(begin, end.system, end.stream, end.queues)
        queues, found = self._checked(read)
        if self._begin(end, found) != end.place:
            return []  # nothing is known of the batch any more; what it had is in the next one, as far as it is there
        if not start.initial:
            self._recognise(read)
        self._publish(read)
        if self._options.stream_name is not None:
            # A sink on this database may say, in its own transaction, that this is read (option commitStream).
            self._desk.ask(positions.note_plan, stream=end.stream, place=end.place)
        scope = self._scope(queues)
        after = begin.segment if begin.to == end.place.to else 0
        segments = self._list(scope, begin.base, end.place.to, after=after).between(begin, end.place)
        watch = None if self._begun_at is None else Watch(self._begun_at, self._options.fail_on_data_loss)
        parallelism = self._options.parallelism or default_parallelism()
        witness = Witness(found.timeline, end.stream, end.mark)
        return [Task(part, scope, watch, witness) for part in segments.tasks(parallelism)]

    def commit(self, end: Offset) -> None:
        """Nothing up to here will be asked for again."""
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
        queues = self._desk.ask(positions.find_queues, self._options.queues)
        return queues, self._desk.ask(positions.look, list(queues.values()))

    def _scope(self, queues: Mapping[str, int]) -> Scope:
        # Each time anew: a partition may appear with its first message.
        return self._desk.ask(positions.find_scope, queues, self._options.partitions, self._options.trace_id)

    def _list(self, scope: Scope, base: Snapshot, to: Snapshot, *, after: int = 0) -> Segments:
        """Segments between two snapshots; those of the last question are remembered, because a batch asks for them
        twice, and a long backlog is cut into many batches."""
        if self._listed is None or not self._listed.has(scope, base, to, after):
            found = self._desk.ask(list_segments, scope, base, to, after=after)
            self._listed = _Listed(scope, base, to, after, found)
        return self._listed.segments

    def _checked(self, start: Offset) -> tuple[dict[str, int], Look]:
        """The queues of an offset and the database, if it is the offset's own. Raises CheckpointMismatch, DataLost."""
        queues, found = self._look()
        positions.check_system(start.system, found.system)
        added = sorted(queues.keys() - start.queues.keys())
        if added:
            raise CheckpointMismatch(
                f"the checkpoint knows nothing of the queue {', '.join(added)}: a stream that reads more queues than "
                "before needs a new checkpoint"
            )
        for name, id_ in queues.items():
            if start.queues[name] != id_:
                self._lose(f"queue {name!r} was deleted and made again since the stream last read it")
        return queues, found

    def _recognise(self, start: Offset) -> None:
        """Find the position that the stream published when it last ran. Raises DataLost."""
        if self._published is not None:
            return
        self._begun_at = self._desk.ask(positions.begun_at, start.stream)
        if self._begun_at is None:
            self._lose(
                "the position of the stream was forgotten, by request or after spark_position_seconds_max, so "
                "retention may have removed messages that it had not read"
            )

    def _lose(self, text: str) -> None:
        if self._options.fail_on_data_loss:
            raise DataLost(f"{text}; with the option failOnDataLoss=false the stream goes on")
        _log.warning(text)

    def _look_for_losses(self, start: Place, scope: Scope, upto: Snapshot) -> None:
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
        """Tell the database how far the stream is; it does so when that is news, and from time to time.

        A stream that has not planned a batch has no checkpoint, and holds nothing back. What the first call after a
        start says was read is what the checkpoint begins with: nothing before it will be asked for.
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
            name=self._options.stream_name or f"{'+'.join(self._options.queues)[:200]}/{offset.stream}",
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


def _cut(rest: Segments, base: Snapshot, to: Snapshot, limits: ReadOptions | None) -> Place:
    """Where a batch ends that takes of the rest as much as the limits allow."""
    if limits is None:
        return Place.at(to)
    taken = rest.within(messages=limits.messages_max, size=limits.bytes_max)
    return Place.at(to) if len(taken) == len(rest) else Place(base, to, int(taken.ids[-1]))

"""Figures about the store: leases, sums over queues, and history."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import islice

from lockstep.core.buckets import Buckets, SampleSpan
from lockstep.core.maintenance import Removal, Sample
from lockstep.core.overview import LabelInfo, LabelKind, Overview, Spread, label_info, rest, total
from lockstep.core.pipelines import JobRun, PipelineStep
from lockstep.core.records import LeaseInfo, QueueInfo, Utilisation
from lockstep.core.rules import STOPPED, Cursor
from lockstep.core.shared import Range, due_at
from lockstep.core.statistics import DatabaseActivity, DatabaseStats, ServerSample, ServerSpan, StoreCounts
from lockstep.storage.memory.books import Books
from lockstep.storage.memory.queues import queue_info
from lockstep.storage.memory.state import Group, Partition, State


class MemoryInspection:
    """Figures about the store."""

    def __init__(self, state: State, books: Books) -> None:
        self._state = state
        self._books = books

    async def leases(
        self, *, queue: str | None = None, expiring_within: timedelta | None = None, limit: int = 1000
    ) -> list[LeaseInfo]:
        state, now = self._state, self._state.now()
        found = [
            _lease_info(group, partition, cursor)
            for one in state.chosen(queue)
            for partition in one.partitions.values()
            for group, cursor in state.cursors(partition)
            if cursor.leased(now)
        ]
        found += [
            _range_info(group, partition, one)
            for chosen in state.chosen(queue)
            for partition in chosen.partitions.values()
            for group, _ in state.cursors(partition)
            for one in group.ranges.get(partition.id, ())
            if one.leased(now)
        ]
        if expiring_within is not None:
            found = [lease for lease in found if lease.expires_at <= now + expiring_within]
        return sorted(found, key=lambda lease: (lease.expires_at, lease.partition_id, lease.group, lease.first_seq))[
            :limit
        ]

    async def utilisation(self, *, queue: str | None = None, exact: bool = False) -> list[Utilisation]:  # noqa: ARG002
        state, now = self._state, self._state.now()
        return [_utilisation(one.groups[name], now) for one in state.chosen(queue) for name in sorted(one.groups)]

    async def namespaces(self, *, after: str | None = None, limit: int = 1000, exact: bool = False) -> list[LabelInfo]:  # noqa: ARG002
        return self._labels("namespace", after, limit)

    async def tasks(self, *, after: str | None = None, limit: int = 1000, exact: bool = False) -> list[LabelInfo]:  # noqa: ARG002
        return self._labels("task", after, limit)

    def _labels(self, kind: LabelKind, after: str | None, limit: int) -> list[LabelInfo]:
        state, now = self._state, self._state.now()
        by_name: dict[str, list[QueueInfo]] = {}
        for queue in state.queues.values():
            by_name.setdefault(getattr(queue, kind), []).append(queue_info(queue, now))
        names = (name for name in sorted(by_name) if after is None or name > after)
        return [label_info(name, by_name[name]) for name in islice(names, limit)]

    async def overview(self, *, exact: bool = False) -> Overview:  # noqa: ARG002
        state, now = self._state, self._state.now()
        infos = [queue_info(queue, now) for queue in state.queues.values()]
        messages, pending = total([info.messages for info in infos]), total([info.pending for info in infos])
        lags = _lags(state, now)
        return Overview(
            queues=len(infos),
            partitions=len(state.partitions),
            namespaces=len({info.namespace for info in infos}),
            tasks=len({info.task for info in infos}),
            messages=messages,
            pending=pending,
            processing=total([info.processing for info in infos]),
            completed=rest(messages, pending),
            dead_letters=len(state.dead_letters),
            cursors_with_lag=len(lags),
            lag_seconds=Spread.of([seconds for seconds, _ in lags]),
            lag_messages=Spread.of([float(count) for _, count in lags]),
        )

    async def samples(
        self,
        *,
        queue: str | None = None,
        from_at: datetime | None = None,
        to_at: datetime | None = None,
        after: Sample | None = None,
        limit: int = 1000,
    ) -> list[Sample]:
        books = self._books
        rows = (
            row
            for key, row in sorted(books.samples.items(), key=lambda item: item[0])
            if _matches(row, queue, from_at, to_at) and (after is None or key > (after.at, after.queue))
        )
        return list(islice(rows, limit))

    async def sample_spans(
        self,
        *,
        seconds: int,
        from_at: datetime,
        to_at: datetime,
        queue: str | None = None,
        namespace: str | None = None,
        task: str | None = None,
    ) -> list[SampleSpan]:
        state, everything = self._state, len(self._books.samples)
        samples = await self.samples(queue=queue, from_at=from_at, to_at=to_at, limit=everything)
        buckets = Buckets(seconds)
        for sample in samples:
            found = state.queues.get(sample.queue)
            # The namespace of a deleted queue is not known.
            labels = (None, None) if found is None else (found.namespace, found.task)
            if namespace in (None, labels[0]) and task in (None, labels[1]):
                buckets.add(sample)
        return buckets.spans()

    async def server_spans(self, *, seconds: int, from_at: datetime, to_at: datetime) -> list[ServerSpan]:
        found: dict[int, list[ServerSample]] = {}
        for (at, _), sample in sorted(self._books.server_samples.items(), key=lambda item: item[0]):
            if from_at <= at < to_at:
                found.setdefault(int(at.timestamp() // seconds), []).append(sample)
        return [_server_span(number * seconds, samples) for number, samples in found.items()]

    async def removals(
        self,
        *,
        queue: str | None = None,
        from_at: datetime | None = None,
        to_at: datetime | None = None,
        after: Removal | None = None,
        limit: int = 1000,
    ) -> list[Removal]:
        books = self._books
        rows = (
            row
            for key, row in sorted(books.removals.items(), key=lambda item: item[0])
            if _matches(row, queue, from_at, to_at) and (after is None or key > (after.at, after.queue, after.kind))
        )
        return list(islice(rows, limit))

    def counts(self) -> StoreCounts:
        return StoreCounts()

    async def database_stats(self) -> DatabaseStats:
        return DatabaseStats()

    async def database_activity(self) -> DatabaseActivity:
        return DatabaseActivity()

    async def pipeline_steps(self, *, pipeline: str | None = None) -> list[PipelineStep]:  # noqa: ARG002
        return []  # Spark works on PostgreSQL

    async def job_runs(self, *, limit: int = 100) -> list[JobRun]:  # noqa: ARG002
        return []


def _server_span(since: int, samples: list[ServerSample]) -> ServerSpan:
    seconds: dict[str, float] = {}
    for sample in samples:
        seconds[sample.server] = seconds.get(sample.server, 0.0) + sample.seconds
    return ServerSpan(
        at=datetime.fromtimestamp(since, UTC),
        servers=len(seconds),
        seconds=max(seconds.values()),
        requests=sum(sample.requests for sample in samples),
        client_errors=sum(sample.client_errors for sample in samples),
        server_errors=sum(sample.server_errors for sample in samples),
        queued=sum(sample.queued for sample in samples),
        rejected=sum(sample.rejected for sample in samples),
        load=max(sample.load for sample in samples),
    )


def _lags(state: State, now: datetime) -> list[tuple[float, int]]:
    """Of each cursor with lag: the age of the first message before it, and how many there are."""
    lags = []
    for partition in state.partitions.values():
        for group, _ in state.cursors(partition):
            oldest_at = group.oldest_at(partition)
            if oldest_at is not None:
                lags.append(((now - oldest_at).total_seconds(), group.lag_of(partition)))
    return lags


def _lease_info(group: Group, partition: Partition, cursor: Cursor) -> LeaseInfo:
    assert cursor.lease_id is not None
    assert cursor.lease_to is not None
    assert cursor.leased_at is not None
    assert cursor.due_at is not None
    return LeaseInfo(
        lease_id=cursor.lease_id,
        queue=group.queue.name,
        partition=partition.name,
        partition_id=partition.id,
        group=group.name,
        first_seq=cursor.acked + 1,
        last_seq=cursor.lease_to,
        attempt=cursor.attempts + 1,
        leased_at=cursor.leased_at,
        expires_at=cursor.due_at,
    )


def _range_info(group: Group, partition: Partition, one: Range) -> LeaseInfo:
    assert one.lease_id is not None
    assert one.leased_at is not None
    return LeaseInfo(
        lease_id=one.lease_id,
        queue=group.queue.name,
        partition=partition.name,
        partition_id=partition.id,
        group=group.name,
        first_seq=one.first,
        last_seq=one.last,
        attempt=one.attempts + 1,
        leased_at=one.leased_at,
        expires_at=one.due_at,
    )


def _utilisation(group: Group, now: datetime) -> Utilisation:
    cursors = [_busy_as(group, id_, cursor, now) for id_, cursor in group.cursors.items()]
    idle = [one for one in cursors if one.due_at is not None and not one.leased(now)]
    stopped = sum(1 for one in idle if one.due_at == STOPPED)
    ready = sum(1 for one in idle if one.due(now))
    return Utilisation(
        queue=group.queue.name,
        group=group.name,
        partitions=len(cursors),
        partitions_leased=sum(1 for one in cursors if one.leased(now)),
        partitions_ready=ready,
        partitions_waiting=len(idle) - ready - stopped,
        partitions_stopped=stopped,
    )


def _busy_as(group: Group, partition_id: int, cursor: Cursor, now: datetime) -> Cursor:
    """The cursor; of a shared group one that is ready if anything is, else leased if anything is."""
    ranges = group.ranges.get(partition_id, [])
    due = due_at(cursor, ranges)
    if not ranges or due is None or due <= now:
        return replace(cursor, due_at=due)
    held = [one for one in ranges if one.leased(now)]
    return Cursor(lease_id=held[0].lease_id, due_at=held[0].due_at) if held else Cursor(due_at=due)


def _matches(row: Sample | Removal, queue: str | None, from_at: datetime | None, to_at: datetime | None) -> bool:
    return queue in (None, row.queue) and (from_at is None or row.at >= from_at) and (to_at is None or row.at < to_at)

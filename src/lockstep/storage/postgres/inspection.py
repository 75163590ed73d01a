"""Looking in: queues, partitions, lag, messages, traces, leases. Read-only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

from lockstep.core import refusals
from lockstep.core.ids import is_canonical_uuid, split_message_id
from lockstep.core.messages import Message, Run
from lockstep.core.names import QUEUE_MODE
from lockstep.core.records import (
    Depth,
    GroupProgress,
    LeaseInfo,
    MessageFilter,
    MessagePage,
    MessageView,
    PartitionInfo,
    PartitionLag,
    QueueInfo,
    SparkStreamInfo,
    Utilisation,
    page_cursor,
    parse_page_cursor,
)
from lockstep.core.rules import STOPPED, Cursor, message_status
from lockstep.core.shared import Range, seen_at
from lockstep.storage.postgres import newest
from lockstep.storage.postgres.administration import queue_info
from lockstep.storage.postgres.shared import Shared

_NOW = "select clock_timestamp()"
_RESOLVE_SEQ = "select lockstep.resolve_seq($1, $2)"
_LABELLED = (
    "select 1 from lockstep.queue "
    "where id = $1 and ($2::text is null or namespace = $2) and ($3::text is null or task = $3)"
)

_SCAN_ROUNDS_MAX = 20
"""How many pages of runs are read in search of messages of one status before a short page is answered."""

_SCAN_MESSAGES_MAX = 20_000
"""How many messages are looked at in search of those of one status before a short page is answered."""

_PlaceOfGroup = tuple[str, Cursor, list[Range] | None]
"""A group, its cursor, and what it has in flight if it is shared."""
_Cursors = dict[int, list[_PlaceOfGroup]]


class Inspection(Shared):
    async def queues(
        self,
        *,
        namespace: str | None = None,
        task: str | None = None,
        after: str | None = None,
        from_name: str | None = None,
        limit: int = 100,
        exact: bool = False,
    ) -> list[QueueInfo]:
        rows = await self._query(
            "queue_list", None, namespace, task, after, limit, self.now(), from_name, exact, self.figures_units_max
        )
        return [queue_info(row) for row in rows]

    async def partitions(
        self, queue: str, *, after: str | None = None, prefix: str | None = None, limit: int = 100
    ) -> list[PartitionInfo]:
        queue_id = await self._queue_id(queue)
        rows = await self._query("partition_list", queue_id, None, after, limit, self.now(), prefix)
        return [_partition_info(queue, row) for row in rows]

    async def partition(self, queue: str, partition: str) -> PartitionInfo:
        queue_id = await self._queue_id(queue)
        rows = await self._query("partition_list", queue_id, partition, None, 1, self.now(), None)
        if not rows:
            raise refusals.no_partition(queue, partition)
        return _partition_info(queue, rows[0])

    async def lag(
        self,
        queue: str,
        *,
        group: str | None = None,
        partition: str | None = None,
        after_partition_id: int = 0,
        limit: int = 1000,
    ) -> list[PartitionLag]:
        queue_id = await self._queue_id(queue)
        group_id = None if group is None else await self._group_id(queue, queue_id, group)
        partition_id = None if partition is None else await self._partition_id(queue, queue_id, partition)
        rows = await self._query("cursor_lag", queue_id, group_id, partition_id, after_partition_id, limit, self.now())
        return [_partition_lag(queue, row) for row in rows]

    async def spark_streams(self, *, queue: str | None = None) -> list[SparkStreamInfo]:
        queue_id = None if queue is None else await self._queue_id(queue)
        return [_spark_stream_info(row) for row in await self._query("spark_stream_list", queue_id)]

    async def depth(self, queue: str, group: str, *, exact: bool = False) -> Depth:
        queue_id = await self._queue_id(queue)
        found = await self.database.fetch(
            "group_find",
            "select id from lockstep.consumer_group where queue_id = $1 and name = $2",
            queue_id,
            group,
        )
        asked = (self.now(), exact, self.figures_units_max)
        if not found and group == QUEUE_MODE:
            row = (await self._query("queue_stored", queue_id, *asked))[0]
        else:
            group_id = await self._group_id(queue, queue_id, group)
            row = (await self._query("group_depth", group_id, *asked))[0]
        pending, partitions, leased, oldest_at, figures_at = row
        return Depth(
            queue=queue,
            group=group,
            pending=pending,
            partitions_pending=partitions,
            leased=leased,
            unread=pending - leased,
            oldest_at=oldest_at if pending else None,
            figures_at=figures_at,
        )

    async def messages(
        self, where: MessageFilter, *, newest_first: bool = False, cursor: str | None = None, limit: int = 100
    ) -> MessagePage:
        if newest_first:
            return await self._newest(where, cursor, limit)
        partition_after, seq_after = parse_page_cursor(cursor)
        query, scope = await self._scope(where)
        items: list[MessageView] = []
        seen = 0
        for _ in range(_SCAN_ROUNDS_MAX):
            if seen >= _SCAN_MESSAGES_MAX:
                break
            rows = await self._query(query, *scope, partition_after, seq_after, where.from_at, where.to_at, limit)
            if not rows:
                return MessagePage(items=items, next_cursor=None)
            rows = _enough(rows, limit - len(items), partition_after, seq_after)
            runs = await self._runs_after(where.queue, rows, partition_after, seq_after)
            if where.status is None:
                runs = _first(runs, limit - len(items))
            for view in await self._views(runs):
                seen += 1
                if where.status is None or view.status == where.status:
                    items.append(view)
                    if len(items) == limit:
                        return MessagePage(
                            items=items, next_cursor=page_cursor(view.message.partition_id, view.message.seq)
                        )
            partition_after, seq_after = rows[-1][0], rows[-1][3]
        return MessagePage(items=items, next_cursor=page_cursor(partition_after, seq_after))

    async def _newest(self, where: MessageFilter, cursor: str | None, limit: int) -> MessagePage:
        queue_id = None if where.queue is None else await self._queue_id(where.queue)
        partition_id = None
        if where.partition is not None and where.queue is not None and queue_id is not None:
            partition_id = await self._partition_id(where.queue, queue_id, where.partition)
        of_partition = partition_id is not None
        query = "message_newest_of" if of_partition else "message_newest"
        scope = (queue_id, partition_id, where.namespace, where.task)
        place = newest.Place.of(cursor, partition_id)
        items: list[MessageView] = []
        for _ in range(_SCAN_ROUNDS_MAX):
            missing = limit - len(items)
            period = (where.from_at, where.to_at)
            rows = await self._query(query, *scope, place.major, place.minor, *period, missing)
            if not rows:
                return MessagePage(items=items, next_cursor=None)
            spans = list(newest.spans_before(rows, place, missing, of_partition=of_partition))
            views = await self._views_of(spans)
            items += [view for view in views if where.status in (None, view.status)]
            place = newest.place_after(rows, spans, missing, of_partition=of_partition)
            if len(items) == limit:
                break
        return MessagePage(items=items, next_cursor=place.cursor())

    async def _views_of(self, spans: Sequence[newest.Span]) -> list[MessageView]:
        """The messages of the spans, newest first."""
        segments = await self._load_segments(span.segment_id for span in spans)
        runs = []
        for span in spans:
            if span.segment_id in segments:
                segment, (id_, name, *_, created_at, queue) = segments[span.segment_id], span.row
                columns = segment.columns.slice(span.ordinal, span.ordinal + len(span))
                runs.append(Run(queue, name, id_, span.first_seq, segment.uuid, span.ordinal, created_at, columns))
        views = iter(await self._views(runs))
        return [view for run in runs for view in reversed(list(islice(views, len(run))))]

    async def _scope(self, where: MessageFilter) -> tuple[str, Sequence[Any]]:
        """The query that finds the runs of a filter, and its first arguments."""
        if where.queue is None:
            return "message_runs_over", (where.namespace, where.task)
        queue_id = await self._queue_id(where.queue)
        partition_id = None
        if where.partition is not None:
            partition_id = await self._partition_id(where.queue, queue_id, where.partition)
        if (where.namespace, where.task) != (None, None):
            labelled = await self.database.fetch("queue_labelled", _LABELLED, queue_id, where.namespace, where.task)
            return "message_runs", (queue_id if labelled else None, partition_id)
        return "message_runs", (queue_id, partition_id)

    async def _runs_after(self, queue: str | None, rows: Sequence[Any], partition_id: int, seq: int) -> list[Run]:
        """The runs of `message_runs`, without the messages up to the place."""
        segments = await self._load_segments(row[4] for row in rows)
        runs = []
        for id_, name, first_seq, last_seq, segment_id, ordinal, created_at, *over in rows:
            skip = max(seq + 1 - first_seq, 0) if id_ == partition_id else 0
            if segment_id in segments:
                columns = segments[segment_id].columns.slice(ordinal + skip, ordinal + last_seq - first_seq + 1)
                uuid = segments[segment_id].uuid
                of = over[0] if queue is None else queue
                runs.append(Run(of, name, id_, first_seq + skip, uuid, ordinal + skip, created_at, columns))
        return runs

    async def _views(self, runs: Sequence[Run]) -> list[MessageView]:
        """The messages with their status."""
        if not runs:
            return []
        ids = list({run.partition_id for run in runs})
        seqs = (min(run.first_seq for run in runs), max(run.last_seq for run in runs))
        cursors = await self._cursors(ids, *seqs)
        dead = {(row[0], row[1]) for row in await self._query("message_dead", ids, *seqs)}
        now = self.now() or (await self.database.fetch("now", _NOW))[0][0]
        return [
            _view(
                message,
                cursors.get(message.partition_id, []),
                (message.partition_id, message.seq) in dead,
                now,
            )
            for run in runs
            for message in run.messages()
        ]

    async def _cursors(self, partition_ids: list[int], first_seq: int, last_seq: int) -> _Cursors:
        """The cursors of partitions; those of shared groups with what they have in flight between two seqs."""
        in_flight: dict[tuple[int, str], list[Range]] = {}
        for partition_id, group, *found in await self._query("message_deliveries", partition_ids, first_seq, last_seq):
            first, last, due_at, lease_id = found
            one = Range(first, last, _due_at(due_at) or STOPPED, lease_id)
            in_flight.setdefault((partition_id, group), []).append(one)
        cursors: _Cursors = {}
        for row in await self._query("message_cursors", partition_ids):
            partition_id, group, acked, due_at, lease_id, lease_to, mode = row
            cursor = Cursor(acked=acked, due_at=_due_at(due_at), lease_id=lease_id, lease_to=lease_to)
            ranges = None if mode == "ordered" else in_flight.get((partition_id, group), [])
            cursors.setdefault(partition_id, []).append((group, cursor, ranges))
        return cursors

    async def message(self, identity: str, *, partition_id: int | None = None) -> MessageView:
        rows: list[Any] = []
        if partition_id is not None:
            seq = (await self.database.fetch("resolve_seq", _RESOLVE_SEQ, partition_id, identity))[0][0]
            if seq is not None:
                rows = await self._query("message_by_seq", [partition_id], [seq])
        elif is_canonical_uuid(identity):
            segment, ordinal = split_message_id(identity)
            found = await self._query("message_by_id", segment, ordinal, None)
            rows = [(*row[:3], row[3] + ordinal - row[5], row[4], ordinal) for row in found]
        runs = await self._load_single(rows)
        if not runs:
            raise refusals.no_message(identity, partition_id)
        return (await self._views(runs))[0]

    async def trace(self, trace_id: str, *, limit: int = 1000) -> list[Message]:
        runs = await self._load_single(await self._query("message_trace", trace_id, limit))
        return [run.message(0) for run in runs]

    async def leases(
        self, *, queue: str | None = None, expiring_within: timedelta | None = None, limit: int = 1000
    ) -> list[LeaseInfo]:
        queue_id = None if queue is None else await self._queue_id(queue)
        rows = await self._query("lease_list", queue_id, expiring_within, limit, self.now())
        fields = LeaseInfo.__struct_fields__
        return [LeaseInfo(**dict(zip(fields, row, strict=True))) for row in rows]

    async def utilisation(self, *, queue: str | None = None, exact: bool = False) -> list[Utilisation]:
        queue_id = None if queue is None else await self._queue_id(queue)
        rows = await self._query("group_utilisation", queue_id, self.now(), exact, self.figures_units_max)
        fields = Utilisation.__struct_fields__
        return [Utilisation(**dict(zip(fields, row, strict=True))) for row in rows]


def _partition_info(queue: str, row: Any) -> PartitionInfo:
    first_stored, last_seq, stored, pending = row[3], row[4], row[5], row[6]
    return PartitionInfo(
        id=row[0],
        queue=queue,
        name=row[1],
        created_at=row[2],
        first_seq=last_seq + 1 if first_stored is None else first_stored,
        last_seq=last_seq,
        messages=stored,
        pending=stored if pending is None else pending,
        processing=row[7],
        dead_letters=row[8],
        oldest_at=row[9],
        newest_at=row[10],
    )


def _due_at(value: datetime | None) -> datetime | None:
    """asyncpg gives infinity as the last datetime, without a time zone."""
    return STOPPED if value is not None and value.tzinfo is None else value


def _spark_stream_info(row: Any) -> SparkStreamInfo:
    return SparkStreamInfo(
        id=row[0],
        name=row[1],
        queue=row[2],
        lag=row[3],
        oldest_at=row[4],
        created_at=row[5],
        updated_at=row[6],
        held_until=row[7],
    )


def _partition_lag(queue: str, row: Any) -> PartitionLag:
    due_at = _due_at(row[7])
    return PartitionLag(
        queue=queue,
        partition=row[0],
        partition_id=row[1],
        group=row[2],
        acked=row[3],
        last_seq=row[4],
        lag=row[5],
        oldest_at=row[6],
        due_at=due_at,
        stopped=bool(row[11]),
        attempts=row[8],
        leased=bool(row[9]),
        consumed_at=row[10],
        in_flight=row[12],
        unread=row[5] - row[12],
        retrying=row[13],
    )


def _first(runs: Iterable[Run], messages: int) -> list[Run]:
    """The first so many messages of runs."""
    found: list[Run] = []
    for run in runs:
        found.append(run if len(run) <= messages else replace(run, columns=run.columns.slice(0, messages)))
        messages -= len(found[-1])
        if messages == 0:
            break
    return found


def _enough(rows: list[Any], messages: int, partition_id: int, seq: int) -> list[Any]:
    """The first runs of `message_runs` with so many messages after the place: each may cost a segment to decode."""
    for number, (id_, _, first_seq, last_seq, *_) in enumerate(rows, start=1):
        messages -= last_seq - (max(first_seq, seq + 1) if id_ == partition_id else first_seq) + 1
        if messages <= 0:
            return rows[:number]
    return rows


def _view(message: Message, places: Iterable[_PlaceOfGroup], dead: bool, now: datetime) -> MessageView:
    groups = []
    cursors = [
        (name, cursor if ranges is None else seen_at(cursor, ranges, message.seq)) for name, cursor, ranges in places
    ]
    for name, cursor in cursors:
        leased = cursor.leased(now) and cursor.acked < message.seq <= (cursor.lease_to or 0)
        groups.append(
            GroupProgress(
                group=name,
                consumed=message.seq <= cursor.acked,
                lease_expires_at=cursor.due_at if leased else None,
            )
        )
    status = message_status(message.seq, (cursor for _, cursor in cursors), dead=dead, now=now)
    return MessageView(message=message, status=status, groups=groups)

"""Stored messages for operators: listing them, and removing, retrying or giving up single ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from itertools import islice
from typing import Any, NoReturn

import asyncpg

from lockstep.core import refusals
from lockstep.core.ids import is_canonical_uuid, split_message_id
from lockstep.core.messages import Message, Receipt, Run, redriven
from lockstep.core.names import QUEUE_MODE
from lockstep.core.records import MessageFilter, MessagePage, MessageView, page_cursor, parse_page_cursor
from lockstep.core.rules import STOPPED, Cursor, message_view
from lockstep.core.shared import Range, seen_at
from lockstep.storage.postgres import newest, sql
from lockstep.storage.postgres.calls import due_at_of
from lockstep.storage.postgres.context import Context
from lockstep.storage.postgres.dead_letters import PostgresDeadLetters
from lockstep.storage.postgres.failures import Dying
from lockstep.storage.postgres.forwarding import Forwarding
from lockstep.storage.postgres.lookups import Lookups
from lockstep.storage.postgres.push.conversation import Pushed
from lockstep.storage.postgres.push.pushes import Pushes
from lockstep.storage.postgres.segments import SegmentReader

_NOW = "select clock_timestamp()"
_RESOLVE_SEQ: sql.Procedure[int | None] = sql.procedure("resolve_seq")
_LABELLED = (
    "select 1 from lockstep.queue "
    "where id = $1 and ($2::text is null or namespace = $2) and ($3::text is null or task = $3)"
)
_SCAN_ROUNDS_MAX = 20
"""How many pages of runs are read in search of messages of one status before a short page is answered."""
_SCAN_MESSAGES_MAX = 20_000
"""How many messages are read in search of those of one status before a short page is returned."""
_REMOVE: sql.Procedure[str] = sql.procedure("remove_message")
_RETRY: sql.Procedure[Any] = sql.procedure("retry_message")
_BURY: sql.Procedure[Any] = sql.procedure("bury_message")
_PlaceOfGroup = tuple[str, Cursor, list[Range] | None]
"""A group, its cursor, and what it has in flight if it is shared."""
_Cursors = dict[int, list[_PlaceOfGroup]]


class PostgresMessages:
    """Stored messages for operators."""

    def __init__(
        self,
        context: Context,
        lookups: Lookups,
        reader: SegmentReader,
        pushes: Pushes,
        forwarding: Forwarding,
        dead_letters: PostgresDeadLetters,
    ) -> None:
        self._context = context
        self._lookups = lookups
        self._reader = reader
        self._pushes = pushes
        self._forwarding = forwarding
        self._dead_letters = dead_letters

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
            rows = await self._context.query(
                query, *scope, partition_after, seq_after, where.from_at, where.to_at, limit
            )
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
            partition_after, seq_after = rows[-1]["id"], rows[-1]["last_seq"]
        return MessagePage(items=items, next_cursor=page_cursor(partition_after, seq_after))

    async def _newest(self, where: MessageFilter, cursor: str | None, limit: int) -> MessagePage:
        queue_id = None if where.queue is None else await self._lookups.queue_id(where.queue)
        partition_id = None
        if where.partition is not None and where.queue is not None and queue_id is not None:
            partition_id = await self._lookups.partition_id(where.queue, queue_id, where.partition)
        of_partition = partition_id is not None
        query = "message_newest_of" if of_partition else "message_newest"
        scope = (queue_id, partition_id, where.namespace, where.task)
        place = newest.PageStart.of(cursor, partition_id)
        items: list[MessageView] = []
        for _ in range(_SCAN_ROUNDS_MAX):
            missing = limit - len(items)
            period = (where.from_at, where.to_at)
            rows = await self._context.query(query, *scope, place.major, place.minor, *period, missing)
            if not rows:
                return MessagePage(items=items, next_cursor=None)
            spans = list(newest.spans_before(rows, place, missing, of_partition=of_partition))
            views = await self._views_of(spans)
            items += [view for view in views if where.status in (None, view.status)]
            place = newest.place_after(rows, spans, missing, of_partition=of_partition)
            if len(items) == limit:
                break
        return MessagePage(items=items, next_cursor=place.cursor())

    async def _views_of(self, spans: Sequence[newest.RunSlice]) -> list[MessageView]:
        """The messages of the spans, newest first."""
        segments = await self._reader.load(span.segment_id for span in spans)
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
        queue_id = await self._lookups.queue_id(where.queue)
        partition_id = None
        if where.partition is not None:
            partition_id = await self._lookups.partition_id(where.queue, queue_id, where.partition)
        if (where.namespace, where.task) != (None, None):
            labelled = await self._context.database.fetch(
                "queue_labelled", _LABELLED, queue_id, where.namespace, where.task
            )
            return "message_runs", (queue_id if labelled else None, partition_id)
        return "message_runs", (queue_id, partition_id)

    async def _runs_after(self, queue: str | None, rows: Sequence[Any], partition_id: int, seq: int) -> list[Run]:
        """The runs of `message_runs`, without the messages up to the place."""
        segments = await self._reader.load(row["segment_id"] for row in rows)
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
        dead = set(map(tuple, await self._context.query("message_dead", ids, *seqs)))
        now = self._context.now() or (await self._context.database.fetch("now", _NOW))[0][0]
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
        for partition_id, group, *found in await self._context.query(
            "message_deliveries", partition_ids, first_seq, last_seq
        ):
            first, last, due_at, lease_id = found
            one = Range(first, last, due_at_of(due_at) or STOPPED, lease_id)
            in_flight.setdefault((partition_id, group), []).append(one)
        cursors: _Cursors = {}
        for row in await self._context.query("message_cursors", partition_ids):
            partition_id, group, acked, due_at, lease_id, lease_to, mode = row
            cursor = Cursor(acked=acked, due_at=due_at_of(due_at), lease_id=lease_id, lease_to=lease_to)
            ranges = None if mode == "ordered" else in_flight.get((partition_id, group), [])
            cursors.setdefault(partition_id, []).append((group, cursor, ranges))
        return cursors

    async def message(self, identity: str, *, partition_id: int | None = None) -> MessageView:
        rows: list[Any] = []
        if partition_id is not None:
            seq = await self._context.database.value(_RESOLVE_SEQ(partition_id=partition_id, transaction_id=identity))
            if seq is not None:
                rows = await self._context.query("message_by_seq", [partition_id], [seq])
        elif is_canonical_uuid(identity):
            segment, ordinal = split_message_id(identity)
            rows = await self._context.query("message_by_id", segment, ordinal, None)
        runs = await self._reader.load_single(rows)
        if not runs:
            raise refusals.no_message(identity, partition_id)
        return (await self._views(runs))[0]

    async def trace(self, trace_id: str, *, limit: int = 1000) -> list[Message]:
        runs = await self._reader.load_single(await self._context.query("message_trace", trace_id, limit))
        return [run.message(0) for run in runs]

    async def remove_message(self, partition_id: int, transaction_id: str) -> None:
        call = _REMOVE(partition_id=partition_id, transaction_id=transaction_id, at=self._context.now())
        status = await self._context.database.value(call)
        if status != "removed":
            _refuse(status, partition_id, transaction_id)

    async def retry_message(self, partition_id: int, transaction_id: str) -> Receipt:
        queues: set[str] = set()

        async def work(connection: asyncpg.Connection[Any]) -> Pushed:
            call = _RETRY(partition_id=partition_id, transaction_id=transaction_id)
            status, *place, ids, copy_partitions, copy_seqs = await self._context.database.value(call, connection)
            if status != "retried":
                _refuse(status, partition_id, transaction_id)
            queue, partition, seq, segment_id, ordinal = place
            queues.add(queue)
            message = {"queue": queue, "partition": partition, "partition_id": partition_id, "seq": seq}
            [run] = await self._reader.load_single(
                [{**message, "segment_id": segment_id, "ordinal": ordinal}], connection
            )
            if ids is not None:
                origins = [run.message(0)] * len(ids)
                if not all(
                    await self._dead_letters.take_copies(
                        connection, copy_partitions, copy_seqs, origins, with_done=True
                    )
                ):
                    _refuse("copy_leased", partition_id, transaction_id)
                await self._dead_letters.delete(connection, ids)
            return await self._pushes.on(connection, [redriven(run.message(0))], overtake=True)

        pushed = await self._pushes.creating(queues, work)
        self._pushes.remember(pushed)
        return pushed.result[0]

    async def bury_message(
        self, partition_id: int, transaction_id: str, *, group: str = QUEUE_MODE, error: str | None = None
    ) -> int:
        message = {"partition_id": partition_id, "transaction_id": transaction_id}
        call = _BURY(**message, group=group, error=error, at=self._context.now())
        try:
            status, dead_letter_id = await self._context.database.value(call)
        except Dying:
            work = partial(self._context.database.value, call)
            status, dead_letter_id = await self._forwarding.run(work, partition_ids=[partition_id])
        if status == "no_group":
            raise refusals.no_group_on(partition_id, group)
        if status != "buried":
            _refuse(status, partition_id, transaction_id)
        found: int = dead_letter_id
        return found


def _first(runs: Iterable[Run], messages: int) -> list[Run]:
    """The first N messages of runs."""
    found: list[Run] = []
    for run in runs:
        found.append(run if len(run) <= messages else replace(run, columns=run.columns.slice(0, messages)))
        messages -= len(found[-1])
        if messages == 0:
            break
    return found


def _enough(rows: list[Any], messages: int, partition_id: int, seq: int) -> list[Any]:
    """The first runs of `message_runs` that have `messages` messages after the place: each may cost a segment to
    decode."""
    for number, (id_, _, first_seq, last_seq, *_) in enumerate(rows, start=1):
        messages -= last_seq - (max(first_seq, seq + 1) if id_ == partition_id else first_seq) + 1
        if messages <= 0:
            return rows[:number]
    return rows


def _view(message: Message, places: Iterable[_PlaceOfGroup], dead: bool, now: datetime) -> MessageView:
    cursors = [
        (name, cursor if ranges is None else seen_at(cursor, ranges, message.seq)) for name, cursor, ranges in places
    ]
    return message_view(message, cursors, dead=dead, now=now)


def _refuse(status: Any, partition_id: int, transaction_id: str) -> NoReturn:
    if status == "not_found":
        raise refusals.no_message(transaction_id, partition_id)
    raise refusals.message_conflict(status, transaction_id, partition_id)

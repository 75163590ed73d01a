"""Stored messages for operators: listing, and removing, retrying or burying single messages."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

import asyncpg

from lockstep.core import refusals
from lockstep.core.ids import is_canonical_uuid, split_message_id
from lockstep.core.messages import Message, Receipt, Run, redriven
from lockstep.core.names import QUEUE_MODE
from lockstep.core.records import (
    MessageFilter,
    MessagePage,
    MessageStatus,
    MessageView,
    page_cursor,
    parse_page_cursor,
)
from lockstep.core.rules import STOPPED, Cursor, message_status, message_view
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
_SCAN_MESSAGES = 1_000
"""How many messages are read at a time in search of those of one status."""
_PAST = 2**62 - 1
"""A seq that no partition reaches."""
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
        place = parse_page_cursor(cursor)
        query, scope = await self._scope(where)
        most, items, looked = self._context.limits.page_looked_into_max, list[MessageView](), 0
        while looked < most:
            wanted = _wanted(where, limit - len(items), most - looked)
            walk = max(most - looked, 2)  # the first may be a partition without messages that is known already
            rows = await self._context.query(query, *scope, *place, where.from_at, where.to_at, wanted, walk)
            if not rows:
                return MessagePage(items=items, next_cursor=None, looked_into=looked)
            chosen = _enough(rows, wanted, *place)
            is_last = len(chosen) == len(rows) < wanted and rows[-1]["looked"] < walk
            runs = _first(await self._runs_after(where.queue, chosen, *place), wanted)
            stored = sum(map(len, runs))
            passed = chosen[-1]["looked"] - sum(row["segment_id"] is not None for row in chosen)
            for number, view in await self._views(runs, where.status):
                items.append(view)
                if len(items) == limit:
                    at = page_cursor(view.message.partition_id, view.message.seq)
                    return MessagePage(items=items, next_cursor=at, looked_into=looked + passed + number)
            looked += passed + stored
            is_cut = stored == wanted
            if is_last and not is_cut:
                return MessagePage(items=items, next_cursor=None, looked_into=looked)
            place = (runs[-1].partition_id, runs[-1].last_seq) if is_cut else _behind(chosen[-1])
        return MessagePage(items=items, next_cursor=page_cursor(*place), looked_into=looked)

    async def _newest(self, where: MessageFilter, cursor: str | None, limit: int) -> MessagePage:
        queue_id = None if where.queue is None else await self._lookups.queue_id(where.queue)
        partition_id = None
        if where.partition is not None and where.queue is not None and queue_id is not None:
            partition_id = await self._lookups.partition_id(where.queue, queue_id, where.partition)
        of_partition = partition_id is not None
        query = "message_newest_of" if of_partition else "message_newest"
        scope = (queue_id, partition_id, where.namespace, where.task)
        place = newest.PageStart.of(cursor, partition_id)
        most, items, looked = self._context.limits.page_looked_into_max, list[MessageView](), 0
        while looked < most:
            wanted = _wanted(where, limit - len(items), most - looked)
            bounds = (where.from_at, where.to_at, wanted, min(most - looked, _SCAN_MESSAGES))
            rows = await self._context.query(query, *scope, place.major, place.minor, *bounds)
            if not rows:
                return MessagePage(items=items, next_cursor=None, looked_into=looked)
            spans = list(newest.spans_before(rows, place, wanted, of_partition=of_partition))
            passed = sum(row["id"] is None for row in rows)
            for number, at, view in await self._views_of(spans, where.status, of_partition=of_partition):
                items.append(view)
                if len(items) == limit:
                    return MessagePage(items=items, next_cursor=at.cursor(), looked_into=looked + passed + number)
            looked += max(passed + sum(map(len, spans)), 1)
            place = newest.place_after(rows, spans, wanted, of_partition=of_partition)
        return MessagePage(items=items, next_cursor=place.cursor(), looked_into=looked)

    async def _views_of(
        self, spans: Sequence[newest.RunSlice], status: MessageStatus | None, *, of_partition: bool
    ) -> list[tuple[int, newest.PageStart, MessageView]]:
        """The messages of the spans that have a status, newest first, each with its number among all, and its place."""
        segments = await self._reader.load(span.segment_id for span in spans)
        runs, there = [], []
        for span in spans:
            if span.segment_id in segments:
                segment, (id_, name, *_, created_at, queue) = segments[span.segment_id], span.row
                columns = segment.columns.slice(span.ordinal, span.ordinal + len(span))
                runs.append(Run(queue, name, id_, span.first_seq, segment.uuid, span.ordinal, created_at, columns))
                there.append(span)
        found: list[tuple[int, newest.PageStart, MessageView]] = []
        views = deque(await self._views(runs, status))
        before = 0
        for span in there:
            of_span = []
            while views and views[0][0] <= before + len(span):
                number, view = views.popleft()
                # Numbers count from the first seq of a run, and the last one is listed first.
                own = before + len(span) - (number - before) + 1
                of_span.append((own, span.place_of(view.message.seq, of_partition=of_partition), view))
            found += reversed(of_span)
            before += len(span)
        return found

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
        """The requested runs of `message_runs`, without the messages up to the place."""
        rows = [row for row in rows if row["segment_id"] is not None]
        segments = await self._reader.load(row["segment_id"] for row in rows)
        runs = []
        for id_, name, first_seq, last_seq, segment_id, ordinal, created_at, _, *over in rows:
            skip = max(seq + 1 - first_seq, 0) if id_ == partition_id else 0
            if segment_id in segments:
                columns = segments[segment_id].columns.slice(ordinal + skip, ordinal + last_seq - first_seq + 1)
                uuid = segments[segment_id].uuid
                of = over[0] if queue is None else queue
                runs.append(Run(of, name, id_, first_seq + skip, uuid, ordinal + skip, created_at, columns))
        return runs

    async def _views(self, runs: Sequence[Run], status: MessageStatus | None = None) -> list[tuple[int, MessageView]]:
        """The messages that have a status, or all, each with its number among those of the runs."""
        if not runs:
            return []
        spans = _spans(runs)
        cursors = await self._cursors(*spans)
        dead = set(map(tuple, await self._context.query("message_dead", *spans)))
        now = self._context.now() or (await self._context.database.fetch("now", _NOW))[0][0]
        found, before = [], 0
        for run in runs:
            places = cursors.get(run.partition_id, [])
            for offset, seq in enumerate(range(run.first_seq, run.last_seq + 1)):
                seen = [
                    (name, cursor if ranges is None else seen_at(cursor, ranges, seq))
                    for name, cursor, ranges in places
                ]
                is_dead = (run.partition_id, seq) in dead
                if status is None or status == message_status(seq, (one for _, one in seen), dead=is_dead, now=now):
                    view = message_view(run.message(offset), seen, dead=is_dead, now=now)
                    found.append((before + offset + 1, view))
            before += len(run)
        return found

    async def _cursors(self, partition_ids: list[int], first_seqs: list[int], last_seqs: list[int]) -> _Cursors:
        """The cursors of partitions; for shared groups, with the messages in flight between two seqs of each
        partition."""
        in_flight: dict[tuple[int, str], list[Range]] = {}
        for partition_id, group, *found in await self._context.query(
            "message_deliveries", partition_ids, first_seqs, last_seqs
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
        [(_, view)] = await self._views(runs[:1])
        return view

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
    for number, (id_, _, first_seq, last_seq, segment_id, *_) in enumerate(rows, start=1):
        if segment_id is not None:
            messages -= last_seq - (max(first_seq, seq + 1) if id_ == partition_id else first_seq) + 1
        if messages <= 0:
            return rows[:number]
    return rows


def _wanted(where: MessageFilter, missing: int, left: int) -> int:
    """How many messages to read next: those of one status may be rare."""
    return min(left, missing if where.status is None else max(missing, _SCAN_MESSAGES))


def _behind(row: Any) -> tuple[int, int]:
    """The place after a row of `message_runs`; a row without a run stands for its partition."""
    return (row["id"], _PAST if row["last_seq"] is None else row["last_seq"])


def _spans(runs: Iterable[Run]) -> tuple[list[int], list[int], list[int]]:
    """Partitions, and the first and the last seq of each."""
    spans: dict[int, tuple[int, int]] = {}
    for run in runs:
        first_seq, last_seq = spans.get(run.partition_id, (run.first_seq, run.last_seq))
        spans[run.partition_id] = (min(first_seq, run.first_seq), max(last_seq, run.last_seq))
    return list(spans), [first_seq for first_seq, _ in spans.values()], [last_seq for _, last_seq in spans.values()]


def _refuse(status: Any, partition_id: int, transaction_id: str) -> NoReturn:
    if status == "not_found":
        raise refusals.no_message(transaction_id, partition_id)
    raise refusals.message_conflict(status, transaction_id, partition_id)

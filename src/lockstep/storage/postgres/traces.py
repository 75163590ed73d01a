"""Trace events: recording them, and finding them by message or by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lockstep.core import refusals
from lockstep.core.traces import NamedTrace, NamedTracePage, NewTraceEvent, TraceEvent, TraceName, TraceNamePage
from lockstep.storage.postgres import sql
from lockstep.storage.postgres.context import Context
from lockstep.storage.postgres.segments import SegmentReader

_RECORD: sql.Procedure[int | None] = sql.procedure("record_trace")
_RESOLVE_SEQ: sql.Procedure[int | None] = sql.procedure("resolve_seq")
_NAMES = (
    "lockstep.trace_name n join lockstep.partition p on p.id = n.partition_id "
    "join lockstep.queue q on q.id = p.queue_id"
)
_COUNT_BY_NAME = f"select count(*) from {_NAMES} where n.name = $1"
_COUNT_NAMES = f"select count(distinct n.name) from {_NAMES} where $1::text[] is null or q.name = any ($1)"


class PostgresTraces:
    """Trace events."""

    def __init__(self, context: Context, reader: SegmentReader) -> None:
        self._context = context
        self._reader = reader

    async def record_trace(self, event: NewTraceEvent) -> int:
        call = _RECORD(
            partition_id=event.partition_id,
            transaction_id=event.transaction_id,
            event_type=event.event_type,
            group=event.group,
            worker=event.worker,
            names=list(event.names),
            data=event.data.decode(),
            at=self._context.now(),
        )
        event_id = await self._context.database.value(call)
        if event_id is None:
            raise refusals.no_message(event.transaction_id, event.partition_id)
        return event_id

    async def traces_of_message(self, partition_id: int, transaction_id: str, *, limit: int = 1000) -> list[TraceEvent]:
        seq = await self._context.database.value(_RESOLVE_SEQ(partition_id=partition_id, transaction_id=transaction_id))
        if seq is None:
            return []
        return [_event(row) for row in await self._context.query("trace_event_list", partition_id, seq, limit)]

    async def traces_by_name(self, name: str, *, limit: int = 100, offset: int = 0) -> NamedTracePage:
        rows = await self._context.query("trace_event_by_name", name, limit, offset)
        total = (await self._context.database.fetch("trace_name_count", _COUNT_BY_NAME, name))[0][0]
        runs = await self._reader.load_single(rows)
        messages = {(run.partition_id, run.first_seq): run.message(0) for run in runs}
        return NamedTracePage(
            items=[
                NamedTrace(event=_event(row), message=messages.get((row["partition_id"], row["seq"]))) for row in rows
            ],
            total=total,
        )

    async def trace_names(
        self, *, queues: Sequence[str] | None = None, limit: int = 100, offset: int = 0
    ) -> TraceNamePage:
        of = None if queues is None else list(queues)
        rows = await self._context.query("trace_name_list", limit, offset, of)
        total = (await self._context.database.fetch("trace_names_count", _COUNT_NAMES, of))[0][0]
        return TraceNamePage(items=[TraceName(**row) for row in rows], total=total)


def _event(row: Any) -> TraceEvent:
    """A trace event from a row of `trace_event_list`."""
    fields = {name: row[name] for name in TraceEvent.__struct_fields__}
    return TraceEvent(**fields | {"data": row["data"].encode(), "names": tuple(row["names"])})

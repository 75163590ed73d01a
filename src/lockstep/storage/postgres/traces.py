"""Trace events: recording them, and finding them by message or by name."""

from __future__ import annotations

from typing import Any

from lockstep.core import refusals
from lockstep.core.traces import NamedTrace, NamedTracePage, NewTraceEvent, TraceEvent, TraceName, TraceNamePage
from lockstep.storage.postgres.shared import Shared

_RECORD = (
    "select lockstep.record_trace($1, $2, $3, $4::text, $5::text, $6::text[], $7::text, $8::timestamptz) as event_id"
)
_RESOLVE_SEQ = "select lockstep.resolve_seq($1, $2)"
_NAMES = (
    "lockstep.trace_name n join lockstep.partition p on p.id = n.partition_id "
    "join lockstep.queue q on q.id = p.queue_id"
)
_COUNT_BY_NAME = f"select count(*) from {_NAMES} where n.name = $1"
_COUNT_NAMES = f"select count(distinct n.name) from {_NAMES}"


class Traces(Shared):
    async def record_trace(self, event: NewTraceEvent) -> int:
        rows = await self.database.fetch(
            "record_trace",
            _RECORD,
            event.partition_id,
            event.transaction_id,
            event.event_type,
            event.group,
            event.worker,
            list(event.names),
            event.data.decode(),
            self.now(),
        )
        event_id: int | None = rows[0][0]
        if event_id is None:
            raise refusals.no_message(event.transaction_id, event.partition_id)
        return event_id

    async def traces_of_message(self, partition_id: int, transaction_id: str, *, limit: int = 1000) -> list[TraceEvent]:
        seq = (await self.database.fetch("resolve_seq", _RESOLVE_SEQ, partition_id, transaction_id))[0][0]
        if seq is None:
            return []
        return [_event(row) for row in await self._query("trace_event_list", partition_id, seq, limit)]

    async def traces_by_name(self, name: str, *, limit: int = 100, offset: int = 0) -> NamedTracePage:
        rows = await self._query("trace_event_by_name", name, limit, offset)
        total = (await self.database.fetch("trace_name_count", _COUNT_BY_NAME, name))[0][0]
        runs = await self._load_single([(*row[1:5], row[12], row[13]) for row in rows])
        messages = {(run.partition_id, run.first_seq): run.message(0) for run in runs}
        return NamedTracePage(
            items=[NamedTrace(event=_event(row), message=messages.get((row[3], row[4]))) for row in rows], total=total
        )

    async def trace_names(self, *, limit: int = 100, offset: int = 0) -> TraceNamePage:
        rows = await self._query("trace_name_list", limit, offset)
        total = (await self.database.fetch("trace_names_count", _COUNT_NAMES))[0][0]
        fields = TraceName.__struct_fields__
        return TraceNamePage(items=[TraceName(**dict(zip(fields, row, strict=True))) for row in rows], total=total)


def _event(row: Any) -> TraceEvent:
    """A trace event from a row of `trace_event_list`."""
    return TraceEvent(
        id=row[0],
        queue=row[1],
        partition=row[2],
        partition_id=row[3],
        seq=row[4],
        transaction_id=row[5],
        data=row[6].encode(),
        event_type=row[7],
        group=row[8],
        worker=row[9],
        names=tuple(row[10]),
        created_at=row[11],
    )

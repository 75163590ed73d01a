"""Trace events: recording them, and finding them by message or by name."""

from __future__ import annotations

from collections.abc import Sequence

from lockstep.core import refusals
from lockstep.core.traces import NamedTrace, NamedTracePage, NewTraceEvent, TraceEvent, TraceName, TraceNamePage
from lockstep.storage.memory.state import State


class MemoryTraces:
    """Trace events."""

    def __init__(self, state: State) -> None:
        self._state = state

    async def record_trace(self, event: NewTraceEvent) -> int:
        state, now = self._state, self._state.now()
        partition = state.partitions.get(event.partition_id)
        seq = None if partition is None else partition.resolve(event.transaction_id)
        if partition is None or seq is None:
            raise refusals.no_message(event.transaction_id, event.partition_id)
        recorded = TraceEvent(
            id=next(state.trace_event_ids),
            queue=partition.queue.name,
            partition=partition.name,
            partition_id=partition.id,
            seq=seq,
            transaction_id=event.transaction_id,
            data=event.data,
            event_type=event.event_type,
            group=event.group,
            worker=event.worker,
            names=event.names,
            created_at=now,
        )
        state.trace_events[recorded.id] = recorded
        partition.events.setdefault(seq, []).append(recorded)
        return recorded.id

    async def traces_of_message(self, partition_id: int, transaction_id: str, *, limit: int = 1000) -> list[TraceEvent]:
        state = self._state
        partition = state.partitions.get(partition_id)
        seq = None if partition is None else partition.resolve(transaction_id)
        return [] if partition is None or seq is None else partition.events.get(seq, [])[:limit]

    async def traces_by_name(self, name: str, *, limit: int = 100, offset: int = 0) -> NamedTracePage:
        state = self._state
        found = [event for event in reversed(state.trace_events.values()) if name in event.names]
        items = [
            NamedTrace(event=event, message=state.partitions[event.partition_id].message(event.seq))
            for event in found[offset : offset + limit]
        ]
        return NamedTracePage(items=items, total=len(found))

    async def trace_names(
        self, *, queues: Sequence[str] | None = None, limit: int = 100, offset: int = 0
    ) -> TraceNamePage:
        state = self._state
        by_name: dict[str, list[TraceEvent]] = {}
        for event in state.trace_events.values():
            for name in event.names if queues is None or event.queue in queues else ():
                by_name.setdefault(name, []).append(event)
        found = sorted((_trace_name(name, events) for name, events in by_name.items()), key=lambda one: one.name)
        found.sort(key=lambda one: one.last_seen_at, reverse=True)
        return TraceNamePage(items=found[offset : offset + limit], total=len(found))


def _trace_name(name: str, events: list[TraceEvent]) -> TraceName:
    return TraceName(
        name=name,
        traces=len(events),
        messages=len({(event.partition_id, event.seq) for event in events}),
        last_seen_at=max(event.created_at for event in events),
    )

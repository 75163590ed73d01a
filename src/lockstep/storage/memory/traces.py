"""Trace events: recording them, and finding them by message or by name."""

from __future__ import annotations

from datetime import datetime

from lockstep.core import refusals
from lockstep.core.traces import NamedTrace, NamedTracePage, NewTraceEvent, TraceEvent, TraceName, TraceNamePage
from lockstep.storage.memory.state import State


def record_trace(state: State, event: NewTraceEvent, now: datetime) -> int:
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


def traces_of_message(state: State, partition_id: int, transaction_id: str, *, limit: int) -> list[TraceEvent]:
    partition = state.partitions.get(partition_id)
    seq = None if partition is None else partition.resolve(transaction_id)
    return [] if partition is None or seq is None else partition.events.get(seq, [])[:limit]


def traces_by_name(state: State, name: str, *, limit: int, offset: int) -> NamedTracePage:
    found = [event for event in reversed(state.trace_events.values()) if name in event.names]
    items = [
        NamedTrace(event=event, message=state.partitions[event.partition_id].message(event.seq))
        for event in found[offset : offset + limit]
    ]
    return NamedTracePage(items=items, total=len(found))


def trace_names(state: State, *, limit: int, offset: int) -> TraceNamePage:
    by_name: dict[str, list[TraceEvent]] = {}
    for event in state.trace_events.values():
        for name in event.names:
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

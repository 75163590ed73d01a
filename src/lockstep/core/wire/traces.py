"""Trace events on the wire: what consumers report about a message."""

from __future__ import annotations

from typing import Any

from msgspec import Raw, Struct

from lockstep.core.messages import Message
from lockstep.core.traces import NamedTrace, NamedTracePage, NewTraceEvent, TraceEvent, TraceNamePage
from lockstep.core.wire.delivery import partition_number, raw_data
from lockstep.core.wire.pages import Pagination
from lockstep.core.wire.times import timestamp


class TraceBody(Struct, rename="camel", kw_only=True):
    transaction_id: str
    partition_id: str | int
    data: Raw
    consumer_group: str | None = None
    worker_id: str | None = None
    event_type: str = "info"
    trace_names: str | list[str] | None = None


class TraceAnswer(Struct, rename="camel"):
    success: bool
    trace_id: str


class TraceRow(Struct, kw_only=True):
    id: str
    event_type: str
    data: Raw
    consumer_group: str | None
    worker_id: str | None
    created_at: str
    trace_names: list[str]


class TracesAnswer(Struct):
    traces: list[TraceRow]


class NamedTraceRow(TraceRow, kw_only=True):
    transaction_id: str
    partition_id: str
    queue_name: str
    partition_name: str
    message_payload: Raw | None
    """Null if the message is no longer stored."""


class NamedTracesAnswer(Struct):
    traces: list[NamedTraceRow]
    total: int
    pagination: Pagination


class TraceNameRow(Struct):
    trace_name: str
    trace_count: int
    message_count: int
    last_seen: str


class TraceNamesAnswer(Struct):
    trace_names: list[TraceNameRow]
    total: int
    pagination: Pagination


class TraceMessage(Struct, rename="camel", kw_only=True):
    id: str
    transaction_id: str
    trace_id: str | None
    partition_id: str
    queue: str
    partition: str
    seq: int
    kind: str | None
    reference: str | None
    data: Raw
    encoding: str | None
    """If not null, the data is a base64 string."""
    headers: dict[str, str]
    producer_sub: str | None
    created_at: str


class TraceMessagesAnswer(Struct, rename="camel"):
    trace_id: str
    messages: list[TraceMessage]


def trace_answer(trace_id: str, messages: list[Message]) -> TraceMessagesAnswer:
    return TraceMessagesAnswer(trace_id, [_trace_message(message) for message in messages])


def _trace_message(message: Message) -> TraceMessage:
    return TraceMessage(
        id=message.id,
        transaction_id=message.transaction_id,
        trace_id=message.trace_id,
        partition_id=str(message.partition_id),
        queue=message.queue,
        partition=message.partition,
        seq=message.seq,
        kind=message.kind,
        reference=message.reference,
        data=raw_data(message.payload, message.encoding),
        encoding=message.encoding,
        headers=dict(message.headers or {}),
        producer_sub=message.producer_sub,
        created_at=timestamp(message.created_at),
    )


def trace_event(body: TraceBody) -> NewTraceEvent:
    return NewTraceEvent(
        partition_id=partition_number(body.partition_id),
        transaction_id=body.transaction_id,
        data=bytes(body.data),
        event_type=body.event_type,
        group=body.consumer_group,
        worker=body.worker_id,
        names=_names(body.trace_names),
    )


def _names(names: str | list[str] | None) -> tuple[str, ...]:
    if isinstance(names, str):
        return (names,)
    return tuple(names or ())


def traces_answer(events: list[TraceEvent]) -> TracesAnswer:
    return TracesAnswer([_trace_row(event) for event in events])


def _trace_row(event: TraceEvent) -> TraceRow:
    return TraceRow(**_event_fields(event))


def _event_fields(event: TraceEvent) -> dict[str, Any]:
    return {
        "id": str(event.id),
        "event_type": event.event_type,
        "data": Raw(event.data),
        "consumer_group": event.group,
        "worker_id": event.worker,
        "created_at": timestamp(event.created_at),
        "trace_names": list(event.names),
    }


def named_traces_answer(page: NamedTracePage, *, limit: int, offset: int) -> NamedTracesAnswer:
    return NamedTracesAnswer([_named_row(trace) for trace in page.items], page.total, Pagination(limit, offset))


def _named_row(trace: NamedTrace) -> NamedTraceRow:
    event, message = trace.event, trace.message
    return NamedTraceRow(
        **_event_fields(event),
        transaction_id=event.transaction_id,
        partition_id=str(event.partition_id),
        queue_name=event.queue,
        partition_name=event.partition,
        message_payload=None if message is None else raw_data(message.payload, message.encoding),
    )


def trace_names_answer(page: TraceNamePage, *, limit: int, offset: int) -> TraceNamesAnswer:
    rows = [TraceNameRow(name.name, name.traces, name.messages, timestamp(name.last_seen_at)) for name in page.items]
    return TraceNamesAnswer(rows, page.total, Pagination(limit, offset))

"""Trace events: what consumers report about a message. They live as long as their message."""

from __future__ import annotations

from datetime import datetime

import msgspec

from lockstep.core.messages import Message


class NewTraceEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened to a message."""

    partition_id: int
    transaction_id: str
    """The message's transaction id as set by its producer, or the message id."""
    data: bytes
    """JSON."""
    event_type: str = "info"
    group: str | None = None
    worker: str | None = None
    """The reporter, for people."""
    names: tuple[str, ...] = ()
    """Names by which the event can be found, over all queues."""


class TraceEvent(msgspec.Struct, frozen=True, kw_only=True):
    id: int
    queue: str
    partition: str
    partition_id: int
    seq: int
    """The message's seq."""
    transaction_id: str
    """The transaction id recorded with the event."""
    data: bytes
    event_type: str
    group: str | None
    worker: str | None
    names: tuple[str, ...]
    created_at: datetime


class NamedTrace(msgspec.Struct, frozen=True, kw_only=True):
    """A trace event found by one of its names."""

    event: TraceEvent
    message: Message | None
    """None if it was removed in the meantime."""


class NamedTracePage(msgspec.Struct, frozen=True, kw_only=True):
    items: list[NamedTrace]
    total: int


class TraceName(msgspec.Struct, frozen=True, kw_only=True):
    """All trace events with one name."""

    name: str
    traces: int
    messages: int
    """Number of messages with this name."""
    last_seen_at: datetime


class TraceNamePage(msgspec.Struct, frozen=True, kw_only=True):
    items: list[TraceName]
    total: int

"""Trace events: what consumers report about stored messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from lockstep.core.traces import NamedTracePage, NewTraceEvent, TraceEvent, TraceNamePage


class Traces(Protocol):
    """Records trace events, and finds them by message or by name."""

    async def record_trace(self, event: NewTraceEvent) -> int:
        """Store a trace event of a stored message for as long as the message is stored; returns its id. Raises
        MessageNotFound."""

    async def traces_of_message(self, partition_id: int, transaction_id: str, *, limit: int = 1000) -> list[TraceEvent]:
        """The trace events of a message, oldest first; nothing if there is no such message."""

    async def traces_by_name(self, name: str, *, limit: int = 100, offset: int = 0) -> NamedTracePage:
        """Trace events with this name over all queues, newest first, with their messages; and how many there are."""

    async def trace_names(
        self, *, queues: Sequence[str] | None = None, limit: int = 100, offset: int = 0
    ) -> TraceNamePage:
        """The names that trace events of messages of these queues, or of all, have, the one seen last first (then by
        name), and how many there are. The cost
        follows the number of events with names."""

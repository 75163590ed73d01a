"""Maintenance mode and buffered pushes, on the wire."""

from __future__ import annotations

from msgspec import Struct

from lockstep.core.outage import BreakerState, BufferStats, MaintenanceMode


class MaintenanceBody(Struct):
    enabled: bool


class BufferStatsRow(Struct, rename="camel", kw_only=True):
    """The spool of the machine that answered. Sums count from its creation."""

    directory: str
    bytes: int
    bytes_max: int
    files: int
    messages_buffered: int
    messages_drained: int
    messages_rejected: int
    bytes_damaged: int
    draining: bool
    bytes_lost: int
    """Drained, lost by the database, and no longer here. Nothing is drained until an operator accepts the loss."""
    waiting_for: str | None
    """The database's error for the next push, if it refuses it; or a message that pushes are lost."""


class MaintenanceAnswer(Struct, rename="camel", kw_only=True):
    maintenance_mode: bool
    pop_maintenance_mode: bool
    buffered_messages: int
    buffer_healthy: bool
    """Whether pushes can be buffered, and buffered pushes are not held up."""
    breaker: BreakerState
    buffer_stats: BufferStatsRow | None


def maintenance_answer(mode: MaintenanceMode) -> MaintenanceAnswer:
    buffer = mode.buffer
    return MaintenanceAnswer(
        maintenance_mode=mode.push,
        pop_maintenance_mode=mode.pop,
        buffered_messages=0 if buffer is None else buffer.messages,
        buffer_healthy=buffer is not None and buffer.has_room and buffer.waiting_for is None,
        breaker=mode.breaker,
        buffer_stats=None if buffer is None else _row(buffer),
    )


def _row(buffer: BufferStats) -> BufferStatsRow:
    return BufferStatsRow(**{name: getattr(buffer, name) for name in BufferStatsRow.__struct_fields__})

"""What servers know while the database is unavailable or in maintenance mode: modes and buffered pushes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal
from uuid import UUID

import msgspec

from lockstep.core.messages import PushResult

BreakerState = Literal["closed", "open"]


class System(msgspec.Struct, frozen=True, kw_only=True):
    """What all servers on one store know together."""

    id: UUID
    """The id of the store, constant for its lifetime."""
    push_maintenance: bool = False
    pop_maintenance: bool = False


@dataclass(frozen=True, slots=True)
class Drained:
    """The result of draining a part of a spool."""

    place: int
    """How far the spool is in the store now."""
    pushed: PushResult | None = None
    """None if the part was already in the store, or was empty."""
    set_aside_from: int | None = None
    """Start of the last record that the spool has set aside; None if it has set none aside."""


class BufferStats(msgspec.Struct, frozen=True, kw_only=True):
    """The spool of one machine. Sums count from its creation."""

    directory: str
    bytes: int
    bytes_max: int
    files: int
    messages: int
    """In the spool now."""
    messages_buffered: int
    messages_drained: int
    messages_rejected: int
    """Set aside because the database refused them."""
    bytes_damaged: int
    draining: bool
    """Whether the process that answered drains the spool."""
    bytes_lost: int = 0
    """Drained, lost by the database, and no longer here. Nothing is drained until an operator accepts the loss."""
    waiting_for: str | None = None
    """The database's error for the next push, if it refuses it; or a message that pushes are lost."""

    @property
    def has_room(self) -> bool:
        return self.bytes < self.bytes_max


class MaintenanceMode(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a maintenance mode is on: pushes are buffered, or pops find nothing."""

    push: bool
    pop: bool
    breaker: BreakerState = "closed"
    """Open while the answering server considers its database unavailable."""
    buffer: BufferStats | None = None
    """None if there is no server that buffers, or it cannot buffer."""

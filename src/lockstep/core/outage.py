"""What servers know while a database is unavailable or in maintenance: modes, and what is buffered."""

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
    """Of the store, for as long as it exists."""
    push_maintenance: bool = False
    pop_maintenance: bool = False


@dataclass(frozen=True, slots=True)
class Drained:
    """What became of a part of a spool."""

    place: int
    """Up to where the spool is in the store now."""
    pushed: PushResult | None = None
    """None if the part was there already, or had nothing."""
    set_aside_from: int | None = None
    """Where the last record begins that the spool has set aside; None if it never has."""


class BufferStats(msgspec.Struct, frozen=True, kw_only=True):
    """The spool of one machine. Sums are since it was made."""

    directory: str
    bytes: int
    bytes_max: int
    files: int
    messages: int
    """In it now."""
    messages_buffered: int
    messages_drained: int
    messages_rejected: int
    """Set aside, because the database refused them."""
    bytes_damaged: int
    draining: bool
    """By the process that answered."""
    bytes_lost: int = 0
    """Drained once, lost by the database, and not here any more: nothing is drained until that is accepted."""
    waiting_for: str | None = None
    """What the database said to the push that is next, if it refuses it; or that something is lost."""

    @property
    def has_room(self) -> bool:
        return self.bytes < self.bytes_max


class MaintenanceMode(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a maintenance mode makes pushes be buffered, or pops find nothing."""

    push: bool
    pop: bool
    breaker: BreakerState = "closed"
    """Open while the answering server considers its database unavailable."""
    buffer: BufferStats | None = None
    """None where there is no server that buffers, or it cannot."""

"""How a delivery may end: the statuses of an ack, and what each one does.

rules.py and shared.py apply this table. Functions at the end of `ack.sql` say the same in SQL; a test compares them.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

AckStatus = Literal["completed", "failed", "retry", "released", "dlq"]
"""How a delivery ended. `retry` requests another delivery; `released` counts as no delivery."""


class Ending(NamedTuple):
    """What an ack with a status does. One that neither completes nor redelivers gives the message up."""

    completes: bool = False
    redelivers: bool = False
    """The message is delivered again, unless the attempt is charged and was the last one."""
    charges_ordered: bool = False
    """In an ordered group: one of the queue's attempts is used up."""
    charges_shared: bool = False
    """The same in a shared group."""
    delays: bool = False
    """It is delivered again after the queue's retry delay, and not at once."""
    takes_time: bool = False
    """The ack may name the time instead (`retry_at`)."""

    @property
    def gives_up(self) -> bool:
        return not self.completes and not self.redelivers


ENDINGS: dict[AckStatus, Ending] = {
    "completed": Ending(completes=True),
    "failed": Ending(redelivers=True, charges_ordered=True, charges_shared=True, delays=True, takes_time=True),
    "retry": Ending(redelivers=True, charges_shared=True, takes_time=True),
    "released": Ending(redelivers=True),
    "dlq": Ending(charges_ordered=True, charges_shared=True),
}

ACK_STATUSES: tuple[AckStatus, ...] = get_args(AckStatus)
TIMED_STATUSES = tuple(status for status, ending in ENDINGS.items() if ending.takes_time)
"""Those that go with `retry_at`."""

"""The store's side of servers that buffer pushes in a spool."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol
from uuid import UUID

from lockstep.core.messages import Batch
from lockstep.core.outage import Drained, System


class Spools(Protocol):
    """Keeps the mode that all servers are in, and stores what their spools hold exactly once."""

    async def system(self) -> System:
        """The state that all servers on the store share."""

    async def set_maintenance_mode(self, *, push: bool | None = None, pop: bool | None = None) -> System:
        """Say whether servers are to buffer pushes, and whether their pops are to find nothing; None leaves it."""

    async def drain(
        self, spool: UUID, batches: Sequence[Batch], *, start: int, end: int, set_aside: bool = False
    ) -> Drained:
        """Push what lies in a spool from one place to another, as `push` does, if it was not pushed before. That it is
        in the store from then on is remembered in the same transaction, so that a call may be repeated whatever became
        of it.

        If the spool was drained beyond `start` before, or not up to there, nothing is pushed or remembered, and the
        answer says up to where it is drained. Without batches the part has nothing to push, and is passed; with
        `set_aside`, because it is a record that the store refuses, and that is remembered, too. A spool that was never
        drained is drained up to 0."""

"""The verbs that servers use to buffer pushes."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID, uuid4

import msgspec

from lockstep.core.messages import Batch
from lockstep.core.outage import Drained, System
from lockstep.storage.memory.push import push
from lockstep.storage.memory.state import State


class MemorySpools:
    """The maintenance mode of servers, and the positions up to which their spools are drained."""

    def __init__(self, state: State) -> None:
        self._state = state
        self.mode = System(id=uuid4())
        self.drained: dict[UUID, tuple[int, int | None]] = {}
        """Up to where each is drained."""

    async def system(self) -> System:
        return self.mode

    async def set_maintenance_mode(self, *, push: bool | None = None, pop: bool | None = None) -> System:
        given = {"push_maintenance": push, "pop_maintenance": pop}
        changes = {name: mode for name, mode in given.items() if mode is not None}
        self.mode = msgspec.structs.replace(self.mode, **changes)
        return self.mode

    async def drain(
        self, spool: UUID, batches: Sequence[Batch], *, start: int, end: int, set_aside: bool = False
    ) -> Drained:
        before, set_aside_from = self.drained.get(spool, (0, None))
        if before != start:
            return Drained(before, set_aside_from=set_aside_from)
        pushed = push(self._state, batches, self._state.now()) if batches else None
        if before < end:
            before, set_aside_from = end, start if set_aside else set_aside_from
        self.drained[spool] = before, set_aside_from
        return Drained(before, pushed, set_aside_from)

"""A store that a test can make unavailable, as PostgreSQL can be: calls fail, and watchers are notified."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from lockstep.core.messages import Batch, PushResult
from lockstep.core.operations import NewOperation
from lockstep.core.outage import Drained, System
from lockstep.errors import Unavailable
from lockstep.storage.memory import MemoryStore


class AwayStore(MemoryStore):
    """The memory store, behind a connection that can be lost."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.is_away = False
        self.fail_next: list[str] = []
        """What happens to the next calls of push, queue_operations and drain: `lost` before the store has the
        call, `unanswered` after it was applied, `refused` as what is wrong with its content."""
        self.error: Exception = Unavailable("refused")
        self.drains: list[int] = []
        """How many batches each call of drain had."""
        self._there: Callable[[bool], None] | None = None

    def watch(self, *, there: Callable[[bool], None], changed: Callable[[], None]) -> None:  # noqa: ARG002
        self._there = there
        if self.is_away:
            there(False)

    def leave(self) -> None:
        self.is_away = True
        if self._there is not None:
            self._there(False)

    def come_back(self) -> None:
        self.is_away = False
        if self._there is not None:
            self._there(True)

    async def system(self) -> System:
        self._check()
        return await super().system()

    async def set_maintenance_mode(self, *, push: bool | None = None, pop: bool | None = None) -> System:
        self._check()
        return await super().set_maintenance_mode(push=push, pop=pop)

    async def balance(self, queue: str) -> list[int]:
        self._check()
        return await super().balance(queue)

    async def push(self, batches: Sequence[Batch], *, lock_seconds: float | None = None) -> PushResult:
        self._check()
        fate = self.fail_next.pop(0) if self.fail_next else "pass"
        self._fail_before(fate)
        pushed = await super().push(batches, lock_seconds=lock_seconds)
        _fail_after(fate)
        return pushed

    async def drain(
        self, spool: UUID, batches: Sequence[Batch], *, start: int, end: int, set_aside: bool = False
    ) -> Drained:
        self._check()
        fate = self.fail_next.pop(0) if self.fail_next and (batches or set_aside) else "pass"
        self._fail_before(fate)
        self.drains.append(len(batches))
        kept, self.fail_next = self.fail_next, []  # it pushes, too
        try:
            drained = await super().drain(spool, batches, start=start, end=end, set_aside=set_aside)
        finally:
            self.fail_next = kept
        _fail_after(fate)
        return drained

    async def queue_operations(self, operations: Sequence[NewOperation]) -> list[str]:
        self._check()
        fate = self.fail_next.pop(0) if self.fail_next else "pass"
        self._fail_before(fate)
        queued = await super().queue_operations(operations)
        _fail_after(fate)
        return queued

    def _check(self) -> None:
        if self.is_away:
            raise Unavailable("the database cannot be reached", unreachable=True)

    def _fail_before(self, fate: str) -> None:
        if fate == "lost":
            raise Unavailable("the connection was lost", unreachable=True, maybe_applied=True)
        if fate == "refused":
            raise self.error


def _fail_after(fate: str) -> None:
    if fate == "unanswered":
        raise Unavailable("the connection was lost", unreachable=True, maybe_applied=True)

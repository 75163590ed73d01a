"""The verbs that servers use to buffer pushes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import asyncpg

from lockstep.core.messages import Batch
from lockstep.core.outage import Drained, System
from lockstep.storage.postgres import sql
from lockstep.storage.postgres.context import Context
from lockstep.storage.postgres.push.conversation import Pushed
from lockstep.storage.postgres.push.pushes import Pushes

_SYSTEM = "select s.id, s.push_maintenance, s.pop_maintenance from lockstep.system($1::timestamptz) s"
_SET_MAINTENANCE = (
    "select s.id, s.push_maintenance, s.pop_maintenance "
    "from lockstep.set_maintenance($1::boolean, $2::boolean, $3::timestamptz) s"
)
_DRAIN: sql.Procedure[Any] = sql.procedure("drain_spool")


class PostgresSpools:
    """The maintenance mode of servers, and the positions up to which their spools are drained."""

    def __init__(self, context: Context, pushes: Pushes) -> None:
        self._context = context
        self._pushes = pushes

    async def system(self) -> System:
        return _system(await self._context.database.fetch("system", _SYSTEM, self._context.now()))

    async def set_maintenance_mode(self, *, push: bool | None = None, pop: bool | None = None) -> System:
        return _system(
            await self._context.database.fetch("set_maintenance", _SET_MAINTENANCE, push, pop, self._context.now())
        )

    async def drain(
        self, spool: UUID, batches: Sequence[Batch], *, start: int, end: int, set_aside: bool = False
    ) -> Drained:
        async def work(connection: asyncpg.Connection[Any]) -> tuple[int, int | None, Pushed | None]:
            call = _DRAIN(id=spool, start=start, end=end, aside=set_aside, at=self._context.now())
            before, set_aside_from = await self._context.database.value(call, connection)
            if before != start:
                return before, set_aside_from, None
            pushed = await self._pushes.on(connection, batches) if batches else None
            return end, set_aside_from, pushed

        place, set_aside_from, pushed = await self._pushes.creating({batch.queue for batch in batches}, work)
        self._pushes.remember(pushed)
        return Drained(place, None if pushed is None else pushed.result, set_aside_from)


def _system(rows: list[Any]) -> System:
    identity, push, pop = rows[0]
    return System(id=UUID(str(identity)), push_maintenance=push, pop_maintenance=pop)

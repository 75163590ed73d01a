"""What servers that buffer pushes ask: the mode they are in, and to take what is in their spool, once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import asyncpg

from lockstep.core.messages import Batch
from lockstep.core.outage import Drained, System
from lockstep.storage.postgres import pushing
from lockstep.storage.postgres.delivery import Delivery

_SYSTEM = "select s.id, s.push_maintenance, s.pop_maintenance from lockstep.system($1::timestamptz) s"
_SET_MAINTENANCE = (
    "select s.id, s.push_maintenance, s.pop_maintenance "
    "from lockstep.set_maintenance($1::boolean, $2::boolean, $3::timestamptz) s"
)
_DRAIN = "select * from lockstep.drain_spool($1::uuid, $2::bigint, $3::bigint, $4::boolean, $5::timestamptz)"


class Spools(Delivery):
    async def system(self) -> System:
        return _system(await self.database.fetch("system", _SYSTEM, self.now()))

    async def set_maintenance_mode(self, *, push: bool | None = None, pop: bool | None = None) -> System:
        return _system(await self.database.fetch("set_maintenance", _SET_MAINTENANCE, push, pop, self.now()))

    async def drain(
        self, spool: UUID, batches: Sequence[Batch], *, start: int, end: int, set_aside: bool = False
    ) -> Drained:
        async def work(connection: asyncpg.Connection[Any]) -> tuple[int, int | None, pushing.Pushed | None]:
            call = (_DRAIN, spool, start, end, set_aside, self.now())
            before, set_aside_from = (await self.database.on(connection, "drain_spool", *call))[0]
            if before != start:
                return before, set_aside_from, None
            pushed = await self._converse(self._push_conversation(batches), connection) if batches else None
            return end, set_aside_from, pushed

        place, set_aside_from, pushed = await self._create_names({batch.queue for batch in batches}, work)
        self._remember(pushed)
        return Drained(place, None if pushed is None else pushed.result, set_aside_from)


def _system(rows: list[Any]) -> System:
    identity, push, pop = rows[0]
    return System(id=UUID(str(identity)), push_maintenance=push, pop_maintenance=pop)

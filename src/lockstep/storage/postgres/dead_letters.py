"""Dead letters: list, get, redrive, purge."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import asyncpg

from lockstep.core.messages import Run, redriven
from lockstep.core.records import DeadLetter, DeadLetterFilter, DeadLetterPage
from lockstep.errors import DeadLetterNotFound
from lockstep.storage.postgres import pushing, sql
from lockstep.storage.postgres.shared import Shared

_DELETE = "delete from lockstep.dead_letter where id = any ($1::bigint[])"


class DeadLetters(Shared):
    async def dead_letters(self, where: DeadLetterFilter, *, limit: int = 100, offset: int = 0) -> DeadLetterPage:
        filters = _filters(where)
        rows = await self._query("dead_letter_list", *filters, limit, offset)
        total = (await self._query("dead_letter_count", *filters))[0][0]
        runs = await self._load_single([row[5:] for row in rows])
        return DeadLetterPage(items=_letters(rows, runs), total=total)

    async def dead_letter(self, dead_letter_id: int) -> DeadLetter:
        page = await self.dead_letters(DeadLetterFilter(ids=(dead_letter_id,)), limit=1)
        if not page.items:
            raise DeadLetterNotFound(f"there is no dead letter {dead_letter_id}", id=dead_letter_id)
        return page.items[0]

    async def redrive(self, where: DeadLetterFilter, *, limit: int = 1000) -> int:
        async def work(connection: asyncpg.Connection[Any]) -> tuple[int, pushing.Pushed | None]:
            query = sql.query("dead_letter_take")
            rows = await self.database.on(connection, "dead_letter_take", query, *_filters(where), limit)
            if not rows:
                return 0, None
            letters = _letters(rows, await self._load_single([row[5:] for row in rows], connection))
            batches = [redriven(letter.message) for letter in letters]
            conversation = pushing.push(batches, self.names, encryption=self.encryption, at=self.now(), overtake=True)
            pushed = await self._converse(conversation, connection)
            await self.database.on(connection, "dead_letter_delete", _DELETE, [row[0] for row in rows])
            return len(letters), pushed

        count, pushed = await self.database.transaction(work)
        for segment_id, segment in pushed.segments if pushed else ():
            self.segments.put(segment_id, segment)
        return count

    async def purge(self, where: DeadLetterFilter) -> int:
        return len(await self._query("dead_letter_purge", *_filters(where)))


def _filters(where: DeadLetterFilter) -> Sequence[Any]:
    ids = None if where.ids is None else list(where.ids)
    return (ids, where.queue, where.partition, where.group, where.from_at, where.to_at)


def _letters(rows: Sequence[Any], runs: Sequence[Run]) -> list[DeadLetter]:
    messages = {(run.partition_id, run.first_seq): run.message(0) for run in runs}
    return [
        DeadLetter(
            id=row[0],
            message=messages[row[7], row[8]],
            group=row[1],
            attempts=row[2],
            error=row[3],
            failed_at=row[4],
        )
        for row in rows
        if (row[7], row[8]) in messages
    ]

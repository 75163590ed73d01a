"""Dead letters: list, get, redrive, purge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import asyncpg
import msgspec

from lockstep.core import refusals
from lockstep.core.messages import Message, Run, redriven
from lockstep.core.records import DeadLetter, DeadLetterFilter, DeadLetterPage
from lockstep.storage.postgres import pushing, sql
from lockstep.storage.postgres.delivery import Delivery

_TAKE_COPIES = "select lockstep.take_copies($1::bigint[], $2::bigint[], $3::uuid[], $4::bigint[], $5, $6::timestamptz)"
_LOOKED_AT = 5_000
"""So many dead letters are looked at by one statement that looks for those that may go."""
_DELETE = "delete from lockstep.dead_letter where id = any ($1::bigint[])"


class DeadLetters(Delivery):
    slice_messages_max: int

    async def dead_letters(self, where: DeadLetterFilter, *, limit: int = 100, offset: int = 0) -> DeadLetterPage:
        filters = _filters(where)
        rows = await self._query("dead_letter_list", *filters, limit, offset)
        total = (await self._query("dead_letter_count", *filters))[0][0]
        runs = await self._load_single([row[5:] for row in rows])
        return DeadLetterPage(items=_letters(rows, runs), total=total)

    async def dead_letter(self, dead_letter_id: int) -> DeadLetter:
        page = await self.dead_letters(DeadLetterFilter(ids=(dead_letter_id,)), limit=1)
        if not page.items:
            raise refusals.no_dead_letter(dead_letter_id)
        return page.items[0]

    async def redrive(self, where: DeadLetterFilter, *, limit: int = 1000, done: bool | None = None) -> int:
        with_done = where.ids is not None if done is None else done
        place: int | None = 0
        while place is not None:
            # Many may be passed over: each statement looks at some, and only what will go is locked.
            looking = (place, max(limit, _LOOKED_AT), limit, with_done, self.now())
            [[ids, place]] = await self._query("dead_letter_redrivable", *_filters(where), *looking)
            if ids and (count := await self._redrive(msgspec.structs.replace(where, ids=tuple(ids)), limit, with_done)):
                return count
        return 0

    async def _redrive(self, where: DeadLetterFilter, limit: int, with_done: bool) -> int:
        queues: set[str] = set()

        async def work(connection: asyncpg.Connection[Any]) -> tuple[int, pushing.Pushed | None]:
            query = sql.query("dead_letter_take")
            given = (*_filters(where), limit, self.now(), with_done)
            rows = await self.database.on(connection, "dead_letter_take", query, *given)
            letters = _letters(rows, await self._load_single([row[5:11] for row in rows], connection))
            queues.update(letter.message.queue for letter in letters)
            going = await self._without_copies(connection, letters, {row[0]: row[11:] for row in rows}, with_done)
            if not going:
                return 0, None
            batches = [redriven(letter.message) for letter in going]
            pushed = await self._converse(self._push_conversation(batches, overtake=True), connection)
            await self._delete_dead_letters(connection, [letter.id for letter in going])
            return len(going), replace(pushed, untold=True)

        count, pushed = await self._create_names(queues, work)
        self._remember(pushed)
        return count

    async def _without_copies(
        self,
        connection: asyncpg.Connection[Any],
        letters: Sequence[DeadLetter],
        copies: Mapping[int, Any],
        with_done: bool,
    ) -> list[DeadLetter]:
        """Take the copies of dead letters out of their dead queues, with all locks that are needed to push the messages
        again; returns those with whose copies nobody is at work, or has been."""
        if not letters:
            return []
        batches = [redriven(letter.message) for letter in letters]
        await self._converse(pushing.resolve(batches, self.names, at=self.now()), connection)
        partition_ids, seqs = zip(*(copies[letter.id] for letter in letters), strict=True)
        await self._lock_for(connection, [], batches, also=[one for one in partition_ids if one is not None])
        origins = [letter.message for letter in letters]
        free = await self._take_copies(connection, partition_ids, seqs, origins, with_done=with_done)
        return [letter for letter, is_free in zip(letters, free, strict=True) if is_free]

    async def _take_copies(
        self,
        connection: asyncpg.Connection[Any],
        partition_ids: Sequence[int | None],
        seqs: Sequence[int | None],
        origins: Sequence[Message],
        *,
        with_done: bool,
    ) -> list[bool]:
        """Remove the copies of messages, where they have one, from partitions that are locked. False for one that is
        under a live lease, or is done, unless `with_done`. A copy has the trace id of its message."""
        trace_ids = [origin.trace_id for origin in origins]
        given = (list(partition_ids), list(seqs), trace_ids, [origin.partition_id for origin in origins])
        rows = await self.database.on(connection, "take_copies", _TAKE_COPIES, *given, with_done, self.now())
        free: list[bool] = rows[0][0]
        return free

    async def _delete_dead_letters(self, connection: asyncpg.Connection[Any], ids: Sequence[int]) -> None:
        await self.database.on(connection, "dead_letter_delete", _DELETE, list(ids))

    async def purge(self, where: DeadLetterFilter) -> int:
        purged = 0
        place: int | None = 0
        while place is not None:
            [[gone, place]] = await self._query("dead_letter_purge", *_filters(where), place, self.slice_messages_max)
            purged += gone
        return purged


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

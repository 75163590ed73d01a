"""Dead letters: finding, redriving and purging them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import asyncpg
import msgspec

from lockstep.core import refusals
from lockstep.core.dead_queue import Origin, origin_of, sent_back
from lockstep.core.messages import Message, Run, redriven
from lockstep.core.records import DeadLetter, DeadLetterFilter, DeadLetterPage
from lockstep.storage.postgres import sql
from lockstep.storage.postgres.context import Context
from lockstep.storage.postgres.failures import StaleName
from lockstep.storage.postgres.lookups import Lookups
from lockstep.storage.postgres.push.conversation import Pushed
from lockstep.storage.postgres.push.pushes import Pushes
from lockstep.storage.postgres.segments import SegmentReader

_TAKE_COPIES: sql.Procedure[list[bool]] = sql.procedure("take_copies")
_LOOKED_AT = 5_000
"""Maximum number of dead letters that one statement examines for removal."""
_DELETE = "delete from lockstep.dead_letter where id = any ($1::bigint[])"
_TAKE_DEAD: sql.Procedure[list[bool]] = sql.procedure("take_dead")


class PostgresDeadLetters:
    """Dead letters, and the way back from a dead queue."""

    def __init__(self, context: Context, lookups: Lookups, reader: SegmentReader, pushes: Pushes) -> None:
        self._context = context
        self._lookups = lookups
        self._reader = reader
        self._pushes = pushes

    async def dead_letters(self, where: DeadLetterFilter, *, limit: int = 100, offset: int = 0) -> DeadLetterPage:
        filters = _filters(where)
        rows = await self._context.query("dead_letter_list", *filters, limit, offset)
        [[total]] = await self._context.query("dead_letter_count", *filters)
        return DeadLetterPage(items=_letters(rows, await self._reader.load_single(rows)), total=total)

    async def dead_letter(self, dead_letter_id: int) -> DeadLetter:
        page = await self.dead_letters(DeadLetterFilter(ids=(dead_letter_id,)), limit=1)
        if not page.items:
            raise refusals.no_dead_letter(dead_letter_id)
        return page.items[0]

    async def redrive(self, where: DeadLetterFilter, *, limit: int = 1000, done: bool | None = None) -> int:
        with_done = where.ids is not None if done is None else done
        place: int | None = 0
        while place is not None:
            # Many may be skipped: each statement examines some, and locks only those that it removes.
            looking = (place, max(limit, _LOOKED_AT), limit, with_done, self._context.now())
            [[ids, place]] = await self._context.query("dead_letter_redrivable", *_filters(where), *looking)
            if ids and (count := await self._redrive(msgspec.structs.replace(where, ids=tuple(ids)), limit, with_done)):
                return count
        return 0

    async def _redrive(self, where: DeadLetterFilter, limit: int, with_done: bool) -> int:
        queues: set[str] = set()

        async def work(connection: asyncpg.Connection[Any]) -> tuple[int, Pushed | None]:
            query = sql.query("dead_letter_take")
            given = (*_filters(where), limit, self._context.now(), with_done)
            rows = await self._context.database.on(connection, "dead_letter_take", query, *given)
            letters = _letters(rows, await self._reader.load_single(rows, connection))
            queues.update(letter.message.queue for letter in letters)
            going = await self._without_copies(connection, letters, {row["id"]: row for row in rows}, with_done)
            if not going:
                return 0, None
            batches = [redriven(letter.message) for letter in going]
            pushed = await self._pushes.on(connection, batches, overtake=True)
            await self.delete(connection, [letter.id for letter in going])
            return len(going), replace(pushed, untold=True)

        count, pushed = await self._pushes.creating(queues, work)
        self._pushes.remember(pushed)
        return count

    async def _without_copies(
        self,
        connection: asyncpg.Connection[Any],
        letters: Sequence[DeadLetter],
        copies: Mapping[int, Any],
        with_done: bool,
    ) -> list[DeadLetter]:
        """Remove the copies of dead letters from their dead queues, taking all locks that the following push needs.
        Returns the dead letters whose copies are neither leased nor completed."""
        if not letters:
            return []
        batches = [redriven(letter.message) for letter in letters]
        await self._pushes.resolve(connection, batches)
        partition_ids = [copies[letter.id]["copy_partition_id"] for letter in letters]
        seqs = [copies[letter.id]["copy_seq"] for letter in letters]
        await self._pushes.lock(connection, [], batches, also=[one for one in partition_ids if one is not None])
        origins = [letter.message for letter in letters]
        free = await self.take_copies(connection, partition_ids, seqs, origins, with_done=with_done)
        return [letter for letter, is_free in zip(letters, free, strict=True) if is_free]

    async def take_copies(
        self,
        connection: asyncpg.Connection[Any],
        partition_ids: Sequence[int | None],
        seqs: Sequence[int | None],
        origins: Sequence[Message],
        *,
        with_done: bool,
    ) -> list[bool]:
        """Remove the copies of messages, if any, from locked partitions. False for a copy that is under a live lease,
        or completed, unless `with_done`. A copy has the trace id of its message."""
        call = _TAKE_COPIES(
            partition_ids=list(partition_ids),
            seqs=list(seqs),
            trace_ids=[origin.trace_id for origin in origins],
            origin_ids=[origin.partition_id for origin in origins],
            with_done=with_done,
            at=self._context.now(),
        )
        return await self._context.database.value(call, connection)

    async def delete(self, connection: asyncpg.Connection[Any], ids: Sequence[int]) -> None:
        await self._context.database.on(connection, "dead_letter_delete", _DELETE, list(ids))

    async def redrive_queue(self, queue: str, *, limit: int = 1000) -> int:
        queue_id = await self._lookups.queue_id(queue)
        chosen = [one async for one in self._copies(queue_id, limit)]
        if not chosen:
            return 0
        queues = {origin.queue for _, origin in chosen}

        async def work(connection: asyncpg.Connection[Any]) -> tuple[int, Pushed]:
            batches = [sent_back(message, origin) for message, origin in chosen]
            await self._pushes.resolve(connection, batches)
            origins = [self._known_partition(origin) for _, origin in chosen]
            await self._pushes.lock(connection, [], batches, also=[message.partition_id for message, _ in chosen])
            taken = await self._context.database.value(
                _TAKE_DEAD(**_places(chosen, origins), at=self._context.now()), connection
            )
            going = [batch for batch, is_taken in zip(batches, taken, strict=True) if is_taken]
            pushed = await self._pushes.on(connection, going, overtake=True)
            return len(going), replace(pushed, untold=True)

        count, pushed = await self._pushes.creating(queues, work)
        self._pushes.remember(pushed)
        return count

    async def _copies(self, queue_id: int, limit: int) -> AsyncIterator[tuple[Message, Origin]]:
        """Messages of the dead queue that may go back to an existing queue, with their origins."""
        place = (0, 0)
        found = 0
        while found < limit:
            rows = await self._context.query("dead_copies", queue_id, *place, limit, self._context.now())
            for run in await self._reader.load_single(rows):
                message = run.message(0)
                origin = origin_of(message)
                if origin is None or found == limit or await self._lookups.queue(origin.queue) is None:
                    continue
                found += 1
                yield message, origin
            if len(rows) < limit:
                return
            place = (rows[-1]["partition_id"], rows[-1]["seq"])

    def _known_partition(self, origin: Origin) -> int:
        names = self._context.names.get(origin.queue)
        found = None if names is None else names.partitions.get(origin.partition)
        if found is None:
            raise StaleName("a name was forgotten in the meantime")
        return found

    async def purge(self, where: DeadLetterFilter) -> int:
        purged = 0
        place: int | None = 0
        while place is not None:
            [[gone, place]] = await self._context.query(
                "dead_letter_purge", *_filters(where), place, self._context.limits.slice_messages_max
            )
            purged += gone
        return purged


def _filters(where: DeadLetterFilter) -> Sequence[Any]:
    ids = None if where.ids is None else list(where.ids)
    return (ids, where.queue, where.partition, where.group, where.from_at, where.to_at)


def _letters(rows: Sequence[Any], runs: Sequence[Run]) -> list[DeadLetter]:
    messages = {(run.partition_id, run.first_seq): run.message(0) for run in runs}
    fields = ("id", "group", "attempts", "error", "failed_at")
    return [
        DeadLetter(message=message, **{name: row[name] for name in fields})
        for row in rows
        if (message := messages.get((row["partition_id"], row["seq"]))) is not None
    ]


def _places(chosen: Sequence[tuple[Message, Origin]], origins: Sequence[int]) -> dict[str, list[Any]]:
    return {
        "partition_ids": [message.partition_id for message, _ in chosen],
        "seqs": [message.seq for message, _ in chosen],
        "trace_ids": [message.trace_id for message, _ in chosen],
        "origin_ids": list(origins),
        "origin_seqs": [origin.seq for _, origin in chosen],
        "origin_groups": [origin.group for _, origin in chosen],
    }

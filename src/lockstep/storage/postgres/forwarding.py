"""Messages that die in a queue with a dead queue: pushed there in the transaction that records their death.

A call in which such a message dies is refused by the database (`sql/procedures/dead_queue.sql`) and changes nothing;
it is then repeated here, in a transaction that pushes what died in it before it commits. Deaths are rare, so that the
others need no transaction of several statements.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import datetime
from typing import Any, TypeVar

import asyncpg

from lockstep.core.dead_queue import dead_copy
from lockstep.core.messages import Batch, PushResult, Run
from lockstep.core.records import arrivals_of
from lockstep.storage.postgres import pushing, sql
from lockstep.storage.postgres.cache import NameCache, Segment, SegmentCache
from lockstep.storage.postgres.calls import Call, Conversation
from lockstep.storage.postgres.failures import StaleName
from lockstep.storage.postgres.pushing import Encryption
from lockstep.storage.postgres.shared import Shared, decode_segment

T = TypeVar("T")

_LOCK = "select lockstep.lock_for_transaction('{}'::int[], $1::bigint[], $2::uuid[])"
_TAKE = "select * from lockstep.take_forwards()"
_NOTE = "select lockstep.note_copies($1::bigint[], $2::bigint[], $3::bigint[])"
_HURRY = "set local lock_timeout = '100ms'"

_COPIED_AT_ONCE = 10_000
_COPIED_BYTES = 32 * 1024 * 1024
"""So many messages, and no more bytes than this and one message, are pushed to a dead queue by one call of push."""


def forward(
    names: NameCache,
    *,
    encryption: Encryption,
    at: datetime | None,
    cache: SegmentCache | None = None,
    queues: set[str] | None = None,
) -> Conversation[pushing.Pushed | None]:
    """Push copies of what died in this transaction, and write down where they are; `queues` is told the names of those
    to which, before anything is pushed. None: nothing died whose queue has a dead queue."""
    rows = yield Call("take_forwards", _TAKE, [])
    if not rows:
        return None
    if queues is not None:
        queues.update(row[0] for row in rows)
    parts: list[pushing.Pushed] = []
    segments: dict[int, Segment] = {}
    for start in range(0, len(rows), _COPIED_AT_ONCE):
        part = rows[start : start + _COPIED_AT_ONCE]
        segments = yield from _load({row[8] for row in part}, segments, encryption, cache)
        copies = [_copy(row, segments) for row in part]
        for batches in _within_bytes(copies):
            pushed = yield from pushing.push(batches, names, encryption=encryption, at=at, overtake=True)
            parts.append(pushed)
    whole = _joined(parts)
    places = whole.result.placements
    noted = [[row[10] for row in rows], [one.partition_id for one in places], [one.first_seq for one in places]]
    yield Call("note_copies", _NOTE, noted)
    return whole


def _within_bytes(copies: Sequence[Batch]) -> Iterator[list[Batch]]:
    """The copies in parts that a segment has room for."""
    part: list[Batch] = []
    size = 0
    for copy in copies:
        if part and size >= _COPIED_BYTES:
            yield part
            part, size = [], 0
        part.append(copy)
        size += len(copy.columns.payloads[0])
    yield part


def _joined(parts: Sequence[pushing.Pushed]) -> pushing.Pushed:
    """What was pushed one after the other, as one. Where it is much, it is not worth a place in a cache."""
    batches = [batch for part in parts for batch in part.result.batches]
    placements = [placement for part in parts for placement in part.result.placements]
    segments = parts[0].segments if len(parts) == 1 else []
    return pushing.Pushed(PushResult(batches, placements), segments, untold=True)


def _load(
    ids: set[int], known: dict[int, Segment], encryption: Encryption, cache: SegmentCache | None
) -> Conversation[dict[int, Segment]]:
    found = {one: known[one] for one in ids & known.keys()}
    if cache is not None:
        found.update({one: segment for one in ids - found.keys() if (segment := cache.get(one)) is not None})
    missing = list(ids - found.keys())
    if missing:
        rows = yield Call("segment_load", sql.query("segment_load"), [missing])
        found.update((row[0], decode_segment(row, encryption.key)) for row in rows)
    return found


def _copy(row: Any, segments: dict[int, Segment]) -> Batch:
    dead_queue, partition, group, attempts, error, queue, partition_id, seq, segment_id, ordinal, _ = row
    segment = segments.get(segment_id)
    if segment is None:
        raise StaleName("the segment of a message that dies is gone")
    columns = segment.columns.slice(ordinal, ordinal + 1)
    run = Run(queue, partition, partition_id, seq, segment.uuid, ordinal, segment.created_at, columns)
    return dead_copy(run.message(0), dead_queue, group=group, attempts=attempts, error=error)


class Forwarding(Shared):
    async def _forwarding(
        self,
        work: Callable[[asyncpg.Connection[Any]], Awaitable[T]],
        *,
        partition_ids: Sequence[int] = (),
        lease_ids: Sequence[str | None] = (),
        hurry: bool = False,
    ) -> T:
        """Run `work` in a transaction, and push what dies in it; the partitions where that may be are locked first.

        `hurry`: they are not known, so that `work` holds cursors when the targets are locked. That is against the order
        of locks; nobody waits long for it, and the transaction is tried again.
        """
        queues: set[str] = set()

        async def forwarded(connection: asyncpg.Connection[Any]) -> tuple[T, pushing.Pushed | None]:
            locks = (list(partition_ids), list(lease_ids))
            await self.database.on(connection, "lock_for_transaction", _LOCK, *locks)
            result = await work(connection)
            if hurry:
                await connection.execute(_HURRY)
            try:
                return result, await self._forward(connection, queues)
            except asyncpg.LockNotAvailableError as error:
                raise asyncpg.SerializationError("the partition for dead letters is held") from error
            except StaleName as error:
                self._forget(queues)
                raise asyncpg.SerializationError("the dead queue changed in this moment") from error

        try:
            result, pushed = await self.database.transaction(forwarded)
        except BaseException:
            self._forget(queues)  # ids that were learned in it may be of what was not created after all
            raise
        self._remember(pushed)
        return result

    async def _forward(self, connection: asyncpg.Connection[Any], queues: set[str]) -> pushing.Pushed | None:
        """Push what died in this transaction; `queues` is told the names of those to which."""
        at, cache = self.now(), self.segments
        conversation = forward(self.names, encryption=self.encryption, at=at, cache=cache, queues=queues)
        return await self._converse(conversation, connection)

    def _remember(self, pushed: pushing.Pushed | None) -> None:
        """Consumers near the tail are served what was pushed here without reading it back; and those who wait for what
        no producer tells of are told."""
        if pushed is None:
            return
        for segment_id, segment in pushed.segments:
            self.segments.put(segment_id, segment)
        if pushed.untold:
            self._tell(arrivals_of(pushed.result.batches))

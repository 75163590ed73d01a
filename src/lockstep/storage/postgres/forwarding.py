"""Dead letters of a queue with a dead queue: pushed there in the transaction that records them.

The database refuses a call that would make such a dead letter (`sql/procedures/dead_queue.sql`), and changes nothing.
The call is then repeated here, in a transaction that pushes the new dead letters before it commits. Dead letters are
rare, and other calls need no transaction of several statements.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

import asyncpg

from lockstep.core.dead_queue import dead_copy
from lockstep.core.messages import Batch, PushResult, Run
from lockstep.storage.postgres import sql
from lockstep.storage.postgres.cache import NameCache, Segment, SegmentCache
from lockstep.storage.postgres.calls import Conversation
from lockstep.storage.postgres.context import Context
from lockstep.storage.postgres.encryption import Encryption
from lockstep.storage.postgres.failures import StaleName
from lockstep.storage.postgres.lookups import Lookups
from lockstep.storage.postgres.push.conversation import Pushed, push_now
from lockstep.storage.postgres.push.pushes import LOCK, Pushes
from lockstep.storage.postgres.segments import LOAD_SEGMENTS, decode_segment

T = TypeVar("T")


class _Dead(NamedTuple):
    """A message that died in this transaction, and the dead queue for it."""

    dead_queue: str
    partition_name: str
    group_name: str
    attempts: int
    error: str | None
    queue_name: str
    partition_id: int
    seq: int
    segment_id: int
    ordinal: int
    id: int


_TAKE = sql.procedure("take_forwards", _Dead)
_NOTE: sql.Procedure[None] = sql.procedure("note_copies")
_HURRY = "set local lock_timeout = '100ms'"
_COPIED_AT_ONCE = 10_000
_COPIED_BYTES = 32 * 1024 * 1024
"""Maximum number of messages, and approximate maximum of bytes, that one call pushes to a dead queue."""


class Forwarding:
    """Pushes dead letters to the dead queues, in the transaction that records them."""

    def __init__(self, context: Context, lookups: Lookups, pushes: Pushes) -> None:
        self._context = context
        self._lookups = lookups
        self._pushes = pushes

    async def run(
        self,
        work: Callable[[asyncpg.Connection[Any]], Awaitable[T]],
        *,
        partition_ids: Sequence[int] = (),
        lease_ids: Sequence[str | None] = (),
        hurry: bool = False,
    ) -> T:
        """Run `work` in a transaction, and push the dead letters that it makes; the partitions concerned are locked
        first.

        With `hurry` these partitions are unknown, so `work` holds cursors when the targets are locked. That violates
        the order of locks, so the wait is brief and the transaction is retried.
        """
        queues: set[str] = set()

        async def forwarded(connection: asyncpg.Connection[Any]) -> tuple[T, Pushed | None]:
            lock = LOCK(queue_ids=[], partition_ids=list(partition_ids), lease_ids=list(lease_ids))
            await self._context.database.call(lock, connection)
            result = await work(connection)
            if hurry:
                await connection.execute(_HURRY)
            try:
                return result, await self.forward(connection, queues)
            except asyncpg.LockNotAvailableError as error:
                raise asyncpg.SerializationError("the partition for dead letters is held") from error
            except StaleName as error:
                self._lookups.forget(queues)
                raise asyncpg.SerializationError("the dead queue changed in the meantime") from error

        try:
            result, pushed = await self._context.database.transaction(forwarded)
        except BaseException:
            self._lookups.forget(queues)  # ids learned in it may belong to rows that were rolled back
            raise
        self._pushes.remember(pushed)
        return result

    async def forward(self, connection: asyncpg.Connection[Any], queues: set[str]) -> Pushed | None:
        """Push the dead letters of this transaction; the names of the target queues are added to `queues`."""
        at, cache = self._context.now(), self._context.segments
        conversation = forward(
            self._context.names, encryption=self._context.encryption, at=at, cache=cache, queues=queues
        )
        return await self._context.converse(conversation, connection)


def forward(
    names: NameCache,
    *,
    encryption: Encryption,
    at: datetime | None,
    cache: SegmentCache | None = None,
    queues: set[str] | None = None,
) -> Conversation[Pushed | None]:
    """Push copies of the dead letters of this transaction, and record their places. The names of the target queues are
    added to `queues` before anything is pushed. None if there are none in a queue with a dead queue."""
    rows: list[_Dead] = yield _TAKE()
    if not rows:
        return None
    if queues is not None:
        queues.update(row.dead_queue for row in rows)
    parts: list[Pushed] = []
    segments: dict[int, Segment] = {}
    for start in range(0, len(rows), _COPIED_AT_ONCE):
        part = rows[start : start + _COPIED_AT_ONCE]
        segments = yield from _load({row.segment_id for row in part}, segments, encryption, cache)
        copies = [_copy(row, segments) for row in part]
        for batches in _within_bytes(copies):
            pushed = yield from push_now(batches, names, encryption=encryption, at=at, overtake=True, bounded=False)
            parts.append(pushed)
    whole = _joined(parts)
    places = whole.result.placements
    yield _NOTE(
        ids=[row.id for row in rows],
        partition_ids=[one.partition_id for one in places],
        seqs=[one.first_seq for one in places],
    )
    return whole


def _within_bytes(copies: Sequence[Batch]) -> Iterator[list[Batch]]:
    """The copies in parts that fit into a segment."""
    part: list[Batch] = []
    size = 0
    for copy in copies:
        if part and size >= _COPIED_BYTES:
            yield part
            part, size = [], 0
        part.append(copy)
        size += len(copy.columns.payloads[0])
    yield part


def _joined(parts: Sequence[Pushed]) -> Pushed:
    """Several pushes as one result. A large result is not worth caching."""
    batches = [batch for part in parts for batch in part.result.batches]
    placements = [placement for part in parts for placement in part.result.placements]
    segments = parts[0].segments if len(parts) == 1 else []
    return Pushed(PushResult(batches, placements), segments, untold=True)


def _load(
    ids: set[int], known: dict[int, Segment], encryption: Encryption, cache: SegmentCache | None
) -> Conversation[dict[int, Segment]]:
    found = {one: known[one] for one in ids & known.keys()}
    if cache is not None:
        found.update({one: segment for one in ids - found.keys() if (segment := cache.get(one)) is not None})
    missing = list(ids - found.keys())
    if missing:
        rows = yield LOAD_SEGMENTS(ids=missing)
        found.update((segment_id, decode_segment((segment_id, *row), encryption)) for segment_id, *row in rows)
    return found


def _copy(row: _Dead, segments: dict[int, Segment]) -> Batch:
    segment = segments.get(row.segment_id)
    if segment is None:
        raise StaleName("the segment of a message that dies is gone")
    if segment.owners is not None:
        segment.owners.require(row.partition_id, row.ordinal, 1)
    place = (row.queue_name, row.partition_name, row.partition_id, row.seq)
    columns = segment.columns.slice(row.ordinal, row.ordinal + 1)
    message = Run(*place, segment.uuid, row.ordinal, segment.created_at, columns).message(0)
    return dead_copy(message, row.dead_queue, group=row.group_name, attempts=row.attempts, error=row.error)

"""What the parts of the PostgreSQL store share: names to ids, and runs to messages."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

import asyncpg

from lockstep.core import refusals
from lockstep.core.codec import Codec, decode, unseal
from lockstep.core.messages import Columns, Run
from lockstep.core.records import Arrival, FirstPollLimits
from lockstep.core.schedules import Timing
from lockstep.errors import Unavailable
from lockstep.storage.postgres import sql
from lockstep.storage.postgres.cache import Memory, NameCache, QueueNames, Segment, SegmentCache
from lockstep.storage.postgres.calls import Conversation, Work
from lockstep.storage.postgres.database import Database
from lockstep.storage.postgres.failures import StaleName
from lockstep.storage.postgres.pushing import Encryption
from lockstep.storage.postgres.query_log import QueryLog

T = TypeVar("T")

_STALE_ATTEMPTS_MAX = 20

_FIND_QUEUE = "select id, compression, encryption, max_size > 0 from lockstep.queue where name = $1"
_FIND_PARTITION = "select id from lockstep.partition where queue_id = $1 and name = $2"
_FIND_GROUP = "select id, mode, placed_upto is null from lockstep.consumer_group where queue_id = $1 and name = $2"


class Shared:
    """The state of a PostgreSQL store and its look-ups."""

    database: Database
    queries: QueryLog
    encryption: Encryption
    timing: Timing
    first_polls: FirstPollLimits
    figures_units_max: int
    """Lists count up to so many partitions and cursors themselves."""

    @property
    def memory(self) -> Memory:
        """What is remembered of the timeline that the call is on."""
        raise NotImplementedError

    @property
    def names(self) -> NameCache:
        return self.memory.names

    @property
    def segments(self) -> SegmentCache:
        return self.memory.segments

    def now(self) -> datetime | None:
        """The set time, or None where the database's clock rules."""
        raise NotImplementedError

    def _tell(self, arrivals: Mapping[str, Arrival]) -> None:
        """Tell those who wait, here and in other processes, what the store has pushed of its own accord."""
        raise NotImplementedError

    async def _query(self, name: str, *args: Any) -> list[Any]:
        """The rows of a query from `sql/queries`."""
        return await self.database.fetch(name, sql.query(name), *args)

    async def _converse(self, conversation: Conversation[T], connection: asyncpg.Connection[Any] | None = None) -> T:
        """Drive a conversation, each call a transaction of its own, or all on a connection that is in one."""
        given: Any
        try:
            step = next(conversation)
            while True:
                if isinstance(step, Work):
                    given = await asyncio.get_running_loop().run_in_executor(None, step.run)
                elif connection is None:
                    given = await self.database.fetch(step.name, step.sql, *step.args)
                else:
                    given = await self.database.on(connection, step.name, step.sql, *step.args)
                step = conversation.send(given)
        except StopIteration as stop:
            result: T = stop.value
            return result

    async def _with_names(
        self, queues: Collection[str], work: Callable[[], Awaitable[T]], *, forget: bool = False
    ) -> T:
        """Run `work`; if it finds a name out of date, forget what is known of the queues and run it again. With
        `forget` what it learned is forgotten, too, if it fails: what it has created is gone then."""
        for _ in range(_STALE_ATTEMPTS_MAX):
            try:
                return await work()
            except StaleName:
                self._forget(queues)
            except BaseException:
                if forget:
                    self._forget(queues)
                raise
        raise Unavailable("the queue's names kept changing during the call")

    def _forget(self, queues: Iterable[str]) -> None:
        for queue in queues:
            self.names.forget(queue)

    async def _find_queue(self, queue: str) -> QueueNames | None:
        known = self.names.get(queue)
        if known is None:
            rows = await self.database.fetch("queue_find", _FIND_QUEUE, queue)
            known = self.names.put(queue, QueueNames(*rows[0])) if rows else None
        return known

    async def _find_partition(self, queue: str, names: QueueNames, partition: str) -> int | None:
        found = names.partitions.get(partition)
        if found is None:
            rows = await self.database.fetch("partition_find", _FIND_PARTITION, names.id, partition)
            if rows:
                found = rows[0][0]
                self.names.put_partitions(queue, {partition: rows[0][0]}, of=names)
        return found

    async def _find_group(self, names: QueueNames, group: str) -> int | None:
        found = names.groups.get(group)
        if found is None:
            rows = await self.database.fetch("group_find", _FIND_GROUP, names.id, group)
            if rows:
                found = names.put_group(group, *rows[0])
        return found

    async def _queue_id(self, queue: str) -> int:
        """The queue's id, looked up anew: what an operator asks for must not come from memory."""
        self.names.forget(queue)
        names = await self._find_queue(queue)
        if names is None:
            raise refusals.no_queue(queue)
        return names.id

    async def _partition_id(self, queue: str, queue_id: int, partition: str) -> int:
        rows = await self.database.fetch("partition_find", _FIND_PARTITION, queue_id, partition)
        if not rows:
            raise refusals.no_partition(queue, partition)
        found: int = rows[0][0]
        return found

    async def _group_id(self, queue: str, queue_id: int, group: str) -> int:
        rows = await self.database.fetch("group_find", _FIND_GROUP, queue_id, group)
        if not rows:
            raise refusals.no_group(group, queue)
        found: int = rows[0][0]
        return found

    async def _load_segments(
        self, segment_ids: Iterable[int | None], connection: asyncpg.Connection[Any] | None = None
    ) -> dict[int, Segment]:
        """The segments, from memory where they are there. One that was removed meanwhile is not in the result."""
        loaded: dict[int, Segment] = {}
        missing: list[int] = []
        for segment_id in set(segment_ids):
            if segment_id is None:
                continue
            segment = self.segments.get(segment_id)
            if segment is None:
                missing.append(segment_id)
            else:
                loaded[segment_id] = segment
        if missing:
            query = sql.query("segment_load")
            if connection is None:
                rows = await self.database.fetch("segment_load", query, missing)
            else:
                rows = await self.database.on(connection, "segment_load", query, missing)
            for row in rows:
                segment = decode_segment(row, self.encryption.key)
                self.segments.put(row[0], segment)
                loaded[row[0]] = segment
        return loaded

    async def _load_single(self, rows: Sequence[Any], connection: asyncpg.Connection[Any] | None = None) -> list[Run]:
        """Single messages, as runs of one, from rows of (queue, partition, partition id, seq, segment id, ordinal)."""
        segments = await self._load_segments((row[4] for row in rows), connection)
        runs = []
        for queue, partition, partition_id, seq, segment_id, ordinal in rows:
            segment = segments.get(segment_id)
            if segment is not None:
                columns = segment.columns.slice(ordinal, ordinal + 1)
                runs.append(
                    Run(
                        queue,
                        partition,
                        partition_id,
                        seq,
                        segment.uuid,
                        ordinal,
                        segment.created_at,
                        columns,
                    )
                )
        return runs


def decode_segment(row: Any, key: bytes | None) -> Segment:
    """A segment from a row of `segment_load`."""
    if row[3] == Codec.PLAIN:
        columns = Columns(row[5], row[6], _texts(row[7]), row[8], row[9], row[10], row[11], row[12], row[13])
        return Segment(row[1], row[2], columns, sum(map(len, columns.payloads)))
    layout = unseal(row[3], row[4], key=key)
    columns = decode(layout)
    columns.expires_at = row[13]
    return Segment(row[1], row[2], columns, len(layout))


def _texts(uuids: list[Any] | None) -> list[str | None] | None:
    return None if uuids is None else [None if uuid is None else str(uuid) for uuid in uuids]

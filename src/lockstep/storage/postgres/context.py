"""What the rooms of a PostgreSQL store share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

import asyncpg

from lockstep.config import Config
from lockstep.core.records import FirstPollLimits
from lockstep.core.schedules import Timing
from lockstep.storage.postgres import sql
from lockstep.storage.postgres.cache import Memory, NameCache, SegmentCache
from lockstep.storage.postgres.calls import Conversation, Work
from lockstep.storage.postgres.database import Database
from lockstep.storage.postgres.encryption import Encryption
from lockstep.storage.postgres.listen import Signals
from lockstep.storage.postgres.query_log import QueryLog
from lockstep.storage.postgres.timelines import current_span

T = TypeVar("T")


@dataclass(slots=True)
class StoreLimits:
    """Limits of one statement or one call."""

    slice_messages_max: int
    slice_partitions_max: int
    slices_seconds_max: float
    expire_seconds_max: float
    figures_units_max: int
    """Lists count up to this many partitions and cursors themselves."""
    samples_partitions_max: int
    queue_groups_max: int
    page_looked_into_max: int
    call_lock_seconds: float
    lock_timeout_seconds: float

    @classmethod
    def of(cls, config: Config) -> StoreLimits:
        return cls(
            slice_messages_max=config.slice_messages_max,
            slice_partitions_max=config.slice_partitions_max,
            slices_seconds_max=config.slices_seconds_max,
            expire_seconds_max=config.expire_seconds_max,
            figures_units_max=config.figures_exact_max,
            samples_partitions_max=config.samples_partitions_max,
            queue_groups_max=config.queue_groups_max,
            page_looked_into_max=config.page_looked_into_max,
            call_lock_seconds=config.call_lock_seconds,
            lock_timeout_seconds=config.lock_timeout_seconds,
        )


class Context:
    """The database of a store, its caches, and the settings that its rooms follow."""

    def __init__(
        self, database: Database, config: Config, *, clock: Callable[[], datetime] | None, queries: QueryLog
    ) -> None:
        self.database = database
        self.queries = queries
        self.encryption = Encryption.of(config)
        self.timing = Timing(config.schedule_min_seconds, config.cron_late_seconds_max)
        self.first_polls = FirstPollLimits(config.first_polls_max, config.first_poll_seconds_max)
        self.limits = StoreLimits.of(config)
        self._clock = clock
        self._memory = Memory(0, NameCache.of(config), SegmentCache(config.segment_cache_bytes_max))
        self.signals = Signals(database, self._latest_memory)

    def now(self) -> datetime | None:
        """The time of the test clock, or None to use the database's clock."""
        return None if self._clock is None else self._clock()

    @property
    def memory(self) -> Memory:
        """The caches of the timeline that the call is on."""
        span = current_span()
        return self._memory if span is None or not span.is_open or span.owner is not self else span.memory

    @property
    def names(self) -> NameCache:
        return self.memory.names

    @property
    def segments(self) -> SegmentCache:
        return self.memory.segments

    def remembered(self) -> Memory:
        """The caches of the timeline that the database is on now. Raises Unavailable if it is closed."""
        epoch = self.database.epoch
        if self._memory.epoch != epoch:
            self._memory = self._memory.renewed(epoch)
        return self._memory

    def _latest_memory(self) -> Memory:
        return self._memory

    async def query(self, name: str, *args: Any) -> list[Any]:
        """The rows of a query from `sql/queries`."""
        return await self.database.fetch(name, sql.query(name), *args)

    async def converse(self, conversation: Conversation[T], connection: asyncpg.Connection[Any] | None = None) -> T:
        """Drive a conversation: each call in a transaction of its own, or all on a connection that is in a
        transaction."""
        given: Any
        try:
            step = next(conversation)
            while True:
                if isinstance(step, Work):
                    given = await asyncio.get_running_loop().run_in_executor(None, step.run)
                else:
                    given = await self.database.call(step, connection)
                step = conversation.send(given)
        except StopIteration as stop:
            result: T = stop.value
            return result

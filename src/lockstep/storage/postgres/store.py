"""The PostgreSQL store: a short method per SQL procedure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime

from lockstep.config import Config, load
from lockstep.core.records import Arrival, FirstPollLimits
from lockstep.core.schedules import Timing
from lockstep.core.statistics import QueryHook
from lockstep.errors import Unavailable
from lockstep.storage.postgres.cache import Memory, NameCache, SegmentCache
from lockstep.storage.postgres.clearing import Clearing
from lockstep.storage.postgres.database import Database
from lockstep.storage.postgres.dead_letters import DeadLetters
from lockstep.storage.postgres.failures import caused_by, may_retry_connect, translate
from lockstep.storage.postgres.inspection import Inspection
from lockstep.storage.postgres.listen import Hear, Signals
from lockstep.storage.postgres.maintenance import Maintenance
from lockstep.storage.postgres.message_admin import MessageAdmin
from lockstep.storage.postgres.migrate import check_schema, migrate
from lockstep.storage.postgres.operation_queue import OperationQueue
from lockstep.storage.postgres.overview import Overviews
from lockstep.storage.postgres.pool import PoolSettings
from lockstep.storage.postgres.pushing import Encryption
from lockstep.storage.postgres.query_log import QueryLog
from lockstep.storage.postgres.schedules import Schedules
from lockstep.storage.postgres.spans import in_spans
from lockstep.storage.postgres.spools import Spools
from lockstep.storage.postgres.statistics import Statistics
from lockstep.storage.postgres.streams import Streams
from lockstep.storage.postgres.timelines import current_span
from lockstep.storage.postgres.traces import Traces
from lockstep.storage.postgres.verifying import Verifying
from lockstep.storage.postgres.work_queues import WorkQueues


@in_spans
class PostgresStore(
    OperationQueue,
    Streams,
    MessageAdmin,
    Schedules,
    WorkQueues,
    Clearing,
    Inspection,
    Overviews,
    DeadLetters,
    Traces,
    Maintenance,
    Verifying,
    Statistics,
    Spools,
):
    """Queues in PostgreSQL 15 or newer. `clock` sets the time for tests; without it the database's clock rules. With a
    breaker calls fail at once while the database is away, and who watches is told; it may be away from the beginning,
    and is migrated when it comes."""

    def __init__(
        self,
        dsn: str,
        *,
        config: Config | None = None,
        clock: Callable[[], datetime] | None = None,
        on_query: QueryHook | None = None,
        breaker: bool = False,
    ) -> None:
        config = config or load(environ={})
        self.queries = QueryLog(config.slow_query_seconds, on_query)
        self.database = Database(dsn, _pool_settings(config, breaker=breaker), on_query=self.queries.note)
        names, segments = NameCache(config.partition_cache_entries_max), SegmentCache(config.segment_cache_bytes_max)
        self._memory = Memory(0, names, segments)
        self.encryption = Encryption.of(config)
        self.timing = Timing(config.schedule_min_seconds, config.cron_late_seconds_max)
        self.first_polls = FirstPollLimits(config.first_polls_max, config.first_poll_seconds_max)
        self.slice_messages_max = config.slice_messages_max
        self.slice_partitions_max = config.slice_partitions_max
        self.figures_units_max = config.figures_exact_max
        self.samples_partitions_max = config.samples_partitions_max
        self.expire_seconds_max = config.expire_seconds_max
        self.slices_seconds_max = config.slices_seconds_max
        self._clock = clock
        self._breaker = breaker
        self._signals = Signals(self.database, self._memory_now)

    def now(self) -> datetime | None:
        return None if self._clock is None else self._clock()

    @property
    def memory(self) -> Memory:
        span = current_span()
        return self._memory if span is None or span.owner is not self else span.memory

    def remembered(self) -> Memory:
        """What is remembered of the timeline that the database is on now. Raises Unavailable if it is closed."""
        epoch = self.database.epoch
        if self._memory.epoch != epoch:
            self._memory = self._memory.renewed(epoch)
        return self._memory

    def _memory_now(self) -> Memory:
        return self._memory

    async def open(self) -> None:
        self.database.reopen()
        try:
            async with self.database.connection() as connection:
                await migrate(connection)
        except Exception as error:
            cause = error.__cause__ if isinstance(error, Unavailable) else error
            # What a server says to us is for people to see to; one that is not there may come.
            if not self._breaker or not isinstance(cause, Exception) or not may_retry_connect(cause):
                raise caused_by(translate(error), error)  # noqa: B904
            self.database.take_for_away(cause, prepare=migrate)

    async def close(self) -> None:
        await self._signals.close()
        await self.database.close()

    async def ping(self) -> None:
        await self.database.fetch("ping", "select 1")

    async def ready(self) -> None:
        async with self.database.connection() as connection:
            await check_schema(connection)

    async def listen(self, hear: Hear, *, waiting: Callable[[], bool]) -> None:
        await self._signals.listen(hear, waiting)

    def expect_signals(self) -> None:
        self._signals.expect()

    def announce(self, arrivals: Mapping[str, Arrival]) -> None:
        self._signals.announce(arrivals)

    def _tell(self, arrivals: Mapping[str, Arrival]) -> None:
        self._signals.tell(arrivals)

    def watch(self, *, there: Callable[[bool], None], changed: Callable[[], None]) -> None:
        self._signals.changed = changed
        self.database.watch(there)


def _pool_settings(config: Config, *, breaker: bool) -> PoolSettings:
    return PoolSettings(
        connections_max=config.pool_connections_max,
        connect_timeout_seconds=config.connect_timeout_seconds,
        connect_attempts_max=config.connect_attempts_max,
        statement_timeout_seconds=config.statement_timeout_seconds,
        lock_timeout_seconds=config.lock_timeout_seconds,
        lock_watch_seconds=config.lock_watch_seconds,
        idle_transaction_timeout_seconds=config.idle_transaction_timeout_seconds,
        client_check_seconds=config.client_check_seconds,
        keepalive_seconds=config.keepalive_seconds,
        transaction_attempts_max=config.transaction_attempts_max,
        passes_max=config.expire_messages_max,
        breaker_failures_max=config.breaker_failures_max if breaker else 0,
        breaker_open_seconds=config.breaker_open_seconds,
        breaker_silent_seconds=config.breaker_silent_seconds,
    )

"""The PostgreSQL store: its rooms over one database, and its lifecycle."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from inspect import iscoroutinefunction
from typing import Any, ParamSpec, TypeVar, cast

from lockstep.config import Config, load
from lockstep.core.records import Arrival
from lockstep.core.statistics import QueryHook
from lockstep.errors import Unavailable
from lockstep.storage.composition import ComposedStore, Rooms
from lockstep.storage.postgres.access import PostgresAccess
from lockstep.storage.postgres.consistency import PostgresConsistency
from lockstep.storage.postgres.context import Context
from lockstep.storage.postgres.database import Database
from lockstep.storage.postgres.dead_letters import PostgresDeadLetters
from lockstep.storage.postgres.delivery import PostgresDelivery
from lockstep.storage.postgres.failures import caused_by, may_retry_connect, translate
from lockstep.storage.postgres.first_polls import PostgresFirstPolls
from lockstep.storage.postgres.forwarding import Forwarding
from lockstep.storage.postgres.groups import PostgresGroups
from lockstep.storage.postgres.inspection import PostgresInspection
from lockstep.storage.postgres.listen import Hear
from lockstep.storage.postgres.lookups import Lookups
from lockstep.storage.postgres.maintenance import PostgresMaintenance
from lockstep.storage.postgres.messages import PostgresMessages
from lockstep.storage.postgres.migrate import check_schema, migrate
from lockstep.storage.postgres.operations import PostgresOperations
from lockstep.storage.postgres.placing import Placing
from lockstep.storage.postgres.pool import PoolSettings
from lockstep.storage.postgres.pop import Pops
from lockstep.storage.postgres.push.pushes import Pushes
from lockstep.storage.postgres.query_log import QueryLog
from lockstep.storage.postgres.queues import PostgresQueues
from lockstep.storage.postgres.removal import QueueRemoval
from lockstep.storage.postgres.schedules import PostgresSchedules
from lockstep.storage.postgres.seals import PostgresSeals
from lockstep.storage.postgres.segments import SegmentReader
from lockstep.storage.postgres.spans import in_span
from lockstep.storage.postgres.spools import PostgresSpools
from lockstep.storage.postgres.streams import PostgresStreams
from lockstep.storage.postgres.timelines import provide_ids
from lockstep.storage.postgres.traces import PostgresTraces

P = ParamSpec("P")
R = TypeVar("R")


class PostgresStore(ComposedStore):
    """Queues in PostgreSQL 15 or newer. `clock` sets the time for tests; without it, the database's clock applies. With
    a breaker, calls fail at once while the database is unavailable, and watchers are notified. The database may be
    unavailable at start; migrations run once it is reachable."""

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
        queries = QueryLog(config.slow_query_seconds, on_query)
        database = Database(dsn, _pool_settings(config, breaker=breaker), on_query=queries.note)
        self.context = context = Context(database, config, clock=clock, queries=queries)
        self._breaker = breaker
        lookups, reader, placing = Lookups(context), SegmentReader(context), Placing(context)
        removal = QueueRemoval(context, reader)
        pushes = Pushes(context, lookups)
        forwarding = Forwarding(context, lookups, pushes)
        pops = Pops(context, lookups, reader, forwarding, placing, PostgresFirstPolls(context))
        dead_letters = PostgresDeadLetters(context, lookups, reader, pushes)
        super().__init__(
            Rooms(
                delivery=PostgresDelivery(context, lookups, pushes, pops, forwarding),
                queues=PostgresQueues(context, lookups, removal),
                groups=PostgresGroups(context, lookups, placing),
                messages=PostgresMessages(context, lookups, reader, pushes, forwarding, dead_letters),
                dead_letters=dead_letters,
                schedules=PostgresSchedules(context, lookups, pushes),
                operations=PostgresOperations(context, lookups, pushes, forwarding),
                traces=PostgresTraces(context, reader),
                streams=PostgresStreams(context, pushes, forwarding),
                spools=PostgresSpools(context, pushes),
                inspection=PostgresInspection(context, lookups),
                maintenance=PostgresMaintenance(context, reader, forwarding, removal, placing),
                consistency=PostgresConsistency(context, lookups),
                access=PostgresAccess(context),
                seals=PostgresSeals(context),
            )
        )

    def entered(self, method: Callable[P, R]) -> Callable[P, R]:
        """Each call of a verb is a span (spans.py)."""
        return cast("Any", in_span)(self.context, method) if iscoroutinefunction(method) else method

    @property
    def database(self) -> Database:
        return self.context.database

    async def open(self) -> None:
        self.database.reopen()
        try:
            async with self.database.connection() as connection:
                await _prepare(connection)
        except Exception as error:
            cause = error.__cause__ if isinstance(error, Unavailable) else error
            # A server that refuses us needs an operator; a server that is not reachable may become so.
            if not self._breaker or not isinstance(cause, Exception) or not may_retry_connect(cause):
                raise caused_by(translate(error), error)  # noqa: B904
            self.database.take_for_away(cause, prepare=_prepare)

    async def close(self) -> None:
        await self.context.signals.close()
        await self.database.close()

    async def ping(self) -> None:
        await self.database.fetch("ping", "select 1")

    async def ready(self) -> None:
        async with self.database.connection() as connection:
            await check_schema(connection)

    async def listen(self, hear: Hear, *, waiting: Callable[[], bool]) -> None:
        await self.context.signals.listen(hear, waiting)

    def expect_signals(self) -> None:
        self.context.signals.expect()

    def announce(self, arrivals: Mapping[str, Arrival]) -> None:
        self.context.signals.announce(arrivals)

    def watch(self, *, there: Callable[[bool], None], changed: Callable[[], None]) -> None:
        self.context.signals.changed = changed
        self.database.watch(there)


async def _prepare(connection: Any) -> None:
    """Migrate. Before there is a schema, the pool cannot provide ids."""
    if await migrate(connection):
        await provide_ids(connection)


def _pool_settings(config: Config, *, breaker: bool) -> PoolSettings:
    return PoolSettings(
        connections_max=config.pool_connections_max,
        connect_timeout_seconds=config.connect_timeout_seconds,
        connect_attempts_max=config.connect_attempts_max,
        primary_search_seconds=config.primary_search_seconds,
        primary_check_seconds=config.primary_check_seconds,
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

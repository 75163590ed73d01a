"""The composition root: the store that an address means, and everything that it needs."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from lockstep.config import OF_CLIENTS, Config, load
from lockstep.core.records import FirstPollLimits
from lockstep.core.schedules import Timing
from lockstep.core.statistics import QueryHook
from lockstep.engine.engine import Engine
from lockstep.errors import InvalidRequest
from lockstep.storage.base import Store
from lockstep.storage.memory import MemoryStore

if TYPE_CHECKING:
    from lockstep.storage.postgres.embedded import EmbeddedPostgres


def open_engine(
    url: str | None = None,
    *,
    config_file: Path | None = None,
    on_query: QueryHook | None = None,
    **overrides: object,
) -> AbstractAsyncContextManager[Engine]:
    """An engine on the store that `url` names, open within the context.

    `memory://` is a store in this process, `postgresql://…` a PostgreSQL server. None is the setting `dsn`,
    and without one an embedded PostgreSQL on the setting `data_dir`, started and stopped with the context.
    The overrides are settings by name (see `lockstep.config`), and win over the environment, which wins over the
    TOML file `config_file`.

    `on_query` is called after every query to PostgreSQL with its name, its seconds and its error, if it failed. It must
    return quickly. A store in memory has no queries.
    """
    config = load(overrides, file=config_file, unused=OF_CLIENTS)
    if url is not None:
        config = msgspec.structs.replace(config, dsn=url)
    if config.dsn is not None:
        check_address(config.dsn)
    return _Opening(config, on_query)


class _Opening:
    """Opens an engine each time it is entered: an unavailable store may have recovered by then."""

    def __init__(self, config: Config, on_query: QueryHook | None) -> None:
        self._config = config
        self._on_query = on_query
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Engine:
        async with AsyncExitStack() as stack:
            address = (await stack.enter_async_context(running_database(self._config))).address
            config = with_key(self._config, address)
            engine = await stack.enter_async_context(engine_on(address, config, on_query=self._on_query))
            self._stack = stack.pop_all()
        return engine

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stack.aclose()


class RunningDatabase(NamedTuple):
    """The location of a store, and the embedded PostgreSQL that was started for it."""

    address: str
    embedded: EmbeddedPostgres | None = None


@asynccontextmanager
async def running_database(config: Config) -> AsyncIterator[RunningDatabase]:
    """The store that the settings name. An embedded PostgreSQL runs within the context."""
    if config.dsn is not None:
        yield RunningDatabase(config.dsn)
        return
    from lockstep.storage.postgres.embedded import EmbeddedPostgres

    embedded = EmbeddedPostgres(
        config.data_dir, start_timeout=config.embedded_start_timeout_seconds, restart_attempts_max=None
    )
    async with embedded as server:
        yield RunningDatabase(server.dsn, server)


def with_key(config: Config, address: str) -> Config:
    """The settings with the key of the embedded database at an address. Raises InvalidOption if the key is invalid."""
    if check_address(address) == "memory":
        return config
    from lockstep.storage.postgres.key_files import with_stored_key

    return with_stored_key(config, address)


def engine_on(address: str, config: Config, *, on_query: QueryHook | None = None) -> Engine:
    """An engine, not yet open, on the store at an address. Raises InvalidRequest if the address is not valid."""
    return Engine(_store(address, config, on_query=on_query), config)


def serving_engine_on(address: str, config: Config) -> Engine:
    """The same for a server, which keeps running while its store is unavailable: calls fail at once, and pushes are
    buffered if the engine has a spool."""
    kind = Engine
    if config.tracing:
        from lockstep.engine.tracing import TracedEngine

        kind = TracedEngine
    return kind(_store(address, config, breaker=True), config, spool_dir=spool_directory(config))


def spool_directory(config: Config) -> Path | None:
    """The directory in which a server buffers pushes, one for each store; None for a store that ends with its
    process.
    """
    if config.spool_dir is not None:
        return Path(config.spool_dir).expanduser().resolve()
    if config.dsn is None:
        from lockstep.storage.postgres.embedded import default_data_dir

        data_dir = Path(config.data_dir).expanduser() if config.data_dir else default_data_dir()
        return data_dir.resolve() / "spool"
    if check_address(config.dsn) == "memory":
        return None
    if os.geteuid() == 0:
        return Path("/var/lib/lockstep/spool")
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "lockstep/spool"


def check_address(address: str) -> str:
    """The kind of store at an address. Raises InvalidRequest for an invalid address."""
    scheme, separator, _ = address.partition("://")
    if separator and scheme == "memory":
        return "memory"
    if separator and scheme in ("postgresql", "postgres"):
        return "postgresql"
    # Without the address itself, which may contain a password.
    raise InvalidRequest("the address of a store begins with memory:// or postgresql://")


def _store(address: str, config: Config, *, breaker: bool = False, on_query: QueryHook | None = None) -> Store:
    if check_address(address) == "memory":
        return MemoryStore(
            timing=Timing(config.schedule_min_seconds, config.cron_late_seconds_max),
            first_polls=FirstPollLimits(config.first_polls_max, config.first_poll_seconds_max),
            queue_groups_max=config.queue_groups_max,
            queue_partitions_max=config.queue_partitions_max,
            page_looked_into_max=config.page_looked_into_max,
        )
    return _postgres_store(address, config, breaker=breaker, on_query=on_query)


def _postgres_store(dsn: str, config: Config, *, breaker: bool, on_query: QueryHook | None) -> Store:
    # Imported here, because the memory store needs no database driver.
    from lockstep.storage.postgres.store import PostgresStore

    return PostgresStore(dsn, config=config, breaker=breaker, on_query=on_query)

"""The composition root: which store an address means, and what has to run for it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from lockstep.config import Config, load
from lockstep.engine.engine import Engine
from lockstep.errors import InvalidRequest
from lockstep.storage.base import Store
from lockstep.storage.memory import MemoryStore


def open_engine(
    url: str | None = None, *, config_file: Path | None = None, **overrides: object
) -> AbstractAsyncContextManager[Engine]:
    """An engine on the store that `url` names, open for as long as the context lasts.

    `memory://` is a store in this process, `postgresql://…` a PostgreSQL server. None is the setting `dsn`,
    and without one an embedded PostgreSQL on the setting `data_dir`, started and stopped with the context.
    The overrides are settings by name (see `lockstep.config`), and win over the environment, which wins over the
    TOML file `config_file`.
    """
    config = load(overrides, file=config_file)
    address = config.dsn if url is None else url
    if address is None:
        return _embedded(config)
    return _opened(_store(address, config), config)


def _store(address: str, config: Config) -> Store:
    scheme, separator, _ = address.partition("://")
    if separator and scheme == "memory":
        return MemoryStore()
    if separator and scheme in ("postgresql", "postgres"):
        return _postgres_store(address, config)
    # Without the address itself, which may hold a password.
    raise InvalidRequest("the address of a store begins with memory:// or postgresql://")


def _postgres_store(dsn: str, config: Config) -> Store:
    # Imported here, because those who use the memory store need no database driver.
    from lockstep.storage.postgres.store import PostgresStore

    return PostgresStore(dsn, config=config)


@asynccontextmanager
async def _opened(store: Store, config: Config) -> AsyncIterator[Engine]:
    async with Engine(store, config) as engine:
        yield engine


@asynccontextmanager
async def _embedded(config: Config) -> AsyncIterator[Engine]:
    from lockstep.storage.postgres.embedded import EmbeddedPostgres

    started = EmbeddedPostgres(config.data_dir, start_timeout=config.embedded_start_timeout_seconds)
    async with started as server, Engine(_postgres_store(server.dsn, config), config) as engine:
        yield engine

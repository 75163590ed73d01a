"""Runs work on a direct connection to the database, for commands that no server offers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import asyncpg

from lockstep.config import Config
from lockstep.errors import LockstepError
from lockstep.storage.postgres.failures import translate
from lockstep.storage.postgres.store import PostgresStore

T = TypeVar("T")


def on_database(dsn: str, config: Config, work: Callable[[asyncpg.Connection[Any]], Awaitable[T]], *, failed: str) -> T:
    """The result of the work on a connection. If the database refuses it, the error begins with `failed`."""

    async def connected() -> T:
        store = PostgresStore(dsn, config=config)
        try:
            async with store.database.connection() as connection:
                return await work(connection)
        except asyncpg.PostgresError as error:
            translated = translate(error)
            if isinstance(translated, LockstepError):
                raise translated from error
            raise LockstepError(f"{failed}: {error}") from error
        finally:
            await store.close()

    return asyncio.run(connected())
